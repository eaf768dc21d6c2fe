"""What a move is: one way in which the rules of a layout bring a tensor to an op.

A rule names a move in one of its attributes, `move = "ring"` or `order = "zigzag"`. An op names
none. An op states two facts instead, each with a default that is always right:

- of which dims its local function needs consecutive elements (`Nest.in_order`; by default of all);
- along which dims it can take operands part by part (`Nest.by_parts`; by default along none).

A `Move` says the rest: when it applies to a rule and a loop nest, what it does to an array, what
each of its collectives becomes in the backward pass, and in which words it is described. Each move
has a file in this folder and a line in `table.TABLE`, and overrides the methods that concern it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import cached_property
from types import MappingProxyType
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from meshdsl.dims import Dim, Dims
from meshdsl.lowering.collectives import Axes
from meshdsl.lowering.scope import Scope
from meshdsl.program.recorder import Move as Recorded
from meshdsl.program.recorder import Op
from meshdsl.splits.changes import Split


class ByParts(NamedTuple):
    """The statement that the local function of an op can take operands part by part along a dim.

    Attributes:
      dim: a dim of the loop nest.
      operands: the dims of each operand that may come part by part.
      terms: whether the function can also compute a result that is a sum over devices part by part.
      sent: dims whose elements the function can send to the devices that have the parts. If there
        are none, the parts travel to the elements.
    """

    dim: Dim
    operands: tuple[Dims, ...]
    terms: bool = False
    sent: Dims = ()


class Rules(NamedTuple):
    """The rules that split a loop nest: those of a scope at a level, without some axes.

    Attributes:
      spent: the axes that are left out: those of a pending sum, until it is taken.
    """

    scope: Scope
    level: str
    spent: Axes = ()

    def split(self, dims: Dims) -> dict[Dim, Axes]:
        """For each of `dims` the axes that split it."""
        return dict(
            zip(dims, without_axes(self.scope.split(dims, self.level), self.spent), strict=True)
        )

    def parts_at_rest(
        self, move: str, dim: Dim, carriers: Sequence[Dims], taken: Collection[str]
    ) -> Axes:
        """The axes over which rules with this `move` split `dim` at rest in each of some tensors.

        They are empty where the tensors are not all split alike along `dim`.

        Args:
          carriers: the dims of each of the tensors.
          taken: the axes that other dims of the loop have taken. Only these are looked for: the
            loop itself could split `dim` over any other.
        """
        splits = set()
        for dims in carriers:
            rules = self.scope.layout.taken(dims, self.level)
            axes = self.scope.split(dims, self.level)[dims.index(dim)]
            splits.add(tuple(a for a in axes if a in taken and rules[a].move == move))
        (axes,) = splits if len(splits) == 1 else ((),)
        return axes if self.scope.parts(axes) > 1 else ()


class Stays(NamedTuple):
    """A dim that a loop keeps split as it is at rest.

    Attributes:
      why: the rules that say so, for the record.
    """

    dim: Dim
    axes: Axes
    why: str


class Move:
    """One way in which a rule brings a tensor to an op.

    Attributes:
      attribute: the attribute of a rule that names the move: "move" or "order".
      name: the value of that attribute.
      words: the description of a rule that names the move; empty for the default move.
      only_rules: if only rules of the list `rules` may name the move, what the other lists say of a
        tensor, as the end of the error message; else empty.
      backward: for each collective of the move, the collective that it is in the backward pass.
      blocks: how many runs of consecutive elements each part has.
      view: the class of the parts that the local function gets, if operands come part by part.
      holds_parts: whether the loop splits a dim that comes part by part over no further axes.
    """

    attribute = "move"
    name = ""
    words = ""
    only_rules = ""
    backward: Mapping[str, str] = MappingProxyType({})
    blocks = 1
    view: type[Parts]
    holds_parts = False

    def operand_axes(self, fact: ByParts, free: Dims, rules: Rules) -> Axes:
        """The axes of the parts, if operands come part by part by this move; else none.

        Args:
          fact: what the op has stated of a dim.
          free: the dims of the loop that the rules may split.
        """
        return ()

    def result_axes(
        self, fact: ByParts, dims: Dims, now: Axes, summed: Collection[str], rules: Rules
    ) -> Axes:
        """The axes of the parts, if a sum over devices is computed part by part; else none.

        Args:
          fact: what the op has stated of a dim.
          dims: the dims of the result.
          now: the axes that split the dim in the loop.
          summed: the axes over which the result is a sum.
        """
        return ()

    def staying(self, operand, other, dim: Dim) -> tuple[Stays, ...]:
        """The dims of an operand that stay split while elements along `dim` are looked up in it.

        Args:
          other: the Tensor of the indices to look up.
        """
        return ()

    # The following methods say which elements each part has. Here they say it of natural order,
    # which is right for every move that is not an order.

    def runs(self, number, parts: int, size: int) -> list[tuple[Any, int]]:
        """The runs of elements that a part has: of each run the first index, and the size.

        Args:
          number: the number of the part; may be traced.
          parts: how many parts there are.
          size: the size of each part.
        """
        return [(number * size, size)]

    def taken(self, x, at: int, number, parts: int) -> jax.Array:
        """Part `number` of an array that has all elements of the dim at position `at`."""
        size = x.shape[at] // parts
        runs = [lax.dynamic_slice_in_dim(x, s, n, at) for s, n in self.runs(number, parts, size)]
        return jnp.concatenate(runs, at) if len(runs) > 1 else runs[0]

    def cut(self, x, at: int, parts: int) -> Any:
        """An array with all elements, rearranged so that the parts are its runs of equal size."""
        return x

    def joined(self, x, at: int, parts: int) -> Any:
        """The inverse of `cut`."""
        return x

    def reordered(
        self, x, at: int, axes: Axes, sizes: Mapping[str, int], send: Callable, *, into: bool
    ) -> Any:
        """The array after devices have exchanged blocks: from natural order into this, or back.

        Args:
          axes: the axes that split the dim at position `at`.
          send: called with an array and pairs (source, target) of parts; returns what arrives.
          into: from natural order into this order; otherwise back.
        """
        return x


class Natural(Move):
    """The order that parts have by default: part i is the i-th run of elements."""

    attribute = "order"
    name = "natural"


NATURAL = Natural()


class Parts:
    """The parts of `dim`, over `axes`, of operands that come part by part.

    Attributes:
      axes: the axes over which the parts lie.
      count: how many parts there are along these axes: one on each device.
      all_parts: how many parts the whole dim has, if the loop splits it over other axes too.
      size: the size of each part, with padding.
      order: the order, which says which elements each part has.
    """

    def __init__(
        self, dim: Dim, outer: Axes, axes: Axes, scope: Scope, level: str, op: Op, order: Move
    ):
        """Parts of a dim.

        Args:
          outer: the axes over which the loop of the op splits `dim` too.
          level: the level whose rules split that loop.
        """
        self._dim, self._outer, self._scope, self._level, self._op = dim, outer, scope, level, op
        self.axes, self.order = axes, order
        self.count = scope.parts(axes)
        self.all_parts = scope.parts((*outer, *axes))
        self.size = scope.part(dim, (*outer, *axes))

    @cached_property
    def _why(self) -> str:
        return str(self._scope.rule((self._dim,), self._level, self.axes[0]))

    def has(self, dims: Dims) -> bool:
        """Whether an operand with these dims comes part by part."""
        return in_parts(dims, self._dim, self.axes, self._scope, self._level)


def in_parts(dims: Dims, dim: Dim, axes: Axes, scope: Scope, level: str) -> bool:
    """Whether the law splits `dim` over all `axes` in a tensor with these dims."""
    return dim in dims and set(axes) <= set(scope.split(dims, level)[dims.index(dim)])


def without_axes(split: Split, spent: Axes) -> Split:
    """`split` without the axes `spent`."""
    if not spent:
        return split
    return tuple([tuple([a for a in axes if a not in spent]) for axes in split])


def nbytes(x) -> int:
    return x.size * x.dtype.itemsize


def record(op: Op, scope, operation: str, axes, size: int, why: str, backward: str) -> None:
    """Write a move down, unless nothing travels: axes of size 1, or no elements."""
    if size and scope.parts(axes) > 1:
        op.moves.append(Recorded(operation, axes, size, why, backward))
