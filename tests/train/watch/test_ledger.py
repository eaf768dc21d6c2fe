"""`meshdsl train --ledger`: what it attributes, and what it refuses; see `test_loop` too."""

import io
import json
from typing import Any, cast

import pytest
from rich.console import Console

from meshdsl.tools.ledger import write_ledger
from meshdsl.train.watch.ledger import Ledger, MeasuredSteps
from meshdsl_cli import main
from tests.predict.ledger.test_trace import TEXT
from tests.train.common import SHORT, train

SETTINGS = [*SHORT, "--layout", "fsdp"]


def test_without_a_trace_the_run_says_so_and_goes_on(tmp_path):
    ledger = Ledger(cast(Any, None), cast(Any, None), lambda: TEXT, write_ledger)
    said, waited = io.StringIO(), []
    console = Console(file=said, width=200)
    steps = MeasuredSteps(ledger, 3, 6, tmp_path, console, lambda: waited.append(0))
    for step in (4, 5, 6, 3, 4, 5):  # it is rolled back after step 6
        steps.begin(step)
    steps.close()
    assert said.getvalue().count("no ledger: --ledger: the trace is empty") == 1
    assert len(waited) == 2 and not list(tmp_path.iterdir())


BAR = {
    "fsdp-sequence": [],
    "experts-fsdp": ["model.experts=8"],
    "pipeline": ["model.layers=4"],
}


@pytest.mark.slow
@pytest.mark.parametrize("layout", BAR)
def test_time_is_attributed_under_every_kind_of_layout(text, layout, tmp_path, capsys):
    """One of the runs goes on from a checkpoint, with the compiled step that JAX has kept."""
    larger = ["model.d_model=64", "model.d_ff=128", "model.length=64", "batch=32"]
    words = ["--data", text, *SHORT, *larger, "--layout", layout, *BAR[layout]]
    if resumed := layout == "fsdp-sequence":
        train(tmp_path / "run", *words, "--steps", "2")
        words = ["--resume"]
    words += ["--ledger", "--steps", "5" if resumed else "3"]
    assert main(["train", "--out", str(tmp_path / "run"), *words]) == 0
    found = json.loads((tmp_path / "run" / "ledger.json").read_text())
    assert (found["calls"], len(found["devices"])) == (2, 8)
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
