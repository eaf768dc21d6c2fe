"""The network between two processes is cut: for ten seconds, or for good. Nothing is lost.

Each process runs in a network namespace of its own, which takes the rights of an administrator; the
tests are skipped where these are missing.
"""

import subprocess
import sys
import time

import pytest

from benchmarks.limited_network import limited, missing
from meshdsl.hosts.heartbeat import MISSED
from meshdsl.train.checkpoints.folders import saved_steps
from meshdsl_cli import main
from tests.nightly import nightly
from tests.train.common import layout_words, losses
from tests.train.test_kill_matrix import TINY, environment

# As `meshdsl`, with a sign of life each second instead of every five.
FAST = """
import sys
from meshdsl.hosts import heartbeat
heartbeat._BEAT = 1.0
from meshdsl_cli import main
sys.exit(main(sys.argv[1:]))
"""


@pytest.fixture
def network():
    """Two network namespaces with a cable between them."""
    if why := missing():
        pytest.skip(why)
    try:
        with limited(0) as found:
            yield found
    except subprocess.CalledProcessError as error:
        pytest.skip(f"no network namespaces here: {error.stderr.decode().strip()}")


class Both:
    """A run of two processes, each in a namespace.

    Args:
      program: how Python starts the command line.
    """

    def __init__(self, network, out, program, words):
        self.folder, self.started = out, []
        for i in range(2):
            told = ["--coordinator", network.coordinator, "--processes", "2", "--process-id"]
            command = [sys.executable, *program, "train", *told, str(i), "--out", str(out), *words]
            self.started.append(
                subprocess.Popen(
                    network.command(i, command),
                    env=environment(out.parent) | {"JAX_NUM_CPU_DEVICES": "1"},
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.PIPE,
                    text=True,
                )
            )

    def until(self, step):
        """Wait until so many steps are saved."""
        end = time.monotonic() + 240
        while not any(saved >= step for saved in saved_steps(self.folder / "checkpoints")):
            if time.monotonic() > end or any(process.poll() for process in self.started):
                raise AssertionError(self.end(1))
            time.sleep(0.05)

    def end(self, seconds):
        """Wait until both have ended; returns what they reported."""
        try:
            return [process.communicate(timeout=seconds)[1] for process in self.started]
        finally:
            for process in self.started:
                process.kill()


@pytest.mark.slow
@pytest.mark.parametrize("layout", ["fsdp", pytest.param("workers", marks=nightly)])
def test_a_run_whose_network_is_cut_ends_and_goes_on(layout, network, tmp_path, text):
    settings = ["--data", text, *TINY, *layout_words(layout, tmp_path)]
    cut = tmp_path / "cut"
    both = Both(network, cut, ["-c", FAST], [*settings, "steps=100000"])
    both.until(step=3)
    network.cut(0)
    began = time.monotonic()
    said = both.end(150)
    took = time.monotonic() - began
    assert took < 60 and [process.returncode for process in both.started] == [MISSED] * 2, said
    assert "process 0: process 1 has died or cannot be reached" in said[0]
    assert "process 1: process 0 has died or cannot be reached" in said[1]

    done = max(saved_steps(cut / "checkpoints"))
    go_on = ["--devices", "2", f"steps={done + 2}", "schedule.shape=constant"]
    assert main(["train", "--resume", "--out", str(cut), *go_on]) == 0
    assert len(losses(cut)) == done + 2


@pytest.mark.slow
@pytest.mark.parametrize("layout", [pytest.param("fsdp", marks=nightly), "workers"])
def test_a_cut_of_ten_seconds_changes_nothing(layout, network, tmp_path, text):
    settings = ["--data", text, *TINY, *layout_words(layout, tmp_path), "steps=60"]
    both = Both(network, tmp_path / "cut", ["-m", "meshdsl_cli"], settings)
    both.until(step=3)
    network.cut(0)
    time.sleep(10)
    assert max(saved_steps(tmp_path / "cut/checkpoints")) < 60
    network.mend(0)
    said = both.end(120)
    assert [process.returncode for process in both.started] == [0, 0], said
    assert main(["train", "--out", str(tmp_path / "alone"), "--devices", "2", *settings]) == 0
    assert losses(tmp_path / "cut") == losses(tmp_path / "alone")
