"""A run whose processes are killed, stopped and paused ends with the losses of one left alone.

Two processes train under `meshdsl launch --restarts`, in steps that are checkpointed one by one,
and a schedule of faults meets them. Some faults end the run, which is started again; others it must
outlive. Three faults where slow tests run; 60 drawn ones with HYPOTHESIS_PROFILE=nightly.
"""

import os
import random
import signal
import subprocess
import sys
import time

import jax
import pytest

from meshdsl.train.checkpoints.folders import saved_steps
from meshdsl.train.checkpoints.saved_arrays import verify
from tests.nightly import NIGHTLY, nightly
from tests.train.common import layout_words, losses, train
from tests.train.test_kill_matrix import TINY, environment, members

SCHEDULE = ["kill 0", "pause 1", "kill the restored 1"]
PAUSE = 4.0  # seconds, which is less than a process is waited for
DEADLINE = 240.0  # seconds until a fault is over


def drawn(count, seed=20):
    """A schedule of so many faults."""
    draw = random.Random(seed)
    kinds = ["kill", "kill", "kill the restored", "pause", "pause", "stop"]
    return [f"{draw.choice(kinds)} {draw.randrange(2)}" for _ in range(count)]


class Run:
    """A launched run, and what can be done to its processes."""

    def __init__(self, folder, text, steps, layout="fsdp"):
        self.folder = folder
        words = ["launch", "--processes", "2", "--restarts", "99", "--", "train"]
        words += ["--data", text, *layout_words(layout, folder.parent), "--out", str(folder)]
        words += [*TINY, f"steps={steps}", "checkpoint.keep=3"]
        self.printed = folder.with_suffix(".txt")
        with self.printed.open("w") as printed:
            self.launcher = subprocess.Popen(
                [sys.executable, "-m", "meshdsl_cli", *words],
                env=environment(folder.parent),
                stdout=printed,
                stderr=printed,
            )

    def newest(self):
        return max(saved_steps(self.folder / "checkpoints"), default=0)

    def until(self, condition):
        end = time.monotonic() + DEADLINE
        while not condition() and self.launcher.poll() is None:
            assert time.monotonic() < end, self.printed.read_text()
            time.sleep(0.02)

    def comes_further(self, steps=2):
        """Wait until the run has saved so many steps more, or has ended."""
        before = self.newest()
        self.until(lambda: self.newest() >= before + steps)

    def processes(self):
        """The numbers of the two processes, that of process 0 first; none between two starts."""
        return sorted(members(self.launcher)[1:]) if self.launcher.poll() is None else []

    def send(self, number, which):
        """Send a signal to a process; whether it was there."""
        found = self.processes()
        if len(found) == 2:
            os.kill(found[which], number)
        return len(found) == 2

    def meet(self, fault):
        """Let a fault happen, and wait until the run is over it."""
        what, _, which = fault.rpartition(" ")
        which = int(which)
        if what == "pause":
            if self.send(signal.SIGSTOP, which):
                time.sleep(PAUSE)
                self.send(signal.SIGCONT, which)
        elif what == "stop":
            self.send(signal.SIGSTOP, which)
        else:
            before = self.processes()
            self.send(signal.SIGKILL, which)
            if what == "kill the restored":  # while it starts, or reads the checkpoint
                self.until(lambda: len(self.processes()) == 2 and self.processes() != before)
                time.sleep(random.Random(fault).uniform(1, 5))
                self.send(signal.SIGKILL, which)
        self.comes_further()


@pytest.mark.slow
@pytest.mark.parametrize("layout", ["fsdp", pytest.param("workers", marks=nightly)])
def test_faults_change_no_loss(layout, tmp_path, text):
    schedule = drawn(60) if NIGHTLY else SCHEDULE
    steps = 8 * len(schedule)
    assert len(jax.devices()) == 8  # or the run would make the two that it needs
    settings = ["--data", text, *layout_words(layout, tmp_path), *TINY, f"steps={steps}"]
    code, alone = train(tmp_path / "alone", *settings, "--devices", "2")
    assert code == 0
    run = Run(tmp_path / "run", text, steps, layout)
    run.comes_further()
    met = 0
    for fault in schedule:
        if run.launcher.poll() is None:
            run.meet(fault)
            met += 1
    assert run.launcher.wait(DEADLINE * len(schedule)) == 0, run.printed.read_text()
    said = run.printed.read_text()
    assert met == len(schedule) and said.count("restart ") >= sum("kill" in x for x in schedule)
    assert losses(run.folder) == alone
    kept = run.folder / "checkpoints"
    assert [verify(kept / str(step)) for step in saved_steps(kept)] == [""] * 3


@pytest.mark.slow
def test_a_clock_that_is_set_back_changes_nothing(tmp_path, text, monkeypatch):
    run = ["--data", text, "--layout", "data", *TINY, "steps=4", "checkpoint.minutes=0.0001"]
    assert train(tmp_path / "a", *run)[0] == 0
    clock = iter(range(2_000_000_000, 0, -3600))  # an hour earlier each time that it is looked at
    with monkeypatch.context() as patch:
        patch.setattr(time, "time", lambda: float(next(clock)))
        assert train(tmp_path / "b", *run)[0] == 0
    assert losses(tmp_path / "a") == losses(tmp_path / "b")
    assert saved_steps(tmp_path / "a/checkpoints") == saved_steps(tmp_path / "b/checkpoints")
