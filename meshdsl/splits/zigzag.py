"""Zigzag order: part i of n has the blocks i and 2n-1-i of 2n equal blocks of a dim.

In causal attention later queries see more keys. Where each part has one early and one late block,
all parts see equally many. With 4 parts:

    natural   0 1 | 2 3 | 4 5 | 6 7
    zigzag    0 7 | 1 6 | 2 5 | 3 4

The order nests, as the natural one does: where each part of a dim in zigzag order is itself cut in
zigzag order over more axes, the dim is in zigzag order over all of them.
"""

from __future__ import annotations

from meshdsl.splits.windows import Piece


def blocks_of(parts: int) -> list[tuple[int, int]]:
    """For each part the numbers of its two blocks, in the order in which it has them."""
    return [(i, 2 * parts - 1 - i) for i in range(parts)]


def pieces(parts: int, block: int, *, to_zigzag: bool) -> list[Piece]:
    """The pieces by which the parts of a dim pass from one order to the other.

    Args:
      block: how many elements a block has.
      to_zigzag: from natural order to zigzag order; otherwise back.
    """
    found = []
    for part, blocks in enumerate(blocks_of(parts)):
        for place, number in enumerate(blocks):
            home, there = number // 2, number % 2 * block
            piece = Piece(home, part, there, place * block, block)
            back = Piece(part, home, place * block, there, block)
            found.append(piece if to_zigzag else back)
    return found
