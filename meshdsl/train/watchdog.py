"""The watchdog, which ends a process whose steps do not end (`guard.timeout`)."""

from __future__ import annotations

import contextlib
import faulthandler
import os
import sys
import threading
import time
from functools import partial
from pathlib import Path
from typing import Self

from meshdsl import hosts

HUNG = os.EX_TEMPFAIL  # the exit code, 75: "try again", says sysexits.h
# So many times the patience is waited for the first step, in which devices and hosts connect.
_FIRST = 3
_TELLING = 5.0  # seconds for a report to be written


class Watchdog:
    """A context manager that ends the process when a step does not end, from a thread of its own.

    A collective that one device never joins waits for ever. The watchdog writes the stacks of all
    threads to stderr and to a file, and ends the process with the exit code HUNG, so that whoever
    started the process can start it again.

    Args:
      minutes: patience from one beat to the next, and three times as much until the first beat;
        0: for ever.
      folder: of the run. The file is `hang-PROCESS.txt` in there.
    """

    def __init__(self, minutes: float, folder: Path):
        self._patience, self._folder = minutes * 60, folder
        self._step, self._limit, self._since = 0, self._patience * _FIRST, time.monotonic()
        self._over = threading.Event()
        self._thread = (
            threading.Thread(target=self._watch, name="watchdog", daemon=True) if minutes else None
        )

    def beat(self, step: int) -> None:
        """Say that the loop is well, after `step`.

        Call it when something that the devices computed has arrived. That a step was started proves
        nothing.
        """
        self._step, self._limit, self._since = step, self._patience, time.monotonic()

    def __enter__(self) -> Self:
        if self._thread:
            self._since = time.monotonic()
            self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._over.set()
        if self._thread:
            self._thread.join()

    def _watch(self) -> None:
        left = self._limit
        # No wait is longer than the patience, because the first beat makes the limit shorter.
        while not self._over.wait(min(left, self._patience)):
            left = self._since + self._limit - time.monotonic()
            if left <= 0:
                self._end()

    def _end(self) -> None:
        """Report where all threads are, and end the process."""
        try:
            path = self._folder / f"hang-{hosts.index()}.txt"
            said = (
                f"process {hosts.index()}: nothing has come after step {self._step} "
                f"for {self._limit / 60:g} minutes (guard.timeout); "
                f"the run is ended with exit code {HUNG}, and can be resumed; "
                f"the stacks of all threads, also in {path}:\n{_stacks()}"
            )
            # In threads, because the step may be waiting for the very file system of the file.
            writers = [
                threading.Thread(target=write, args=(said,), daemon=True)
                for write in (_to_stderr, partial(_to_file, path))
            ]
            for each in writers:
                each.start()
            until = time.monotonic() + _TELLING
            for each in writers:
                each.join(max(0.0, until - time.monotonic()))
        finally:
            os._exit(HUNG)  # whatever hangs would hold up an orderly end


def _stacks() -> str:
    """The stacks of all threads, as text.

    They are written to memory first: while faulthandler writes to a file, no other thread can run.
    """
    with os.fdopen(os.memfd_create("stacks"), "w+", encoding="utf-8", errors="replace") as file:
        faulthandler.dump_traceback(file, all_threads=True)
        file.seek(0)
        return file.read()


def _to_stderr(said: str) -> None:
    with contextlib.suppress(Exception):  # stderr is closed, or nobody reads it any more
        sys.stderr.write(said)
        sys.stderr.flush()


def _to_file(path: Path, said: str) -> None:
    with contextlib.suppress(OSError):
        path.write_text(said, encoding="utf-8")
