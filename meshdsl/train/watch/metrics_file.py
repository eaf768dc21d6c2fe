"""`metrics.jsonl`: one JSON object per step, in order, whatever was killed and resumed.

A file is only ever appended to, a whole line at a time. A run that was killed leaves records of steps after its newest checkpoint,
and perhaps half a line; both go when the run is resumed, by one rename, so that another kill at that moment loses nothing.
"""

from __future__ import annotations

import errno
import json
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from meshdsl.errors import MeshDSLError

Record = dict[str, Any]
_STEP = re.compile(rb'\{"step": (\d+)[,}].*\}\n')


class MetricsFile:
    """The metrics of a run.

    Args:
      done: how many steps are done; records of later ones are dropped.

    Raises:
      MeshDSLError: by every method too, where the file cannot be written.
    """

    def __init__(self, path: Path, done: int):
        self.path = path
        with writing(path):
            self._open(done)

    def _open(self, done: int) -> None:
        if self.path.exists():
            keep_until(self.path, done)
        self._file = self.path.open("a", buffering=1, encoding="utf-8")

    def write(self, record: Record) -> None:
        with writing(self.path):
            self._file.write(json.dumps(record) + "\n")

    def rewind(self, done: int) -> None:
        """Drop the records of steps after `done`."""
        with writing(self.path):
            self._file.close()
            self._open(done)

    def close(self) -> None:
        with writing(self.path):  # a line that could not be written is tried again
            self._file.close()


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Makes an OSError into a MeshDSLError that names the file, `path` where the system names none, and says how to go on."""
    try:
        yield
    except OSError as error:
        mend = "free some" if error.errno in (errno.ENOSPC, errno.EDQUOT) else "mend that"
        raise MeshDSLError(
            f"{error.filename or path}: cannot be written: {error.strerror or error}; the newest checkpoint is whole; {mend} and go on by --resume"
        ) from None


def keep_until(path: Path, done: int) -> None:
    """Leave only the whole records of the first `done` steps in the file at `path`."""
    part = path.with_name(path.name + ".part")
    with path.open("rb") as old, part.open("wb") as new:
        new.writelines(
            line for line in old if (found := _STEP.fullmatch(line)) and int(found[1]) <= done
        )
        new.flush()
        os.fsync(new.fileno())
    part.replace(path)


def read_records(path: Path) -> Iterator[Record]:
    """The whole records of a metrics file; what is half written or damaged is passed over."""
    with path.open("rb") as file:
        for line in file:
            if _STEP.fullmatch(line):
                try:
                    yield json.loads(line)
                except ValueError:
                    continue
