"""Turns of a loop: in each, one part of a dim is there. A rule with `microbatches` makes them.

`Scope.taking_turns` adds a rule below all rules of the layout, whose axis stands for turns and not
for devices. So the law splits tensors over it as over any axis. An array is cut by a slice, in the
split in which the parts are cut: a tensor goes there in legs, `legs_between`. JAX differentiates
the slice as it stands. No collective runs over turns, because the other parts are not there: what
would need one is an error.

Where such a dim is renamed, or regrouped with others, what comes of it is there in turns too.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from math import prod
from typing import NamedTuple

import jax
from jax import lax

from meshdsl.dims import Dim, Dims
from meshdsl.errors import MeshDSLError
from meshdsl.splits.changes import Change, Split, padded_changes
from meshdsl.splits.regrouping import Group, best_splits
from meshdsl.tensor import Tensor

Axes = tuple[str, ...]


class Closures:
    """Tensors from outside of a loop in turns, of which its body takes the parts that are there.

    A tensor that lies in another split than that in which parts are cut is brought to this one
    first, and in the body that would be done in each turn. So the body is traced to learn which
    tensors these are, and they are brought before the loop begins.

    Attributes:
      away: tensors that the body has met in another split, each with the one in which its parts are
        cut. The body may have made some of them itself.
    """

    def __init__(self) -> None:
        self.away: dict[Hashable, tuple[Tensor, Split]] = {}
        self._home: dict[Hashable, tuple[Tensor, Tensor]] = {}

    def met(self, x: Tensor, home: Split) -> None:
        """The body has brought `x` to the split `home`, in which its parts are cut."""
        self.away[_identity(x)] = x, home

    def brought(self, x: Tensor, there: Tensor) -> None:
        """From now on `there` is what the body uses in the place of `x`."""
        self._home[_identity(x)] = x, there

    def at_home(self, x: Tensor) -> Tensor:
        """What was brought in the place of `x`; else `x`."""
        _, found = self._home.get(_identity(x), (x, x))
        return found


def _identity(x: Tensor) -> Hashable:
    return id(x.stored), x.dims, x.placement


class Turn(NamedTuple):
    """A turn of a loop.

    Attributes:
      number: of the turn.
      count: how many turns there are.
      homes: for each dim of which a part is there, by name, the axes that split it where its parts
        are cut. In each turn there are elements of every one of these parts.
      closures: what the body takes from outside of the loop.
    """

    number: jax.Array
    count: int
    homes: dict[str, Axes]
    closures: Closures

    def part(self, x, at: int) -> jax.Array:
        """What is there in this turn of an array that is cut at position `at`."""
        size = x.shape[at] // self.count
        return lax.dynamic_slice_in_dim(x, self.number * size, size, at)

    def block(self, dim: Dim, scope) -> int:
        """How many elements of each part at home are there in a turn."""
        return dim.size // (scope.parts(self.homes[dim.name]) * self.count)

    def index_in_whole(self, index, dim: Dim, scope):
        """The index in the whole dim of an element, by its index among those of a turn."""
        block = self.block(dim, scope)
        return (index // block * self.count + self.number) * block + index % block


def at_home(x: Tensor, scope) -> Tensor:
    """What a loop in turns has brought in the place of `x`, see `Closures`; else `x`."""
    for turn in scope.turns.values():
        x = turn.closures.at_home(x)
    return x


def needs_all(name: str, rule: str) -> MeshDSLError:
    """The error of an op that asks for what is there in other turns of a loop."""
    return MeshDSLError(
        f"{name}: this needs all of a dim that is cut into microbatches ({rule}), and inside of "
        "the pipeline only one of them is there at a time; compute it outside of the scan, or let "
        "the body return each layer's sum as a result"
    )


def follow(name: str, x: Tensor, groups: Sequence[Group]) -> None:
    """Tell the scope which of the new dims of a regrouping are there in turns, as old ones are.

    The elements of a group are numbered through, major first. The number of the turn is a digit of
    that number, and it belongs to the new dim in whose range it stands.

    Raises:
      MeshDSLError: it stands in no new dim alone.
    """
    if x.placement is None or not x.placement.scope.turns:
        return
    scope, split = x.placement.scope, dict(zip(x.dims, x.placement.axes, strict=True))
    for group in groups:
        for i, dim in enumerate(group.old):
            if (turn := scope.turn_of(split[dim])) is None:
                continue
            axis = next(a for a in split[dim] if a in scope.turns)
            before, home = group.old[:i], turn.homes[dim.name]
            begins = prod(d.size for d in before) * scope.parts(home)
            outer = (*(axis for d in before for axis in split[d]), *home)
            found = _place_of(begins, outer, turn, group.new, scope)
            if found is None:
                raise needs_all(name, str(scope.rule((dim,), "rules", axis)))
            scope.also_in_turns(axis, *found)


def _place_of(begins: int, outer: Axes, turn: Turn, dims: Dims, scope) -> tuple[Dim, Axes] | None:
    """Among new `dims` the one that is there in turns, and the axes that split it at home.

    Args:
      begins: where the digit stands: the product of all sizes before it.
      outer: the axes that decide digits before it, major first.
    """
    end = 1
    for dim in dims:
        first, end = end, end * dim.size
        inner = [outer[i:] for i in range(len(outer) + 1)]
        own = next((axes for axes in inner if first * scope.parts(axes) == begins), None)
        if own is not None and dim.size % (scope.parts(own) * turn.count) == 0:
            return dim, own
    return None


def regrouped(
    now: Split, then: Split, dims: Dims, out: Dims, groups: Sequence[Group], scope
) -> tuple[Split, Split]:
    """As `regrouping.best_splits`, of what is there in a turn."""
    if not scope.turns:
        return best_splits(now, then, dims, out, groups, scope)
    there, now_left = scope.in_turn(dims, now)
    out_there, then_left = scope.in_turn(out, then)
    of = dict(zip((*dims, *out), (*there, *out_there), strict=True))
    cut = lambda some: tuple(of[d] for d in some)
    smaller = [Group(cut(group.old), cut(group.new)) for group in groups]
    before, after = best_splits(now_left, then_left, there, out_there, smaller, scope)
    turns = lambda axes: tuple(a for a in axes if a in scope.turns)
    again = lambda split, had: tuple(
        (*axes, *turns(own)) for axes, own in zip(split, had, strict=True)
    )
    return again(before, now), again(after, then)


class Leg(NamedTuple):
    """A leg of the way of a tensor from one split to another.

    There is one leg, unless the tensor gets into a loop in turns: then the first leads to the split
    in which the parts are cut, on the second nothing travels and the part is taken, and on the
    third what is there gets on.

    Attributes:
      dims: of the tensor, with the sizes that are there.
      now, then: its splits at the beginning and at the end.
      changes: that lead from one to the other.
    """

    dims: Dims
    now: Split
    then: Split
    changes: list[Change]


def legs_between(
    dims: Dims, now: Split, then: Split, scope, pending: tuple[str, ...] = ()
) -> list[Leg]:
    """The legs from the split `now`, with sums pending over `pending`, to the split `then`."""
    if not scope.turns:
        return [Leg(dims, now, then, padded_changes(dims, now, then, scope, pending))]
    if over_turns := tuple(axis for axis in pending if axis in scope.turns):
        return [_impossible(dims, now, Change("psum", over_turns))]
    turns = [(scope.turn_of(a), scope.turn_of(b)) for a, b in zip(now, then, strict=True)]
    lost = next((i for i, (a, b) in enumerate(turns) if a is not None and b is None), None)
    if lost is not None:
        axes = tuple(axis for axis in now[lost] if axis in scope.turns)
        return [_impossible(dims, now, Change("all_gather", axes, lost))]
    cut = next((i for i, (a, b) in enumerate(turns) if a is None and b is not None), None)
    (there, now), (after, then_left) = scope.in_turn(dims, now), scope.in_turn(dims, then)
    if cut is None:
        return [_leg(there, now, then_left, scope, pending)]
    home = turns[cut][1].homes[dims[cut].name]
    away = lambda axes: tuple(axis for axis in axes if axis not in home)
    between = tuple(home if i == cut else away(axes) for i, axes in enumerate(now))
    axes = tuple(axis for axis in then[cut] if axis in scope.turns)
    taken = Leg(after, between, between, [Change("slice", axes, cut)])
    first = _leg(there, now, between, scope, pending)
    return [first, taken, _leg(after, between, then_left, scope, ())]


def note_closure(x: Tensor, legs: list[Leg], split: Split, scope) -> None:
    """Note that a body uses `x` if the way to this split leads there from devices of other stages.

    A loop in turns brings such a tensor beforehand to where its parts are cut, see `Closures`.
    """
    first = legs[0]
    changed = {axis for change in first.changes for axis in change.axes}
    if len(legs) > 1 and not changed.isdisjoint(scope.spent):
        turn = scope.turn_of(axis for axes in split for axis in axes)
        turn.closures.met(x, first.then)


def _leg(dims: Dims, now: Split, then: Split, scope, pending) -> Leg:
    return Leg(dims, now, then, padded_changes(dims, now, then, scope, pending))


def _impossible(dims: Dims, now: Split, change: Change) -> Leg:
    """A leg with a change that no collective can make, because other parts are not there."""
    return Leg(dims, now, now, [change])
