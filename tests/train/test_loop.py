"""The run as a whole: the same losses under every layout, and through every interruption."""

import json
import signal
import threading
from itertools import count

import numpy as np
import pytest

from meshdsl.train.interrupt import Stopping
from meshdsl.train.job import Job
from tests.train.common import SHORT, records, train
from tests.train.common import losses as losses_of
from tests.train.test_two_processes import train_in_two

pytestmark = pytest.mark.usefixtures("compiled_once")
SIX = [*SHORT, "--steps", "6"]


@pytest.fixture(scope="module")
def whole(text, compiled_once, tmp_path_factory):
    """The folder of a run that nothing disturbs."""
    out = tmp_path_factory.mktemp("runs") / "whole"
    train(out, "--data", text, *SIX, "--layout", "fsdp", "validation.every=4")
    return out


@pytest.fixture(scope="module")
def expected(whole):
    """The losses of that run."""
    return losses_of(whole)


def interrupt_in_step(monkeypatch, number):
    """Ctrl-C while the step `number` (of those that this process runs) is fed."""
    calls, place, take, taken = count(1), Job.place, Stopping.take, threading.Event()

    def feed(job, arrays):
        if next(calls) == number:
            signal.raise_signal(signal.SIGINT)
            assert taken.wait(20)
        return place(job, arrays)

    monkeypatch.setattr(Job, "place", feed)
    monkeypatch.setattr(Stopping, "take", lambda stop, number: (take(stop, number), taken.set())[0])


def test_two_processes_have_the_losses_of_one(text, expected, tmp_path):
    """Real ones; what they save: tests/train/test_two_processes.py."""
    train_in_two("fsdp", ["--data", text, *SIX], tmp_path / "two")
    assert losses_of(tmp_path / "two") == pytest.approx(expected, rel=1e-6)


def test_a_run_that_is_measured_has_the_same_losses(text, expected, capsys, tmp_path):
    code, losses = train(tmp_path / "a", "--data", text, *SIX, "--layout", "fsdp", "--ledger")
    assert code == 0 and losses == expected
    printed = capsys.readouterr().out
    said, page = (tmp_path / "a" / f"ledger.{end}" for end in ("txt", "html"))
    assert said.read_text().strip() in printed and 'data-view="ledger"' in page.read_text()
    found = json.loads((tmp_path / "a" / "ledger.json").read_text())
    assert found["calls"] == 5 and len(found["devices"]) == 8
    assert found["attributed"] >= 0.95 and found["attributed_computing"] >= 0.95
    assert any("mlp.py" in total["name"] for total in found["by_line"])
    assert any("rule 1: batch -> data" in total["name"] for total in found["by_rule"])
    again = "--resume", "--layout", "fsdp", "--ledger", "--steps", "7"
    assert train(tmp_path / "a", *again)[0] != 0
    says = "--ledger: measures steps after the first, and the run has 1 to go; set more --steps"
    assert says in capsys.readouterr().err


def test_an_interrupted_run_goes_on_under_another_layout(
    text, expected, monkeypatch, capsys, tmp_path
):
    with monkeypatch.context() as patch:
        interrupt_in_step(patch, 3)
        code, losses = train(tmp_path / "a", "--data", text, *SIX, "--layout", "fsdp")
    assert (code, len(losses)) == (130, 3)
    again = f"to go on: meshdsl train --resume --out {tmp_path / 'a'}"
    assert f"interrupted after step 3, which is saved; {again}" in capsys.readouterr().out
    code, losses = train(tmp_path / "a", "--resume", "--layout", "tensor", "--devices", "4")
    assert code == 0
    out = capsys.readouterr().out
    assert "resumed after step 3" in out and "mesh model=4 on 4 cpu devices" in out
    np.testing.assert_allclose(losses, expected, rtol=2e-5)


@pytest.mark.slow
def test_a_run_goes_on_in_a_pipeline_and_back(text, monkeypatch, tmp_path):
    """Its layers do not divide over the stages."""
    start = ["--data", text, *SIX, "model.layers=3", "--layout", "fsdp"]
    _, expected = train(tmp_path / "whole", *start)
    for words in (start, ["--resume", "--layout", "pipeline-tensor"]):
        with monkeypatch.context() as patch:
            interrupt_in_step(patch, 2)
            code, _ = train(tmp_path / "a", *words)
        assert code == 130
    code, losses = train(tmp_path / "a", "--resume", "--layout", "fsdp")
    assert (code, len(losses)) == (0, 6)
    np.testing.assert_allclose(losses, expected, rtol=2e-5)


@pytest.mark.parametrize(("killed_in", "saved"), [(1, 0), (6, 4)])
def test_a_killed_run_goes_on_from_its_newest_checkpoint(
    text, expected, monkeypatch, capsys, tmp_path, killed_in, saved
):
    calls, place = count(1), Job.place

    def die(job, arrays):
        if next(calls) == killed_in:
            raise ZeroDivisionError
        return place(job, arrays)

    with monkeypatch.context() as patch:
        patch.setattr(Job, "place", die)
        with pytest.raises(ZeroDivisionError):
            words = ["--data", text, *SIX, "--layout", "fsdp", "checkpoint.every=2"]
            train(tmp_path / "a", *words)
    _, losses = train(tmp_path / "a", "--resume")
    assert (f"resumed after step {saved}" in capsys.readouterr().out) == bool(saved)
    np.testing.assert_array_equal(losses, expected)


def test_validation_joins_the_record_of_its_step(whole):
    validated = [each["step"] for each in records(whole) if "validation_loss" in each]
    assert validated == [4, 6]
