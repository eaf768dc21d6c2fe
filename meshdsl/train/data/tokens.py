"""Tokens in memory-mapped files: what is read is paged in by the system, and nothing else is in memory."""

from __future__ import annotations

import bisect
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from meshdsl.errors import MeshDSLError
from meshdsl.train.data.files import File


class Run(NamedTuple):
    """The tokens from `start` to `stop` in a file."""

    path: Path
    dtype: str
    start: int
    stop: int


class Tokens:
    """The tokens of some files, joined end to end.

    Args:
      runs: of the files, in order.
      below: what every id has to be less than; None where ids are known to be.
    """

    def __init__(self, runs: Sequence[Run], below: int | None = None):
        self._runs = [run for run in runs if run.stop > run.start]
        # a plain array on the mapped memory: slicing np.memmap itself takes ten times as long
        self._arrays = [
            np.asarray(np.memmap(run.path, run.dtype, "r"))[run.start : run.stop]
            for run in self._runs
        ]
        self._ends = np.cumsum([len(array) for array in self._arrays], dtype=np.int64).tolist()
        self._below = below

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    def read(self, start: int, stop: int) -> np.ndarray:
        """The tokens from `start` to `stop`, int32.

        Raises:
          MeshDSLError: an id is too large, with the file and the position.
        """
        parts = []
        for i in range(
            bisect.bisect_right(self._ends, start), bisect.bisect_left(self._ends, stop) + 1
        ):
            before = self._ends[i] - len(self._arrays[i])
            first = max(start - before, 0)
            part = self._arrays[i][first : stop - before]
            if self._below is not None and part.max() >= self._below:
                run = self._runs[i]
                position = run.start + first + int(np.argmax(part >= self._below))
                raise MeshDSLError(
                    f"`{run.path}`: the token at position {position:,}, read as {run.dtype}, is not less than model.vocab={self._below}"
                )
            parts.append(part)
        return (parts[0] if len(parts) == 1 else np.concatenate(parts)).astype(np.int32)

    def sample(self, reads: int = 64, length: int = 1024) -> list[np.ndarray]:
        """At most `reads` stretches of at most `length` tokens, spread evenly."""
        starts = np.unique(
            np.linspace(0, max(0, len(self) - length), reads).astype(np.int64)
        ).tolist()
        return [self.read(start, min(start + length, len(self))) for start in starts]


def token_files(files: Sequence[File], dtype: str, held_out: float) -> tuple[list[Run], list[Run]]:
    """The tokens in files of them, in two parts: of each file its end, `held_out` of it, is for validation.

    Raises:
      MeshDSLError: a file is not so many whole tokens.
    """
    runs: tuple[list[Run], list[Run]] = ([], [])
    size = np.dtype(dtype).itemsize
    for file in files:
        if file.size % size:
            raise MeshDSLError(
                f"`{file.path}`: {file.size:,} bytes are no whole number of {dtype} tokens of {size} bytes"
            )
        count = file.size // size
        cut = count - int(count * held_out)
        runs[0].append(Run(file.path, dtype, 0, cut))
        runs[1].append(Run(file.path, dtype, cut, count))
    return runs
