"""Tokens in memory-mapped files: only what is read is in memory, paged in by the system."""

from __future__ import annotations

import bisect
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from meshdsl.errors import MeshDSLError
from meshdsl.train.data.files import File


class TokenRange(NamedTuple):
    """The tokens from `start` to `stop` in a file of raw ids of one dtype."""

    path: Path
    dtype: str
    start: int
    stop: int


class Tokens:
    """The tokens of some ranges, joined end to end.

    Args:
      ranges: in the order in which they are joined.
      below: what every id must be less than; None where that is known already.
    """

    def __init__(self, ranges: Sequence[TokenRange], below: int | None = None):
        self._ranges = [each for each in ranges if each.stop > each.start]
        # A plain array on the mapped memory: slicing np.memmap itself takes ten times as long.
        self._arrays = [
            np.asarray(np.memmap(each.path, each.dtype, "r"))[each.start : each.stop]
            for each in self._ranges
        ]
        self._ends = np.cumsum([len(array) for array in self._arrays], dtype=np.int64).tolist()
        self._below = below

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    def read(self, start: int, stop: int) -> np.ndarray:
        """The tokens from `start` to `stop`, as int32.

        Raises:
          MeshDSLError: an id is too large, with its file and position.
        """
        pieces = []
        first = bisect.bisect_right(self._ends, start)
        last = bisect.bisect_left(self._ends, stop)
        for i in range(first, last + 1):
            before = self._ends[i] - len(self._arrays[i])
            begin = max(start - before, 0)
            piece = self._arrays[i][begin : stop - before]
            if self._below is not None and piece.max() >= self._below:
                path, dtype, range_start, _ = self._ranges[i]
                position = range_start + begin + int(np.argmax(piece >= self._below))
                raise MeshDSLError(
                    f"`{path}`: the token at position {position:,}, read as {dtype}, "
                    f"is not less than model.vocab={self._below}"
                )
            pieces.append(piece)
        return (pieces[0] if len(pieces) == 1 else np.concatenate(pieces)).astype(np.int32)

    def sample(self, reads: int = 64, length: int = 1024) -> list[np.ndarray]:
        """At most `reads` stretches of at most `length` tokens each, spread evenly."""
        starts = np.unique(
            np.linspace(0, max(0, len(self) - length), reads).astype(np.int64)
        ).tolist()
        return [self.read(start, min(start + length, len(self))) for start in starts]


def token_file_ranges(
    files: Sequence[File], dtype: str, held_out: float
) -> tuple[list[TokenRange], list[TokenRange]]:
    """The tokens of token files: what is trained on, and the end of each file, which is held out.

    Args:
      held_out: the fraction of each file that is held out.

    Raises:
      MeshDSLError: the size of a file is not a whole number of tokens.
    """
    ranges: tuple[list[TokenRange], list[TokenRange]] = ([], [])
    size = np.dtype(dtype).itemsize
    for file in files:
        if file.size % size:
            raise MeshDSLError(
                f"`{file.path}`: {file.size:,} bytes are no whole number of {dtype} tokens "
                f"of {size} bytes"
            )
        count = file.size // size
        border = count - int(count * held_out)
        ranges[0].append(TokenRange(file.path, dtype, 0, border))
        ranges[1].append(TokenRange(file.path, dtype, border, count))
    return ranges
