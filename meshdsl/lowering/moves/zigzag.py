"""`order = "zigzag"`: part i of n has the blocks i and 2n-1-i of 2n equal blocks of a dim.

In causal attention later queries see more keys. Where each part has one early and one late block,
all parts see equally many. With 4 parts:

    natural   0 1 | 2 3 | 4 5 | 6 7
    zigzag    0 7 | 1 6 | 2 5 | 3 4

The order nests, as the natural one does: where each part of a dim in zigzag order is itself cut in
zigzag order over more axes, the dim is in zigzag order over all of them.

Before a dim is cut in this order, its blocks are rearranged so that each part is a run of elements.
After parts in this order have been joined, the blocks are put back. So nothing more travels than in
natural order. Only where an op needs consecutive elements do the parts exchange blocks, by
ppermutes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from meshdsl.lowering import window_arrays
from meshdsl.lowering.moves.move import Axes, Move
from meshdsl.splits.windows import Piece


class Zigzag(Move):
    """Parts of two blocks each: one from the front and one from the back."""

    attribute = "order"
    name = "zigzag"
    words = "in zigzag order"
    only_rules = "is at rest, so in natural order"
    backward = MappingProxyType({"ppermute": "ppermute"})
    blocks = 2

    def runs(self, number, parts: int, size: int) -> list[tuple[Any, int]]:
        block = size // 2
        return [(number * block, block), ((2 * parts - 1 - number) * block, block)]

    def cut(self, x, at: int, parts: int) -> Any:
        def arranged(x):
            blocks = _blocks(x, at, (2, parts))
            early, late = (lax.index_in_dim(blocks, i, at, keepdims=False) for i in (0, 1))
            return jnp.stack([early, jnp.flip(late, at)], at + 1).reshape(x.shape)

        return _arranged(arranged, x, parts)

    def joined(self, x, at: int, parts: int) -> Any:
        def arranged(x):
            blocks = _blocks(x, at, (parts, 2))
            early, late = (lax.index_in_dim(blocks, i, at + 1, keepdims=False) for i in (0, 1))
            return jnp.concatenate([early, jnp.flip(late, at)], at).reshape(x.shape)

        return _arranged(arranged, x, parts)

    def reordered(
        self, x, at: int, axes: Axes, sizes: Mapping[str, int], send: Callable, *, into: bool
    ) -> Any:
        parts = math.prod(sizes[a] for a in axes)

        def exchanged(x):
            size = x.shape[at]
            pieces = self.pieces(parts, size, into=into)
            return window_arrays.exchanged(x, at, axes, parts, pieces, size, send)

        if not x.size or parts == 1:
            return x
        return window_arrays.of_words(exchanged, x)

    def pieces(self, parts: int, size: int, *, into: bool) -> list[Piece]:
        """The pieces that travel when parts go from natural order into this one, or back."""
        pieces, block = [], size // 2
        for part in range(parts):
            for place, (start, _) in enumerate(self.runs(part, parts, size)):
                home, there = divmod(start, size)
                piece = Piece(home, part, there, place * block, block)
                pieces.append(piece if into else Piece(part, home, place * block, there, block))
        return pieces


def _arranged(change: Callable, x, parts: int) -> Any:
    if not x.size or parts == 1:
        return x
    return window_arrays.of_words(change, x)


def _blocks(x, at: int, counts: tuple[int, int]) -> jax.Array:
    """The array with position `at` cut into blocks: `counts` of them, in two positions."""
    size = x.shape[at] // (counts[0] * counts[1])
    return x.reshape(*x.shape[:at], *counts, size, *x.shape[at + 1 :])
