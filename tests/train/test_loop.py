"""The run as a whole: the same losses under every layout, and through every interruption."""

import json
import signal
import threading
from itertools import count

import numpy as np
import pytest

import meshdsl_cli as cli
from meshdsl.train.interrupt import Stopping
from meshdsl.train.job import Job
from tests.train.common import losses

pytestmark = pytest.mark.usefixtures("compiled_once")
TINY = [
    "model.d_model=16",
    "model.layers=2",
    "model.heads=8",
    "model.d_ff=16",
    "model.length=16",
    "model.dropout=0.1",
    "batch=8",
    "schedule.warmup=2",
    "validation.batches=2",
    "sample.tokens=0",
]


@pytest.fixture(scope="module")
def train(text):
    """Trains in a folder with tiny settings; gives the exit code and the losses of all steps."""

    def run(out, *words, resume=False):
        start = ["--resume"] if resume else ["--data", text, *TINY]
        code = cli.main(["train", "--out", str(out), *start, *words])
        return code, losses(out)

    return run


@pytest.fixture(scope="module")
def whole(train, compiled_once, tmp_path_factory):
    """The folder of a run that nothing disturbs."""
    out = tmp_path_factory.mktemp("runs") / "whole"
    train(out, "--layout", "fsdp", "--steps", "6", "validation.every=4")
    return out


@pytest.fixture(scope="module")
def expected(whole):
    """The losses of that run."""
    return losses(whole)


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


def test_an_interrupted_run_goes_on_under_another_layout(
    train, expected, monkeypatch, capsys, tmp_path
):
    with monkeypatch.context() as patch:
        interrupt_in_step(patch, 3)
        code, losses = train(tmp_path / "a", "--layout", "fsdp", "--steps", "6")
    assert (code, len(losses)) == (130, 3)
    out = capsys.readouterr().out
    assert (
        "interrupted after step 3, which is saved; to go on: meshdsl train --resume "
        f"--out {tmp_path / 'a'}"
    ) in out
    code, losses = train(tmp_path / "a", "--layout", "tensor", "--devices", "4", resume=True)
    assert code == 0
    out = capsys.readouterr().out
    assert "resumed after step 3" in out and "mesh model=4 on 4 cpu devices" in out
    np.testing.assert_allclose(losses, expected, rtol=2e-5)


@pytest.mark.slow
@pytest.mark.parametrize("layout", ["pipeline", "pipeline-fsdp", "pipeline-tensor"])
def test_a_run_goes_on_in_a_pipeline_and_back(train, monkeypatch, tmp_path, layout):
    """Its layers do not divide over the stages."""
    settings = ["--steps", "6", "model.layers=3"]
    _, expected = train(tmp_path / "whole", "--layout", "fsdp", *settings)
    for number, words in enumerate((["fsdp", *settings], [layout])):
        with monkeypatch.context() as patch:
            interrupt_in_step(patch, 2)
            code, _ = train(tmp_path / "a", "--layout", *words, resume=number > 0)
        assert code == 130
    code, losses = train(tmp_path / "a", "--layout", "fsdp", resume=True)
    assert (code, len(losses)) == (0, 6)
    np.testing.assert_allclose(losses, expected, rtol=2e-5)


@pytest.mark.parametrize(("killed_in", "saved"), [(1, 0), (6, 4)])
def test_a_killed_run_goes_on_from_its_newest_checkpoint(
    train, expected, monkeypatch, capsys, tmp_path, killed_in, saved
):
    calls, place = count(1), Job.place

    def die(job, arrays):
        if next(calls) == killed_in:
            raise ZeroDivisionError
        return place(job, arrays)

    with monkeypatch.context() as patch:
        patch.setattr(Job, "place", die)
        with pytest.raises(ZeroDivisionError):
            train(tmp_path / "a", "--layout", "fsdp", "--steps", "6", "checkpoint.every=2")
    _, losses = train(tmp_path / "a", resume=True)
    assert (f"resumed after step {saved}" in capsys.readouterr().out) == bool(saved)
    np.testing.assert_array_equal(losses, expected)


@pytest.mark.slow  # test_step trains with microbatches under every ZeRO stage
def test_microbatches_change_no_loss_without_dropout(train, tmp_path):
    settings = ["--layout", "fsdp", "--steps", "4", "model.dropout=0", "batch=16"]
    _, expected = train(tmp_path / "whole", *settings)
    _, losses = train(tmp_path / "parts", *settings, "microbatches=2")
    np.testing.assert_allclose(losses, expected, rtol=2e-5)


def test_validation_joins_the_record_of_its_step(whole):
    records = [json.loads(line) for line in (whole / "metrics.jsonl").read_text().splitlines()]
    validated = [number for number, record in enumerate(records, 1) if "validation_loss" in record]
    assert validated == [4, 6]
