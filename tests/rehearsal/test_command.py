"""`meshdsl rehearse`: mistakes are one line each, and a small run is told as it is here."""

import json

import pytest

from meshdsl_cli import main

RUN = "rehearse --layout fsdp --target cpu:8 --step 2s --store 1GB/s steps=5000 --traces 20".split()
SMALL = "model.d_model=16 model.layers=1 model.heads=8 model.d_ff=16 model.length=16".split()


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ("", "say how often faults come, with --faults"),
        ("--faults mtfb=4h", "--faults mtfb=4h: there is no `mtfb`; did you mean `mtbf`?"),
        ("--faults mtbf=4", "--faults mtbf=4: expected a time with its unit, as 90s, 20min, 4h"),
        ("--faults mtbf", "--faults mtbf: expected a time after it, as mtbf=4h"),
        ("--faults mtbf=0h", "--faults mtbf=0h: expected a time with its unit"),
        ("--faults mtbf=4h,mtbf=3h", "`mtbf` is given twice"),
        ("--faults slice_back=1h", "expected faults, as mtbf=4h,slice_mtbf=3d"),
        ("--faults mtbf=1h,slice_back=1h", "slice_back needs a slice_mtbf"),
        ("--faults mtbf=4h,host_mtbf=1d", "give one of the two"),
        (
            "--faults mtbf=2min",
            "a restart takes 4.8 min, and a fault comes every 2.0 min; such a run hardly comes",
        ),
        ("--faults mtbf=4h --spares -1", "expected a whole number of at least 0, not '-1'"),
        ("--faults mtbf=4h --spares 2", "--spares: stand in for slices that are gone"),
        ("--faults mtbf=4h --restart wait=3s", "--restart wait=3s: there is no `wait`; known"),
        ("--faults mtbf=4h --store 20", "--store 20: expected a rate with its unit, as 500MB/s"),
        (
            "--faults mtbf=4h --target v5p:4x4x4 --slices 3 --mesh data=64",
            "mesh data=64 is of 64 devices and 3 slices of v5p:4x4x4 has 192",
        ),
        ("--faults mtbf=4h --out a.txt", "--out a.txt: expected a name that ends in .png"),
        ("--faults mtbf=4h --scale 9", "--scale: goes with --real"),
        ("--faults mtbf=4h --real a", "--target: is for a rehearsal on paper, not for --real"),
    ],
)
def test_mistakes_are_one_line(words, text, capsys):
    assert main([*RUN, *SMALL, *words.split()]) == 2
    captured = capsys.readouterr()
    assert captured.out == "" and captured.err.count("\n") == 1
    assert text in captured.err


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ("--faults slice_mtbf=4h", "--faults slice_mtbf=4h: --real has processes, and no slices"),
        ("--faults mtbf=4h checkpoint.every=0", "is for a run of one phase, with checkpoint.every"),
        ("--faults mtbf=4h steps=100", "--real needs 2400 at least"),
        ("--faults mtbf=4h --scale 0.5", "expected a number of at least 1, not '0.5'"),
    ],
)
def test_mistakes_of_a_real_run_are_one_line(words, text, tmp_path, capsys):
    assert main(["rehearse", "--real", str(tmp_path / "real"), *words.split()]) == 2
    assert text in capsys.readouterr().err
    assert not (tmp_path / "real/run").exists()


def test_what_is_needed_is_asked_for(capsys):
    assert main(["rehearse", "--faults", "mtbf=4h", "--target", "cpu:8"]) == 2
    assert "--store: is needed, for example --store 20GB/s" in capsys.readouterr().err
    assert main(["rehearse", "--faults", "mtbf=4h", "--store", "1GB/s"]) == 2
    assert "--target: is needed" in capsys.readouterr().err
    assert main([*RUN[:5], "--faults", "mtbf=4h", "--store", "1GB/s"]) == 2
    assert "has no figures to estimate a step by; say how long" in capsys.readouterr().err


def test_a_small_run_is_told_as_a_table(capsys):
    assert main([*RUN, *SMALL, "--faults", "mtbf=2h"]) == 0
    told = capsys.readouterr().out
    assert told == EXPECTED


def test_phases_slices_and_a_picture(tmp_path, capsys):
    phases = "phase=[{until=3000}, {until=5000, batch=16}]"
    slices = "--target v5e:2x4 --slices 2 --layout hybrid-fsdp --faults mtbf=4h,slice_mtbf=1d"
    words = ["rehearse", *slices.split(), "--store", "1GB/s", *SMALL, phases, "steps=5000"]
    words += ["checkpoint.minutes=10", "--traces", "4", "batch=32"]
    out = tmp_path / "a.svg"
    assert main([*words, "--json", "--out", str(out)]) == 0
    told = capsys.readouterr()
    found = json.loads(told.out)
    assert out.read_text().startswith("<?xml") and told.err == f"wrote {out}\n"
    assert len(found["step_seconds"]) == 2
    assert len(found["options"]) == 8  # with and without copies, 0 and 1 spare, waiting or not
    assert all(len(option["every"]) == 2 for option in found["options"])
    assert main([*words, "--step", "2s"]) == 2
    assert "--step: is for one phase, and the run has 2" in capsys.readouterr().err


EXPECTED = """\
transformer, batch 32 of length 16
layout fsdp.toml, mesh data=8, on cpu:8: 8 chips of 1 host
state: 117.6 KiB, 14.7 KiB of it on a device
5,000 steps of 2 s: 2.8 h undisturbed
save: steps wait 1.88 us, complete 120 us later
first start 10 min
after a fault: detect 45 s, replace 2.0 min, start 60 s, read 120 us, compile 60 s
faults: one in the job every 2.0 h
20 traces are drawn; the run as it is set meets 2 faults in the mean

  state in       checkpoint  goodput       5% to 95%  takes  chip hours  wasted
  store, as set     6.7 min    87.2%  79.9% to 94.3%  3.2 h          25       3
  store                 2 s    90.2%  84.2% to 94.3%  3.1 h          25       2

where the time goes
  state in        steps  start   down  lost steps  checkpoints
  store, as set  87.18%  5.66%  4.03%       3.14%        0.00%
  store          90.23%  5.85%  3.91%       0.01%        0.00%

cheapest in chip hours, 3.4% less than as set
  the store alone: 25 chip hours
  a checkpoint every 2 s of steps, checkpoint.every=1
"""
