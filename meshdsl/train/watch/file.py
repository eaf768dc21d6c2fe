"""`metrics.jsonl`: one JSON object per step, in order, whatever was killed and resumed.

A file is only ever appended to, a whole line at a time. A run that was killed leaves records of steps after its newest checkpoint,
and perhaps half a line; both go when the run is resumed, by one rename, so that another kill at that moment loses nothing.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

Record = dict[str, Any]
_STEP = re.compile(rb'\{"step": (\d+)[,}].*\}\n')


class MetricsFile:
    """The metrics of a run.

    Args:
      done: how many steps are done; records of later ones are dropped.
    """

    def __init__(self, path: Path, done: int):
        self.path = path
        self._open(done)

    def _open(self, done: int) -> None:
        if self.path.exists():
            keep_until(self.path, done)
        self._file = self.path.open("a", buffering=1, encoding="utf-8")

    def write(self, record: Record) -> None:
        self._file.write(json.dumps(record) + "\n")

    def rewind(self, done: int) -> None:
        """Drop the records of steps after `done`."""
        self._file.close()
        self._open(done)

    def close(self) -> None:
        self._file.close()


def keep_until(path: Path, done: int) -> None:
    """Leave only the whole records of the first `done` steps in the file at `path`."""
    part = path.with_name(path.name + ".part")
    with path.open("rb") as old, part.open("wb") as new:
        new.writelines(line for line in old if (found := _STEP.fullmatch(line)) and int(found[1]) <= done)
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
