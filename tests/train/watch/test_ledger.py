"""`meshdsl train --ledger`: what it attributes, and what it refuses; see `test_loop` too."""

import json

import pytest

from meshdsl_cli import main
from tests.train.common import SHORT, train

SETTINGS = [*SHORT, "--layout", "fsdp"]


BAR = {
    "fsdp-sequence": [],
    "experts-fsdp": ["model.experts=8"],
    "pipeline": ["model.layers=4"],
}


@pytest.mark.slow
@pytest.mark.parametrize("layout", BAR)
def test_time_is_attributed_under_every_kind_of_layout(text, layout, tmp_path, capsys):
    """Of a run that goes on from a checkpoint, with the compiled step that JAX has kept."""
    larger = ["model.d_model=64", "model.d_ff=128", "model.length=64", "batch=32"]
    words = ["--data", text, *SHORT, *larger, "--layout", layout, *BAR[layout]]
    train(tmp_path / "run", *words, "--steps", "2")
    again = ["train", "--out", str(tmp_path / "run"), "--resume", "--ledger", "--steps"]
    assert main([*again, "6"]) == 0
    found = json.loads((tmp_path / "run" / "ledger.json").read_text())
    assert (found["calls"], len(found["devices"])) == (3, 8)
    assert found["attributed"] >= 0.95 and found["attributed_computing"] >= 0.95
    assert not [one for one in found["unforeseen"] if one["kind"] in ("surprise", "unknown")]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--ledger", "--profile", "2:3"], "--ledger: takes a trace itself, and log.profile=2:3"),
        (["--hardware", "own.toml"], "--hardware: has figures for the ledger; say --ledger too"),
        (["--ledger", "--hardware", "no.toml"], "no.toml"),
    ],
)
def test_what_does_not_go_with_a_ledger_is_an_error(text, words, says, tmp_path, capsys):
    out = tmp_path / "run"
    assert main(["train", "--out", str(out), "--data", text, *SETTINGS, *words]) != 0
    assert says in capsys.readouterr().err and not out.exists()


def test_a_file_without_figures_of_the_devices_is_an_error(text, tmp_path, capsys):
    file, out = tmp_path / "none.toml", tmp_path / "run"
    file.write_text("")
    words = ["--ledger", "--hardware", str(file)]
    assert main(["train", "--out", str(out), "--data", text, *SETTINGS, *words]) != 0
    says = f"--hardware {file}: has no figures of these devices (cpu)"
    assert says in capsys.readouterr().err and not out.exists()
