"""What keeps a run from going wrong unseen: a folder without room, losses that are not finite, steps that never end."""

from __future__ import annotations

import collections
import contextlib
import faulthandler
import math
import os
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Self

import numpy as np

from meshdsl import hosts
from meshdsl.errors import MeshDSLError
from meshdsl.figures import byte_words
from meshdsl.train import config
from meshdsl.train.watch import StepMetrics

HUNG = os.EX_TEMPFAIL  # 75: try again, says sysexits.h
_FIRST = 3  # so many times the patience until the first step has ended, in which devices and hosts find each other
_TELLING = 5.0  # seconds for a report to be written
_KEPT = 3  # batches: a record comes one step late, while the next batch is placed


def check_folder(path: Path, needed_bytes: int) -> None:
    """Raise a MeshDSLError if files cannot be made in the folder at `path`, which need not exist, or if so many bytes have no room there."""
    at = path
    while not at.exists() and at != at.parent:
        at = at.parent
    try:
        with tempfile.TemporaryFile(dir=at):
            pass
        free = shutil.disk_usage(at).free
    except OSError as error:
        raise MeshDSLError(f"{path}: cannot be written: {at}: {error.strerror}") from None
    if needed_bytes > free:
        raise MeshDSLError(
            f"{path}: the checkpoints that are kept there need {byte_words(needed_bytes)}, and {byte_words(free)} are free; "
            "set less checkpoint.keep, or choose another folder"
        )


class Nonfinite:
    """What is done about steps whose loss or gradient is NaN or infinite.

    All processes see the same losses and so judge alike; each saves its own rows of the batch. What is counted against
    the patience is counted from the start of the processes: a resume begins anew.

    Args:
      folder: of the run, for `nonfinite-STEP.npz`; with several processes `nonfinite-STEP-process-I.npz`.
      dynamic: the loss scale is looked for, so that steps are skipped in a run that is well, and their batches are of no interest.
    """

    def __init__(self, guard: config.Guard, folder: Path, dynamic: bool = False):
        self._guard, self._folder, self._dynamic = guard, folder, dynamic
        self._batches: collections.deque[tuple[int, Mapping[str, np.ndarray]]] = collections.deque(
            maxlen=_KEPT
        )
        self._in_a_row = self._backs = self._saved = 0

    def keep(self, step: int, batch: Mapping[str, np.ndarray]) -> None:
        """Remember the host's part of the batch of `step` until its record comes."""
        self._batches.append((step, batch))

    def judge(self, record: StepMetrics | None) -> str:
        """`go`, or `rollback`: the state is of no use any more.

        A step that the compiled step has `skipped` left the state as it was; with a loss scale that is dynamic this is how float16 finds its scale.

        Args:
          record: None judges nothing.

        Raises:
          MeshDSLError: the run must stop; the text says how it can go on.
        """
        if record is None:
            return "go"
        skipped = bool(record.get("skipped"))
        if not skipped and math.isfinite(record["loss"]) and math.isfinite(record["gradient_norm"]):
            self._in_a_row = 0
            return "go"
        patience = self._guard.patience
        self._in_a_row += 1
        self._backs += not skipped
        if skipped and self._in_a_row < patience:
            if not self._dynamic:
                self._save(record["step"])
            return "go"
        if not skipped and self._guard.nonfinite == "rollback" and self._backs <= patience:
            self._save(record["step"])
            return "rollback"
        raise MeshDSLError(self._reason(record, skipped))

    def _reason(self, record: StepMetrics, skipped: bool) -> str:
        policy, patience = self._guard.nonfinite, f"guard.patience={self._guard.patience}"
        after = ""
        if skipped:
            after = f", the last of {self._in_a_row} steps in a row that were skipped ({patience})"
        elif policy == "rollback":
            after = (
                f", and the run was rolled back {self._guard.patience} times before ({patience})"
            )
        saved = self._save(record["step"])
        batch = f"; its batch is in {saved}" if saved else ""
        ways = [
            f"guard.nonfinite={each}"
            for each in ("skip", "rollback")
            if policy == "stop" and not skipped
        ]
        ways += ["guard.patience larger"] if after else []
        return (
            f"step {record['step']}: loss {record['loss']:.6g}, gradient norm {record['gradient_norm']:.6g}{after}{batch}; to go on from the newest "
            f"checkpoint: meshdsl train --resume --out {self._folder}, with {', '.join(ways)} or a lower optimizer.learning_rate"
        )

    def _save(self, step: int) -> Path | None:
        """The file that the batch of `step` is in; None where it is not kept any more, or as many were saved as are of use."""
        batch = next((batch for number, batch in self._batches if number == step), None)
        if batch is None or self._saved > self._guard.patience:
            return None
        self._saved += 1
        process = f"-process-{hosts.index()}" if hosts.count() > 1 else ""
        path, number = self._folder / f"nonfinite-{step}{process}.npz", 1
        while path.exists():  # after a roll-back the same step may fail with another batch
            number += 1
            path = self._folder / f"nonfinite-{step}{process}-{number}.npz"
        try:
            np.savez(path, **batch)
        except OSError as error:  # the reason to stop is worth more than the file
            print(f"{path}: cannot be written: {error.strerror}", file=sys.stderr)
            return None
        return path


class Watchdog:
    """Ends the process when a step does not end: a context manager, with a thread of its own.

    A collective that one device never joins waits for ever. Then the stacks of all threads are written to stderr and to
    `hang-PROCESS.txt`, and the process exits with the code HUNG, so that whoever started it can start it again.

    Args:
      minutes: patience from one beat to the next, three times as much until the first; 0 means for ever.
      folder: of the run.
    """

    def __init__(self, minutes: float, folder: Path):
        self._patience, self._folder = minutes * 60, folder
        self._step, self._limit, self._since = 0, self._patience * _FIRST, time.monotonic()
        self._over = threading.Event()
        self._thread = (
            threading.Thread(target=self._look, name="watchdog", daemon=True) if minutes else None
        )

    def beat(self, step: int) -> None:
        """The loop is well, and was last at `step`: something that the devices computed has arrived. That a step was started proves nothing."""
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

    def _look(self) -> None:
        left = self._limit
        while not self._over.wait(
            min(left, self._patience)
        ):  # not longer: the limit becomes less with the first beat
            left = self._since + self._limit - time.monotonic()
            if left <= 0:
                self._end()

    def _end(self) -> None:
        try:
            path = self._folder / f"hang-{hosts.index()}.txt"
            said = (
                f"process {hosts.index()}: nothing has come after step {self._step} for {self._limit / 60:g} minutes (guard.timeout); "
                f"the run is ended with exit code {HUNG}, and can be resumed; the stacks of all threads, also in {path}:\n{_stacks()}"
            )
            # In threads, because what the step waits for may be the very file system that these write to.
            told = [
                threading.Thread(target=tell, args=(said,), daemon=True)
                for tell in (_to_stderr, partial(_to_file, path))
            ]
            for each in told:
                each.start()
            until = time.monotonic() + _TELLING
            for each in told:
                each.join(max(0.0, until - time.monotonic()))
        finally:
            os._exit(HUNG)  # whatever hangs would hold up an orderly end


def _stacks() -> str:
    """Of all threads. By way of memory: faulthandler lets no other thread run until the system has taken what it writes."""
    with os.fdopen(os.memfd_create("stacks"), "w+", encoding="utf-8", errors="replace") as file:
        faulthandler.dump_traceback(file, all_threads=True)
        file.seek(0)
        return file.read()


def _to_stderr(said: str) -> None:
    with contextlib.suppress(Exception):  # closed, or nobody reads any more
        sys.stderr.write(said)
        sys.stderr.flush()


def _to_file(path: Path, said: str) -> None:
    with contextlib.suppress(OSError):
        path.write_text(said, encoding="utf-8")
