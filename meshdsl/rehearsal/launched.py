"""A run of `meshdsl train` in processes of this machine, which can be killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from meshdsl.train.checkpoints import folders
from meshdsl.train.folder import RunFolder
from meshdsl.train.watch.metrics_file import StepMetrics, read_metrics

_POLL = 0.02  # seconds
_RESTARTS = 9999  # as many as it needs


@dataclass(frozen=True)
class Launched:
    """A run as it is launched.

    Attributes:
      words: of `meshdsl train`, without its folder.
      processes: how many.
      devices: virtual ones of each process.
      folder: of the run.
    """

    words: Sequence[str]
    processes: int
    devices: int
    folder: RunFolder

    @property
    def printed(self) -> Path:
        """A file with all that it prints, beside its folder."""
        return self.folder.path.with_name(f"{self.folder.path.name}.txt")

    @contextmanager
    def started(self) -> Iterator[subprocess.Popen]:
        """A launcher, which starts the processes of the run again where they die.

        When the context ends, it and they have ended.
        """
        words = ["launch", "--processes", str(self.processes), "--restarts", str(_RESTARTS)]
        words += ["--devices-per-process", str(self.devices), "--", *self.words]
        words += ["--out", str(self.folder.path), "--resume", "auto"]
        with self.printed.open("a", encoding="utf-8") as printed:
            process = subprocess.Popen(
                [sys.executable, "-m", "meshdsl_cli", *words],
                env=os.environ | {"JAX_PLATFORMS": "cpu"},
                stdout=printed,
                stderr=printed,
            )
            try:
                yield process
            finally:
                process.kill()  # its processes end with it
                process.wait()

    def last_line(self) -> str:
        """The last line of what it printed."""
        lines = self.printed.read_text(encoding="utf-8").strip().splitlines()
        return lines[-1] if lines else "it printed nothing"

    def metrics(self) -> list[StepMetrics]:
        return list(read_metrics(self.folder.metrics)) if self.folder.metrics.exists() else []

    def newest(self) -> int:
        """The step of the newest complete checkpoint; 0 where there is none."""
        return folders.newest_step(self.folder.checkpoints)

    def writes(self) -> bool:
        """Whether a checkpoint is being written."""
        return folders.writes(self.folder.checkpoints)


def children(process: subprocess.Popen) -> list[int]:
    """The numbers of the processes that a launcher has started, the first one first."""
    try:
        listed = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text()
    except FileNotFoundError:
        return []
    return sorted(map(int, listed.split()))


def kill_one(process: subprocess.Popen, chance: float, processes: int) -> bool:
    """SIGKILL one of the processes of a launcher, as soon as there are so many.

    Args:
      chance: between 0 and 1, says which.

    Returns: whether the launcher was still there.
    """
    while process.poll() is None:
        found = children(process)
        if len(found) == processes:
            os.kill(found[int(chance * processes)], signal.SIGKILL)
            return True
        time.sleep(_POLL)
    return False


def wait_until(process: subprocess.Popen, at: float, done: Callable[[], bool]) -> bool:
    """Wait until a time of `time.monotonic`, and return whether it has come.

    Not where the process has ended before, or all is done.
    """
    while process.poll() is None and not done():
        left = at - time.monotonic()
        if left <= 0:
            return True
        time.sleep(min(_POLL, left))
    return False
