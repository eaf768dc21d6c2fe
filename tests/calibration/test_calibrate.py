"""`meshdsl calibrate`: the file that it writes, and what reads the file."""

import json
import subprocess
import sys

import pytest

from meshdsl.calibration.figures import _fit, _rising
from meshdsl.calibration.subjects import OPERATIONS, SIZES, meshes, sizes
from meshdsl.machine import Network, chips, find_target
from meshdsl_cli import main

FEW = ("--seconds", "0.1")  # the sizes that are timed in any case
SMALL = (
    *("model.layers=2", "model.d_model=64", "model.length=32", "model.vocab=128"),
    *("model.remat=full", "model.loss_chunk=0"),  # `auto` traces a step for each choice
)


@pytest.fixture(scope="module")
def mine(tmp_path_factory):
    """The hardware file of two virtual devices, made in a process of its own."""
    path = tmp_path_factory.mktemp("calibrated") / "mine.toml"
    words = ["calibrate", "--target", "mine", "--devices", "2", "--out", str(path), *FEW]
    done = subprocess.run(
        [sys.executable, "-m", "meshdsl_cli", *words], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert f"--target mine:2 --hardware {path}" in done.stdout
    return path


def test_the_file_is_a_chip_with_figures_that_say_how_they_were_measured(mine):
    chip = chips(mine)["mine"]
    assert chip.timed and chip.kind == "cpu" and chip.node == 2
    figures = "flops hbm hbm_bandwidth kernel_latency step_latency link_bandwidth link_latency"
    for key in figures.split():
        assert getattr(chip, key) > 0
        assert chip.sources[key].startswith("measured: ") and "2 x cpu" in chip.sources[key]
    assert "quartiles" in chip.sources["flops"] and "jaxlib" in chip.sources["flops"]
    assert set(chip.collectives) == set(OPERATIONS) | {"psum"}
    for forms in chip.collectives.values():
        curve = forms["2"]
        assert len(curve.bytes) >= 2 and list(curve.times) == sorted(curve.times)
        assert "quartiles" in curve.source


def test_a_step_is_explained_with_it(mine, capsys):
    words = ["explain", "--layout", "fsdp", "--target", "mine:2", "--hardware", str(mine)]
    assert main([*words, "--json", *SMALL]) == 0
    time = json.loads(capsys.readouterr().out)["time"]
    chip = chips(mine)["mine"]
    assert time["step"] >= chip.step_latency
    assert time["exposed"] == pytest.approx(time["communication"])  # nothing runs beside


def test_what_was_measured_goes_before_the_figures_of_links(mine):
    network = Network(find_target("mine:2", hardware=mine), {"data": 2})
    curve = network.target.chip.collectives["psum"]["2"]
    for bytes, seconds in zip(curve.bytes, curve.times, strict=True):
        assert network.seconds("psum", ("data",), bytes) == pytest.approx(seconds)
        assert network.seconds("pmax", ("data",), bytes) == pytest.approx(seconds)
    assert network.seconds("psum", ("data",), 1) == curve.times[0]
    assert network.seconds("psum", ("data",), 2 * curve.bytes[-1]) > curve.times[-1]
    assert network.describe("data").startswith("2 virtual devices of a process")


def test_a_machine_of_one_process_has_no_network_between_processes(mine, capsys):
    words = ["explain", "--layout", "data", "--target", "mine:2x2", "--hardware", str(mine)]
    assert main(words) == 2
    assert "`scale_out_bandwidth`; calibrate in as many processes" in capsys.readouterr().err


@pytest.mark.parametrize(
    "words, message",
    [
        ([], "say which file to write, with --out"),
        (["--out", "/nowhere/mine.toml"], "/nowhere/mine.toml: No such file or directory"),
        (["--out", "mine.toml", "--target", "mine:8"], "expected a name for the chip alone"),
        (
            ["--out", "mine.toml", "--target", "v5p"],
            "--target v5p: is 'TPU v5' in the hardware table, and the devices here are 'cpu'",
        ),
        (["--out", "mine.toml", "--seconds", "0"], "expected seconds, more than 0"),
        (["--out", "mine.toml", "--devices", "1000"], "--devices 1000: there are"),
    ],
)
def test_mistakes_are_said_before_anything_is_measured(
    words, message, capsys, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    assert main(["calibrate", *words]) == 2
    assert message in capsys.readouterr().err
    assert not any(tmp_path.iterdir())


def test_every_form_of_a_group_is_measured():
    assert list(meshes(8, 1)) == ["2", "4", "8"]
    assert list(meshes(8, 2)) == ["2", "4", "1x2", "2x2", "4x2"]
    assert all(o * n * p * i == 8 for o, n, p, i in (m.values() for m in meshes(8, 2).values()))
    assert len(set(sizes())) == SIZES


def test_times_of_more_bytes_are_not_less():
    assert _rising([1.0, 3.0, 2.0, 4.0]) == [1.0, 2.5, 2.5, 4.0]


def test_a_fit_finds_what_made_the_times():
    rows = [(8.0, 1.0), (12.0, 1.0), (20.0, 2.0)]
    found = _fit(rows, [2 * a + 3 * b for a, b in rows])
    assert found == pytest.approx((2, 3))
    assert _fit([(1.0, 1.0), (2.0, 1.0)], [2.0, 1.0])[0] == 0  # a factor below 0 makes no sense


@pytest.mark.slow
def test_two_processes_have_a_network_between_them(tmp_path, capsys):
    path = tmp_path / "mine.toml"
    launch = ["launch", "--processes", "2", "--devices-per-process", "2", "--", "calibrate"]
    words = [*launch, "--target", "mine", "--out", str(path), *FEW]
    done = subprocess.run(
        [sys.executable, "-m", "meshdsl_cli", *words], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert f"--target mine:2x2 --hardware {path}" in done.stdout
    chip = chips(path)["mine"]
    assert chip.node == 2 and chip.scale_out_bandwidth > 0 and chip.scale_out_latency > 0
    assert {form for forms in chip.collectives.values() for form in forms} == {"2", "1x2", "2x2"}
    network = Network(find_target("mine:2x2", hardware=path), {"data": 2, "model": 2})
    for axes, form in ((("data",), "1x2"), (("model",), "2"), (("data", "model"), "2x2")):
        curve = chip.collectives["psum"][form]
        assert network.seconds("psum", axes, curve.bytes[-1]) == pytest.approx(curve.times[-1])
    words = ["explain", "--layout", "fsdp", "--target", "mine:2x2", "--hardware", str(path)]
    assert main([*words, *SMALL]) == 0
    assert "2 processes" in capsys.readouterr().out
