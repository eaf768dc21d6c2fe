"""Windows: the run of elements of a split dim that each device needs, and who holds them.

Slices, pads, shifts, concatenations, halos of convolutions and stencils are windows that start at
static indices.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class Piece(NamedTuple):
    """A run of elements that one part of a dim holds and the window of one part needs."""

    source: int
    target: int
    read: int  # where it begins in the block of the source
    write: int  # where it begins in the window of the target
    length: int


def pieces(starts: Sequence[int], length: int, block: int, stop: int) -> list[Piece]:
    """Every piece of the windows `starts[j] ... starts[j] + length` of a dim in parts of `block`.

    Windows are cut to 0 ... `stop`.
    """
    found = []
    for target, start in enumerate(starts):
        at, end = max(start, 0), min(start + length, stop)
        while at < end:
            source = at // block
            until = min(end, (source + 1) * block)
            found.append(Piece(source, target, at - source * block, at - start, until - at))
            at = until
    return found
