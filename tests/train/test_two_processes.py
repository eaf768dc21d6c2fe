"""Two processes of four devices train as one process of eight does; see `test_loop` too.

What they save goes on in one process under another layout.

The processes are real ones: they meet, split every batch, sum by gloo, write one checkpoint
together, and stop after the same step.
"""

import os
import signal
import subprocess
import sys
import time

import pytest

from meshdsl.train.watch.events import read_events
from meshdsl_cli import main
from tests.hosts.test_hosts import ROOT, free_port
from tests.nightly import nightly
from tests.train.common import SHORT, losses

TRAIN = """
from meshdsl_cli import main
code = main(["train", "--layout", "{layout}", "--out", "{out}", *{settings}])
assert code == 0, code
"""


@pytest.fixture(scope="module")
def settings(tmp_path_factory):
    text = tmp_path_factory.mktemp("text") / "text.txt"
    text.write_text("The quick brown fox jumps over the lazy dog. " * 200)
    return [*SHORT, "schedule.shape=constant", f"data.sources.fox.paths={text}"]


def start(command: list[str], **environment: str) -> subprocess.Popen:
    environment = {
        **os.environ,
        "JAX_PLATFORMS": "cpu",
        **environment,
    }
    return subprocess.Popen(
        [sys.executable, *command],
        env=environment,
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def run_in_two(code):
    """Runs a program in two processes of four devices; gives what each printed."""
    told = {
        "MESHDSL_COORDINATOR": f"localhost:{free_port()}",
        "MESHDSL_PROCESSES": "2",
        "JAX_NUM_CPU_DEVICES": "4",
    }
    both = [start(["-c", code], **told, MESHDSL_PROCESS_ID=str(i)) for i in range(2)]
    try:
        printed = [process.communicate(timeout=300) for process in both]
    finally:
        for process in both:
            process.kill()
    assert [process.returncode for process in both] == [0, 0], printed
    return printed


def train_in_two(layout, settings, out):
    """A run in two processes of four devices, in the folder `out`."""
    printed = run_in_two(TRAIN.format(layout=layout, out=out, settings=settings))
    assert "on 8 cpu devices" in printed[0][0] and "[Gloo]" not in printed[0][0]
    assert printed[1] == ("", ""), "only process 0 prints"


SLOW_DATA = """
import threading, time
import numpy as np
from meshdsl import hosts
from meshdsl.train.watch import pace

pace.INTERVAL = 0.1
LOCK = threading.Lock()

class Rows:
    def __len__(self):
        return 64

    def __getitem__(self, index):
        if hosts.index() == 1:
            with LOCK:
                time.sleep(0.2)
        return {"tokens": np.full(16, index), "targets": np.full(16, index)}

def rows(subset):
    return Rows() if subset == "train" else None
"""


@pytest.mark.slow
@nightly  # of 60 steps: where other programs keep all cores busy, both processes are slow
def test_a_process_whose_input_is_slow_is_named(tmp_path):
    (tmp_path / "slow_data.py").write_text(SLOW_DATA)
    data = [f"data.sources.own.dataset={tmp_path}/slow_data.py:rows", "data.task=examples"]
    train_in_two("data", [*SHORT, *data, "data.validation=0.3", "steps=64"], tmp_path / "two")
    found = [one for one in read_events(tmp_path / "two/events.jsonl") if one["event"] == "slow"]
    assert found[0]["processes"] == [1]


def train_in_one(layout, steps, out, *words):
    """Trains in one process of eight devices up to so many steps; gives the losses."""
    command = ["train", "--layout", layout, "--devices", "8", "--steps", str(steps)]
    assert main([*command, "--out", str(out), *words]) == 0
    return losses(out)


@pytest.mark.slow
def test_two_processes_have_the_losses_of_one_and_their_checkpoint_goes_on_in_it(
    settings, tmp_path
):
    train_in_two("fsdp-tensor", [*settings, "--steps", "3"], tmp_path / "two")
    expected = train_in_one("fsdp-tensor", 5, tmp_path / "one", *settings)
    train_in_one("sequence", 5, tmp_path / "two", "--resume")
    found = losses(tmp_path / "two")
    assert found[:3] == pytest.approx(expected[:3], rel=1e-6)
    assert found == pytest.approx(expected, rel=1e-5)


def wait_for_steps(process, out):
    """Wait until a run has done two steps."""
    metrics = out / "metrics.jsonl"
    while not metrics.is_file() or metrics.read_text().count("\n") < 2:
        assert process.poll() is None, process.communicate()
        time.sleep(0.1)


@pytest.mark.slow
def test_a_launched_run_that_is_preempted_saves_its_step_and_exits_with_0(settings, tmp_path):
    words = ["-m", "meshdsl_cli", "launch", "--processes", "2", "--", "train"]
    words += ["--layout", "data", "--steps", "100000", "--out", str(tmp_path / "run")]
    launched = start([*words, *settings])
    try:
        wait_for_steps(launched, tmp_path / "run")
        launched.send_signal(signal.SIGTERM)
        printed, reported = launched.communicate(timeout=60)
    finally:
        launched.terminate()
    steps = len(losses(tmp_path / "run"))
    assert launched.returncode == 0 and reported == "", (printed, reported)
    assert f"preempted after step {steps}, which is saved" in printed
    assert (tmp_path / "run" / "checkpoints" / str(steps)).is_dir()


@pytest.mark.slow  # where it is not launched: tests/hosts/test_heartbeat.py
def test_where_process_0_of_a_launched_run_is_killed_one_line_says_so(settings, tmp_path):
    out = tmp_path / "run"
    words = ["-m", "meshdsl_cli", "launch", "--processes", "2", "--", "train", "--layout", "fsdp"]
    launched = start([*words, "--steps", "100000", "--out", str(out), *settings])
    try:
        wait_for_steps(launched, out)
        children = f"/proc/{launched.pid}/task/{launched.pid}/children"
        os.kill(int(open(children).read().split()[0]), signal.SIGKILL)
        reported = launched.communicate(timeout=60)[1]
    finally:
        launched.kill()
    assert (launched.returncode, reported) == (137, "process 0: ended by SIGKILL\n")
