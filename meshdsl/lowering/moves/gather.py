"""`move = "collective"`, of every rule that names no other: operands come whole, by gathers.

An operand is brought to the split of the loop by gathers of dims that it has in parts and slices of
dims that it has whole; `splits.changes` says over which axes. Gathers and slices come in two forms
each, which JAX differentiates to different things:

- a gather whose result varies over the axis has a psum_scatter in the backward pass, because each
  device then has its own term of the gradient; a gather whose result does not vary has a slice;
- a slice of an array that varies over the axis is free in the backward pass. A slice of copies
  would be a full-size psum of mostly zeros, so it states a transpose of its own, an all_gather.

So a gather or a slice over axes of both kinds is done in several runs of axes of one kind.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import groupby
from types import MappingProxyType
from typing import Any

from meshdsl.lowering import collectives
from meshdsl.lowering.derivatives import linear
from meshdsl.lowering.moves.move import NATURAL, Axes, Move
from meshdsl.splits.changes import Change


class Gather(Move):
    """The default move: gathers and slices. An op need state nothing for it."""

    name = "collective"
    backward = MappingProxyType({"all_gather": "psum_scatter", "slice": "all_gather"})

    def in_runs(self, change: Change, array, varies: frozenset[str]) -> list[Change]:
        """A gather or a slice cut up into several, each over axes of one kind, in their order.

        Args:
          varies: the axes over which the loop of the op is split.
        """
        if change.operation == "all_gather":
            runs = runs_alike(change.axes, varies)[::-1]  # the innermost first
        elif change.operation == "slice":
            runs = runs_alike(change.axes, collectives.varying(array))
        else:
            return [change]
        return [change._replace(axes=axes) for axes in runs]

    def whole(self, x, at: int, axes: Axes, varies: frozenset[str]) -> tuple[Any, str]:
        """The parts over `axes` joined, and the collective that this is in the backward pass."""
        backward = "" if varies.isdisjoint(axes) else self.backward["all_gather"]
        return collectives.all_gather(x, axes, at, varies=bool(backward)), backward

    def own(self, x, at: int, axes: Axes, sizes: Mapping[str, int], order: Move) -> tuple[Any, str]:
        """This device's part over `axes`, and the collective that this is in the backward pass."""
        parts = math.prod(sizes[a] for a in axes)
        copies = collectives.varying(x).isdisjoint(axes)
        backward = self.backward["slice"] if copies else ""
        order = order if parts > 1 else NATURAL

        def part(x):
            return order.taken(x, at, collectives.position(axes), parts)

        def gathered(ct):
            return order.joined(collectives.all_gather(ct, axes, at, varies=False), at, parts)

        return (linear(part, gathered, x) if copies else part(x)), backward


def runs_alike(axes: Axes, have: frozenset[str]) -> list[Axes]:
    """`axes` cut into runs: the axes of a run are all among `have`, or none of them is."""
    return [tuple(run) for _, run in groupby(axes, have.__contains__)]


GATHER = Gather()
