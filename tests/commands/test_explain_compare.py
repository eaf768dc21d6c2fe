"""`explain` and `compare` as a user types them."""

import json
import os
import subprocess
import sys

import pytest

from meshdsl_cli import main
from tests.commands.test_command_line import refused

SMALL = (
    "--model llama --length 32 model.layers=2 model.d_model=64 model.remat=full model.loss_chunk=0"
)
LLAMA = "--model llama3-8b --length 2048 model.remat=full model.loss_chunk=0"


def printed(capsys, words, code=0):
    assert main(words.split()) == code
    return capsys.readouterr().out


def test_explain_needs_no_machine(capsys):
    out = printed(capsys, f"explain --layout fsdp-tensor {SMALL}")
    assert out.startswith(
        "llama, batch 32 of length 32\nlayout fsdp-tensor.toml, mesh data=4 model=2, 8 devices\n"
    )
    assert "estimated step" not in out and "parameters at rest" in out


def test_explain_on_a_machine_has_a_verdict_and_times(capsys):
    mesh = "--target v5e:4x4 --mesh data=8,model=2"
    out = printed(capsys, f"explain --layout fsdp-tensor {mesh} {SMALL}")
    assert "mesh data=8 model=2, 16 devices on v5e:4x4\nfits: estimated peak" in out
    assert "estimated step " in out and "MFU " in out


def test_each_phase_of_a_run_is_explained_and_proved(capsys, tmp_path):
    (tmp_path / "run.toml").write_text(
        "[model]\nlayers = 2\nd_model = 64\nlength = 32\nremat = 'full'\nloss_chunk = 0\n"
        "[[phase]]\nuntil = 5\n[[phase]]\nuntil = 9\nlayout = 'context'\nmodel.length = 64\n"
    )
    words = f"explain {tmp_path / 'run.toml'} --devices 8"
    out = printed(capsys, words)
    assert out.startswith(
        "phase 1, steps 1 to 5\n\ntransformer, batch 32 of length 32\nlayout data"
    )
    second = "phase 2, steps 6 to 9: layout=context.toml, model.length=64\n\ntransformer, batch 32 "
    assert f"{second}of length 64\nlayout context.toml, mesh data=4 context=2" in out
    assert [each["phase"] for each in json.loads(printed(capsys, f"{words} --json"))["phases"]] == [
        line for line in out.splitlines() if line.startswith("phase ")
    ]
    assert "length 32" not in printed(capsys, f"{words} --phase 2")
    assert printed(capsys, f"verify{words[7:]}").count("proved: all 44 results") == 2
    assert "--phase 3: the run has 2" in refused(capsys, *f"{words} --phase 3".split())
    page = f"{words} --html {tmp_path / 'a.html'}"
    assert "--html: is for one phase, and the run has 2" in refused(capsys, *page.split())


def test_a_published_model_is_explained_for_thousands_of_devices(capsys):
    where = "--target v5p:16x16x16 --mesh data=512,model=8 --batch 512 model.remat=full"
    where += " model.loss_chunk=0"
    out = printed(capsys, f"explain --layout fsdp-sequence --model llama3-405b {where}")
    assert "4096 devices on v5p:16x16x16" in out and "  126 x layers" in out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--batch 16 --length 8", "batch 16 of length 8"),
        ("--target v5e:8x8", "batch 64 of length 32"),
        ("batch=128 optimizer.name=adafactor", "batch 128 of length 32"),
    ],
)
def test_explain_says_what_was_asked_for(capsys, words, said):
    out = printed(capsys, f"explain {SMALL} {words}")
    # Collectives of this optimizer are not recorded.
    assert said in out and ("adafactor sums over whole parameters" in out) == ("ada" in words)


def test_the_whole_explanation_is_json_and_a_page_of_one_file(capsys, tmp_path):
    page = tmp_path / "page.html"
    words = f"explain --json --layout fsdp --html {page} {SMALL}"
    known = {"axes", "ops", "memory", "time", "notes", "remedies", "fits", "bytes_at_rest"}
    assert known <= set(json.loads(printed(capsys, words)))
    text = page.read_text().replace("http://www.w3.org", "")
    assert text.startswith("<!doctype html>")
    assert "http://" not in text and "https://" not in text


def test_what_does_not_fit_says_by_how_much_and_what_to_split(capsys):
    out = printed(capsys, f"explain --layout data --target v5p:2x2x2 --batch 8 {LLAMA}")
    assert "does NOT fit, by " in out
    assert '`parameters = ["d_model -> data"]` would save ' in out


def test_what_would_make_it_fit_is_what_is_not_done_already(capsys):
    words = "explain --model llama3-8b --target v5e:2x2 --layout fsdp model.loss_chunk=0"
    out = printed(capsys, f"{words} --batch 8 model.remat=none")
    assert "`microbatches=2` runs the batch in parts" in out
    assert "`model.remat=full` keeps the least" in out
    out = printed(capsys, f"{words} --batch 4")
    assert "`microbatches=" not in out and "`model.remat=" not in out
    assert "model.remat=auto: full, estimated peak " in out
    assert "nothing fits, and this needs the least" in out
    assert "a layout that splits `length`" in out


def test_compare_lists_the_best_first_and_why_others_are_not_possible(capsys):
    lines = printed(capsys, f"compare data fsdp single --target v5e:4x4 {LLAMA}").splitlines()
    assert [line.split()[0] for line in lines] == ["layout", "fsdp", "data", "single"]
    assert "no, by" in lines[2] and "has 16" in lines[3]
    rows = json.loads(printed(capsys, f"compare single fsdp --target v5e:4x4 {SMALL} --json"))
    assert [row["layout"] for row in rows] == ["fsdp", "single"]
    assert rows[0]["fits"] and rows[0]["step"] > 0


def test_compare_tries_every_mesh(capsys):
    meshes = "--mesh data=8,model=2 --mesh data=4,model=4 --target v5e:4x4"
    lines = printed(capsys, f"compare fsdp-tensor {meshes} {SMALL}").splitlines()[1:3]
    assert {tuple(line.split()[1:3]) for line in lines} == {
        ("data=8", "model=2"),
        ("data=4", "model=4"),
    }


def test_nothing_fits_is_an_exit_code(capsys):
    model = "--model llama3-70b model.remat=full model.loss_chunk=0"
    words = f"compare data zero1 --target v5e:4x4 {model}"
    assert "no, by" in printed(capsys, words, code=3)


def test_an_analysis_says_nothing_on_stderr():
    """Also where libtpu is installed, which complains on stderr if it finds no TPU."""
    clean = {
        key: value for key, value in os.environ.items() if not key.startswith(("JAX_", "TPU_"))
    }
    command = [sys.executable, "-m", "meshdsl_cli", "explain", "model.layers=1"]
    done = subprocess.run(command, capture_output=True, text=True, env=clean)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ("explain --layout fsdp-tensor --mesh data=16", "no axis `model` in the mesh"),
        ("explain --mesh data=2,data=4", "--mesh data=2,data=4: axis `data` is named twice"),
        ("explain --slices 2", "--slices: needs a --target"),
        ("explain --hardware none.toml", "--hardware: needs a --target"),
        ("explain --imbalance 1.3", "--imbalance: needs a --target"),
        ("explain --imbalance 0.9 --target v5e:4x4", "expected a number of at least 1, not '0.9'"),
        ("explain --mesh data", "--mesh data: expected sizes of axes such as data=16,model=4"),
        ("explain --target v5e:4x4 --devices 8", "the target says how many devices there are"),
        ("explain --html absent/page.html", "absent/page.html: No such file or directory"),
        ("compile --target cpu:8 --html absent/page.html", "absent/page.html: No such file"),
        ("compile --target cpu:8 --save absent/step", "absent/step: No such file or directory"),
        ("search --target v5e:4x4 --out absent/x.toml", "absent/x.toml: No such file or directory"),
        ("search --target v5e:4x4 --out .", ".: Is a directory"),
        ("explain --hardware absent.toml --target v5e:4x4", "absent.toml"),
        (
            "explain --layout pipeline --model llama --batch 160 --devices 8",
            "a device has 40 of batch=160, which do not divide into 16 microbatches; use 1, 2, 4, ",
        ),
        ("compare fsdp", "say for which machine, with --target"),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_2(capsys, words, text):
    assert text in refused(capsys, *words.split())


@pytest.mark.slow
def test_an_unequal_load_slows_experts_that_are_split_and_no_others(capsys):
    sizes = ["model.length=4096", "model.d_ff=4096", "model.d_model=512", "model.experts=4"]

    def seconds(layout, imbalance, *how):
        words = f"explain --layout {layout} --target v5e:4x4 --imbalance {imbalance} --json {SMALL}"
        words = " ".join([words, "precision.compute=bfloat16", *sizes, *how])
        return json.loads(printed(capsys, words))["time"]["compute"]

    assert seconds("experts", "2") > 1.1 * seconds("experts", "1")
    assert seconds("fsdp", "2") == seconds("fsdp", "1")
    capacity = "model.capacity=1.25"
    assert seconds("experts", "2", capacity) == seconds("experts", "1", capacity)
