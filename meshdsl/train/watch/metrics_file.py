"""`metrics.jsonl`: one JSON object per step, in order, also after a run was killed and resumed.

The file is only ever appended to, a whole line at a time. A run that is killed leaves the metrics
of steps after its newest checkpoint, and perhaps half a line. Both are dropped when the run is
resumed. The file is then replaced by one rename, so another kill at that moment loses nothing.
"""

from __future__ import annotations

import errno
import json
import os
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeGuard

from meshdsl.errors import MeshDSLError
from meshdsl.parsing import parse_json

StepMetrics = dict[str, Any]  # what a step measured, by name: `step`, its number, and numbers
_LARGE = 1e300  # sums of larger numbers may be infinite
_END = 2**16  # bytes at the end of a file that have some whole lines
_LINE = re.compile(rb'\{"step": (\d+)[,}].*\}\n')


class MetricsFile:
    """The metrics file of a run, to write.

    Args:
      done: how many steps are done; the metrics of later ones are dropped from the file.

    Attributes:
      dropped: what was dropped when the file was opened, or when it went back for the last time.

    Raises:
      MeshDSLError: the file cannot be written. Every method may raise this.
    """

    def __init__(self, path: Path, done: int):
        self.path = path
        with explained_write_errors(path):
            self._open(done)

    def _open(self, done: int) -> None:
        self.dropped = keep_until(self.path, done) if self.path.exists() else []
        self._file = self.path.open("a", buffering=1, encoding="utf-8")

    def write(self, metrics: StepMetrics) -> None:
        """Append a line."""
        with explained_write_errors(self.path):
            self._file.write(json.dumps(metrics) + "\n")

    def rewind(self, done: int) -> None:
        """Drop the metrics of steps after `done`."""
        with explained_write_errors(self.path):
            self._file.close()
            self._open(done)

    def close(self) -> None:
        """Close the file, which tries again to write a line that could not be written."""
        with explained_write_errors(self.path):
            self._file.close()


@contextmanager
def explained_write_errors(path: Path) -> Iterator[None]:
    """Turn an OSError of the block into a MeshDSLError that says how the run can go on.

    Args:
      path: named in the error where the system names no file.
    """
    try:
        yield
    except OSError as error:
        remedy = "free some" if error.errno in (errno.ENOSPC, errno.EDQUOT) else "mend that"
        raise MeshDSLError(
            f"{error.filename or path}: cannot be written: {error.strerror or error}; "
            f"the newest checkpoint is whole; {remedy} and go on by --resume"
        ) from None


def keep_until(path: Path, done: int) -> list[StepMetrics]:
    """Drop from a metrics file all steps after `done`, and lines that are damaged.

    Returns:
      The metrics of these steps.
    """
    part = path.with_name(path.name + ".part")
    dropped: list[bytes] = []
    with path.open("rb") as old, part.open("wb") as new:
        for line in old:
            if (found := _LINE.fullmatch(line)) and int(found[1]) <= done:
                new.write(line)
            else:
                dropped.append(line)
        new.flush()
        os.fsync(new.fileno())
    part.replace(path)
    return list(_metrics_of(dropped))


def read_metrics(path: Path) -> Iterator[StepMetrics]:
    """The metrics of each step in a metrics file; lines that are damaged are passed over."""
    with path.open("rb") as file:
        yield from _metrics_of(file)


def last_line(path: Path) -> StepMetrics | None:
    """The metrics of the last step in a metrics file that is whole; None where there is none."""
    if not path.is_file():
        return None
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - _END))
        lines = list(_metrics_of(file))
    return lines[-1] if lines else None


class MetricsReader:
    """Reads a metrics file again and again while it grows; only what is new is read each time.

    Args:
      keep: the metrics that are kept of each step, given their names.
    """

    def __init__(self, path: Path, keep: Callable[[str], bool]):
        self._path, self._keep = path, keep
        self._inode = self._read = 0
        self._lines: list[StepMetrics] = []

    def lines(self) -> list[StepMetrics]:
        """The metrics of all steps that are in the file now."""
        try:
            with self._path.open("rb") as file:
                found = os.fstat(file.fileno())
                if found.st_ino != self._inode or found.st_size < self._read:  # it was cut
                    self._inode, self._read, self._lines = found.st_ino, 0, []
                file.seek(self._read)
                new = file.read()
        except FileNotFoundError:
            return []
        whole = new[: new.rfind(b"\n") + 1]
        self._read += len(whole)
        self._lines += (
            {name: value for name, value in line.items() if self._keep(name)}
            for line in _metrics_of(whole.splitlines(keepends=True))
        )
        return self._lines


def _metrics_of(lines: Iterable[bytes]) -> Iterator[StepMetrics]:
    for line in lines:
        if _LINE.fullmatch(line):
            try:
                found = parse_json(line)
            except ValueError:
                continue
            if all(map(_is_number, found.values())):
                yield found


def _is_number(value: Any) -> bool:
    return isinstance(value, float) or (isinstance(value, int) and abs(value) < 2**63)


def is_finite(value: Any) -> TypeGuard[float]:
    """Whether a value that was read is a number that one can calculate with."""
    return _is_number(value) and abs(value) < _LARGE
