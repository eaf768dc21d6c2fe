"""A run whose hosts are lost and come back has the losses of one that nothing disturbs.

Four hosts, each a `meshdsl launch --elastic` with a process of one CPU device, on this machine. A
host that is lost gets SIGKILL with its process, at a moment that nobody chose. Three faults where
slow tests run; 30 with HYPOTHESIS_PROFILE=nightly.
"""

import os
import random
import re
import signal
import subprocess
import sys
import time
from contextlib import ExitStack, suppress

import jax
import numpy as np
import pytest

from benchmarks.limited_network import limited, missing
from meshdsl.train.checkpoints.folders import saved_steps
from meshdsl.train.checkpoints.saved_arrays import verify
from meshdsl.train.watch.metrics_file import last_line
from tests.nightly import NIGHTLY
from tests.train import ids
from tests.train.common import SHORT, losses, train
from tests.train.test_kill_matrix import environment, members

FAULTS = 30 if NIGHTLY else 3
SETTINGS = [
    *(word for word in SHORT if "dropout" not in word),
    *("batch=24", "model.d_model=24", "model.heads=4"),  # over 2, 3 and 4 devices
    *("checkpoint.every=1", "checkpoint.keep=3", "schedule.shape=constant"),
]
# Nothing is saved on disk until the last step, or until a host comes.
IN_MEMORY = ["checkpoint.every=0", "elastic.memory_every=3"]
IDS = ["--model", f"{ids.__file__}:Ids", "batch=24", "checkpoint.every=1"]
IDS_DATA = f"{ids.__file__}:numbered"
DEADLINE = 300.0  # seconds until a run goes on after a fault


class Fleet:
    """The hosts of an elastic run.

    Args:
      least: as few hosts the run goes on with.
      prefix: of the command that starts a host, by its number: in a network of its own, say.
      names: by which the others reach each host.
      settings: of the run.
    """

    def __init__(
        self, folder, data, steps, least=2, prefix=lambda i: [], names=None, settings=SETTINGS
    ):
        self.folder, self.prefix, self.names = folder, prefix, names
        self.flags = ["launch", "--elastic", f"{least}:4", "--host"]
        self.words = ["--", "train", "--data", data, "--layout", "fsdp", "--out", str(folder)]
        self.words += [*settings, f"steps={steps}"]
        self.hosts: dict[int, subprocess.Popen] = {}
        self.printed = folder.with_suffix(".txt")

    def add(self, number):
        """A host comes."""
        name = self.names[number] if self.names else "localhost"
        command = [sys.executable, "-m", "meshdsl_cli", *self.flags, name, *self.words]
        with self.printed.open("a") as printed:
            self.hosts[number] = subprocess.Popen(
                [*self.prefix(number), *command],
                env=environment(self.folder.parent) | {"JAX_NUM_CPU_DEVICES": "1"},
                stdout=printed,
                stderr=printed,
            )

    def lose(self, number):
        """A host is gone, with what runs on it."""
        host = self.hosts.pop(number)
        if host.poll() is not None:
            return
        for each in [host.pid, *members(host)[1:]]:
            with suppress(ProcessLookupError):
                os.kill(each, signal.SIGKILL)
        host.wait()

    @property
    def text(self):
        """What all hosts have printed."""
        return self.printed.read_text()

    @property
    def newest(self):
        """The newest step that is saved, or that is measured where few are saved."""
        saved = saved_steps(self.folder / "checkpoints")
        metrics = last_line(self.folder / "metrics.jsonl") if IN_MEMORY[0] in self.words else None
        return max([*saved, (metrics or {}).get("step", 0)])

    def comes_to(self, step):
        """Wait until a step is saved; returns how many seconds that took."""
        began = time.monotonic()
        while self.newest < step and any(each.poll() is None for each in self.hosts.values()):
            assert time.monotonic() - began < DEADLINE, self.text
            time.sleep(0.02)
        return time.monotonic() - began

    def meet(self, draw):
        """One or two hosts are lost, or those that were lost come back.

        Returns: what happened, and the seconds until a new step was saved.
        """
        lost = sorted({0, 1, 2, 3} - self.hosts.keys())
        if lost and (len(lost) == 2 or draw.random() < 0.5):
            what, numbers = "come", lost
        else:
            count = draw.choice([1, 2]) if not lost else 1
            what, numbers = "lost", draw.sample(sorted(self.hosts), count)
        for number in numbers:
            assert what == "come" or self.hosts[number].poll() is None, self.text
            (self.add if what == "come" else self.lose)(number)
        return what, self.comes_to(self.newest + 1)

    def wait(self):
        """Wait until the run has ended on all hosts; returns their exit codes."""
        return {number: host.wait(DEADLINE) for number, host in self.hosts.items()}

    def close(self):
        for number in list(self.hosts):
            self.lose(number)


@pytest.mark.slow
def test_hosts_that_are_lost_and_come_back_change_no_loss(tmp_path, text):
    assert len(jax.devices()) == 8  # or the run would make the four that it needs
    draw, out = random.Random(FAULTS), tmp_path / "a"
    steps = 12 * FAULTS
    fleet = Fleet(out, text, steps)
    with ExitStack() as stack:
        stack.callback(fleet.close)
        for number in range(4):
            fleet.add(number)
        fleet.comes_to(2)
        leaves = fleet.hosts.pop(3)
        leaves.send_signal(signal.SIGTERM)  # and the others go on
        assert leaves.wait(DEADLINE) == 0, fleet.text
        fleet.comes_to(fleet.newest + 1)
        for _ in range(FAULTS):
            fleet.meet(draw)
            time.sleep(2 * draw.random())
        codes = fleet.wait()
        assert set(codes.values()) == {0}, fleet.text
    kept = out / "checkpoints"
    assert [verify(kept / str(step)) for step in saved_steps(kept)] == [""] * 3
    words = ["--data", text, "--layout", "fsdp", "--devices", "4", *SETTINGS, f"steps={steps}"]
    code, alone = train(tmp_path / "b", *words)
    assert code == 0
    np.testing.assert_allclose(losses(out), alone, rtol=1e-5)


@pytest.mark.slow
def test_where_a_host_is_lost_a_run_goes_on_from_the_memory_of_the_others(tmp_path):
    """Each step has its rows, and no row is read twice or left out: losses say which they are."""
    out, steps = tmp_path / "a", ids.ROWS // 24
    fleet = Fleet(out, IDS_DATA, steps, settings=[*IDS, *IN_MEMORY])
    with ExitStack() as stack:
        stack.callback(fleet.close)
        for number in range(3):
            fleet.add(number)
        fleet.comes_to(8)
        before = fleet.newest
        fleet.lose(1)
        fleet.comes_to(before + 4)
        assert saved_steps(out / "checkpoints") == []
        resumed = [int(step) for step in re.findall(r"resumed after step (\d+)", fleet.text)]
        assert len(resumed) == 1 and resumed[0] >= before - 3, fleet.text  # as `memory_every` says
        assert f"goes on from the copy of step {resumed[0]} in memory" in fleet.text
        assert set(fleet.wait().values()) == {0}, fleet.text
    found = losses(out)
    code, alone = train(tmp_path / "b", "--data", IDS_DATA, *IDS, f"steps={steps}")
    assert code == 0
    np.testing.assert_allclose(found, alone, rtol=1e-6)
    numbers = [row["number"] for row in ids.numbered("train")]
    np.testing.assert_allclose(24 * np.sum(found), np.sum(numbers, dtype=float), rtol=1e-6)


@pytest.mark.slow
def test_a_host_whose_network_is_cut_is_left_out(tmp_path, text):
    """The folder of the run is still seen by all: it does not go by that network."""
    if why := missing():
        pytest.skip(why)
    out, steps = tmp_path / "a", 400
    with ExitStack() as stack:
        try:
            network = stack.enter_context(limited(0, count=3))
        except subprocess.CalledProcessError as error:
            pytest.skip(f"no network namespaces here: {error.stderr.decode().strip()}")
        names = [network.address(i) for i in range(3)]
        fleet = Fleet(out, text, steps, prefix=lambda i: network.command(i, []), names=names)
        stack.callback(fleet.close)
        for number in range(3):
            fleet.add(number)
        fleet.comes_to(3)
        network.cut(2)
        fleet.comes_to(fleet.newest + 3)
        assert "round 2: 2 hosts" in fleet.text
        network.mend(2)
        while "round 3: 3 hosts" not in fleet.text:
            fleet.comes_to(fleet.newest + 1)
