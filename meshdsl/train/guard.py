"""What keeps a run from going wrong unseen: a folder without room, losses that are not finite, steps that never end."""

from __future__ import annotations

import collections
import faulthandler
import math
import os
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Self, TextIO

import numpy as np

from meshdsl import hosts
from meshdsl.errors import MeshDSLError
from meshdsl.plan.words import byte_words
from meshdsl.train import config
from meshdsl.train.watch import Record

HUNG = os.EX_TEMPFAIL  # 75: try again, says sysexits.h
_FIRST = 3  # so many times the patience for the first step, before which devices and hosts find each other
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

    All processes see the same losses and so judge alike; each saves its own rows of the batch.

    Args:
      folder: of the run, for `nonfinite-STEP.npz`; with several processes `nonfinite-STEP-process-I.npz`.
    """

    def __init__(self, guard: config.Guard, folder: Path):
        self._guard, self._folder = guard, folder
        self._batches: collections.deque[tuple[int, Mapping[str, np.ndarray]]] = collections.deque(maxlen=_KEPT)
        self._in_a_row = self._backs = self._saved = 0

    def keep(self, step: int, batch: Mapping[str, np.ndarray]) -> None:
        """Remember the host's part of the batch of `step` until its record comes."""
        self._batches.append((step, batch))

    def judge(self, record: Record | None) -> str:
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
            if "loss_scale" not in record:
                self._save(record["step"])
            return "go"
        if not skipped and self._guard.nonfinite == "rollback" and self._backs <= patience:
            self._save(record["step"])
            return "rollback"
        raise MeshDSLError(self._reason(record, skipped))

    def _reason(self, record: Record, skipped: bool) -> str:
        policy, patience = self._guard.nonfinite, f"guard.patience={self._guard.patience}"
        after = ""
        if skipped:
            after = f", the last of {self._in_a_row} steps in a row that were skipped ({patience})"
        elif policy == "rollback":
            after = f", and the run was rolled back {self._guard.patience} times before ({patience})"
        saved = self._save(record["step"])
        batch = f"; its batch is in {saved}" if saved else ""
        ways = [f"guard.nonfinite={each}" for each in ("skip", "rollback") if policy == "stop" and not skipped]
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
      minutes: patience with a step, three times as much with the first one; 0 means for ever.
      folder: of the run.
    """

    def __init__(self, minutes: float, folder: Path):
        self._patience, self._folder = minutes * 60, folder
        self._step, self._limit, self._since = 0, self._patience * _FIRST, time.monotonic()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look, name="watchdog", daemon=True) if minutes else None

    def beat(self, step: int) -> None:
        """The loop is well, and was last at `step`."""
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
        while not self._over.wait(left):
            left = self._since + self._limit - time.monotonic()
            if left <= 0:
                self._end()

    def _end(self) -> None:
        path = self._folder / f"hang-{hosts.index()}.txt"
        said = (
            f"process {hosts.index()}: nothing has come after step {self._step} for {self._limit / 60:g} minutes (guard.timeout); "
            f"the run is ended with exit code {HUNG}, and can be resumed; the stacks of all threads, also in {path}:\n"
        )
        self._report(sys.stderr, said)
        try:
            with path.open("w", encoding="utf-8") as file:
                self._report(file, said)
        finally:
            os._exit(HUNG)  # whatever hangs would hold up an orderly end

    def _report(self, file: TextIO, said: str) -> None:
        file.write(said)
        file.flush()
        faulthandler.dump_traceback(file, all_threads=True)
