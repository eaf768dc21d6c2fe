"""What a move is: one way in which the rules of a layout bring a tensor to an op.

A rule names a move in one of its attributes, `move = "ring"` or `order = "zigzag"`; an op never
does. It states two facts instead, and what it does not state is the safe default:

- of which dims its local function needs consecutive elements (`Nest.in_order`; by default of all);
- along which dims it can take operands part by part (`Nest.by_parts`; by default along none).

A `Move` says the rest: when it applies to a rule and a loop nest, what it does to an array, which
collective each of its own is in the backward pass, and in which words it is described. Each has a
file in this folder and a line in `table.TABLE`. Every method here does what is right for a move
that has nothing to say.
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
from meshdsl.lowering.scope import Scope
from meshdsl.program.recorder import Move as Recorded
from meshdsl.program.recorder import Op
from meshdsl.splits.changes import Split

Axes = tuple[str, ...]


class ByParts(NamedTuple):
    """That the local function of an op can take operands part by part along a dim.

    Attributes:
      dim: of the loop nest.
      operands: the dims of each operand that may come so.
      terms: where the result is a sum over devices, the function can make that part by part too.
      sent: dims whose elements the function can send to the devices that have the parts. Without
        any, the parts come to the elements.
    """

    dim: Dim
    operands: tuple[Dims, ...]
    terms: bool = False
    sent: Dims = ()


class Rules(NamedTuple):
    """The rules that split a loop nest: those of a scope at a level, but for spent axes.

    Attributes:
      spent: axes of a pending sum, which split nothing until it is taken.
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
        """The axes over which rules with this `move` split `dim` at rest; none for the others.

        They split it alike in tensors of all the dims of `carriers`, and other dims of the loop
        have `taken` them.
        """
        splits = set()
        for dims in carriers:
            rules = self.scope.layout.taken(dims, self.level)
            axes = self.scope.split(dims, self.level)[dims.index(dim)]
            splits.add(tuple(a for a in axes if a in taken and rules[a].move == move))
        (axes,) = splits if len(splits) == 1 else ((),)
        return axes if self.scope.parts(axes) > 1 else ()


class Stays(NamedTuple):
    """A dim that stays split in a loop as it is at rest, and the rule that says so."""

    dim: Dim
    axes: Axes
    why: str


class Move:
    """One way in which a rule brings a tensor to an op.

    Attributes:
      attribute: the attribute of a rule that names it.
      name: what it is called there.
      words: what is said of a rule that names it; nothing for the default.
      only_rules: why no rule but those of the list `rules` may name it; empty if all may.
      backward: for each collective that it makes, that which JAX makes of it in the backward pass.
      blocks: how many runs of consecutive elements a part has.
      view: what the local function sees of operands that come part by part.
      holds_parts: the loop splits a dim that comes part by part over no other axes.
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
        """The axes over which operands come in the parts that they have at rest.

        Args:
          free: the dims of the loop that the rules may split.
        """
        return ()

    def result_axes(
        self, fact: ByParts, dims: Dims, now: Axes, summed: Collection[str], rules: Rules
    ) -> Axes:
        """The axes over which a result that is a sum is made part by part.

        Args:
          dims: of the result.
          now: the axes of the loop that split the dim.
          summed: the axes over which the result is a sum.
        """
        return ()

    def staying(self, operand, other, dim: Dim) -> tuple[Stays, ...]:
        """The dims of an operand that stay in parts while elements of `dim` are looked up in it."""
        return ()

    # What follows is of an order of parts. That of a move which is no order is the natural one.

    def runs(self, number, parts: int, size: int) -> list[tuple[Any, int]]:
        """The runs of elements that a part has: the index of the first of each, and its size.

        Args:
          number: of the part; may be traced.
          size: of each part.
        """
        return [(number * size, size)]

    def taken(self, x, at: int, number, parts: int) -> jax.Array:
        """The part of this `number` of an array that has all elements at position `at`."""
        size = x.shape[at] // parts
        runs = [lax.dynamic_slice_in_dim(x, s, n, at) for s, n in self.runs(number, parts, size)]
        return jnp.concatenate(runs, at) if len(runs) > 1 else runs[0]

    def cut(self, x, at: int, parts: int) -> Any:
        """An array of all elements, arranged such that its equal runs are the parts."""
        return x

    def joined(self, x, at: int, parts: int) -> Any:
        """The inverse of `cut`."""
        return x

    def reordered(
        self, x, at: int, axes: Axes, sizes: Mapping[str, int], send: Callable, *, into: bool
    ) -> Any:
        """The array after devices have exchanged blocks: from natural order, or back to it.

        Args:
          send: called with an array and pairs of parts, from which and to which it goes.
          into: into this order; otherwise back.
        """
        return x


class Natural(Move):
    """Runs of a dim, one after the other: no word of a rule is needed for it."""

    attribute = "order"
    name = "natural"


NATURAL = Natural()


class Parts:
    """The parts of `dim`, over `axes`, of operands that come part by part.

    Attributes:
      axes: over which the parts lie.
      count: how many there are, which is also how many devices have one.
      all_parts: how many there are where the loop splits the dim besides.
      size: of each part, with padding.
      order: which elements each has.
    """

    def __init__(
        self, dim: Dim, outer: Axes, axes: Axes, scope: Scope, level: str, op: Op, order: Move
    ):
        """Parts of a dim.

        Args:
          outer: the axes over which the loop of the op splits `dim` besides.
          level: of the op.
        """
        self._dim, self._outer, self._scope, self._level, self._op = dim, outer, scope, level, op
        self.axes, self.order = axes, order
        self.count = scope.parts(axes)
        self.all_parts = scope.parts((*outer, *axes))
        self.size = scope.part(dim, (*outer, *axes))

    @property
    def key(self) -> tuple:
        """All that a local function can learn from this, but for the sizes of the mesh."""
        return self.axes, self._outer, self.order.name, self._why

    @cached_property
    def _why(self) -> str:
        return str(self._scope.rule((self._dim,), self._level, self.axes[0]))

    def has(self, dims: Dims) -> bool:
        """Whether an operand of these dims comes part by part."""
        return in_parts(dims, self._dim, self.axes, self._scope, self._level)


def in_parts(dims: Dims, dim: Dim, axes: Axes, scope: Scope, level: str) -> bool:
    """Whether the law splits `dim`, in a tensor of these dims, over all `axes`."""
    return dim in dims and set(axes) <= set(scope.split(dims, level)[dims.index(dim)])


def without_axes(split: Split, spent: Axes) -> Split:
    """`split` without the axes `spent`."""
    if not spent:
        return split
    return tuple([tuple([a for a in axes if a not in spent]) for axes in split])


def nbytes(x) -> int:
    return x.size * x.dtype.itemsize


def record(op: Op, scope, operation: str, axes, size: int, why: str, backward: str) -> None:
    """Write a move down, unless nothing travels: over axes of size 1, or of no elements."""
    if size and scope.parts(axes) > 1:
        op.moves.append(Recorded(operation, axes, size, why, backward))
