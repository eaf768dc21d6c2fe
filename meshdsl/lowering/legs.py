"""The way of a tensor from one split to another, in legs.

It is one leg, but where the tensor gets to a loop in whose turns only a part of a dim is there
(`Scope.taking_turns`). Then the first leg leads to the split in which the parts are cut, on the
second one nothing travels and the part is taken, and on the third what is there gets on.
"""

from __future__ import annotations

from typing import NamedTuple

from meshdsl.dims import Dims
from meshdsl.splits.changes import Change, Split, padded_changes


class Leg(NamedTuple):
    """A leg of the way.

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


def away_from_home(legs: list[Leg], scope) -> Split | None:
    """The split in which parts are cut, of a way that leads there from devices of other stages."""
    first = legs[0]
    changed = {axis for change in first.changes for axis in change.axes}
    return None if len(legs) == 1 or changed.isdisjoint(scope.spent) else first.then


def _leg(dims: Dims, now: Split, then: Split, scope, pending) -> Leg:
    return Leg(dims, now, then, padded_changes(dims, now, then, scope, pending))


def _impossible(dims: Dims, now: Split, change: Change) -> Leg:
    """A leg with a change that no collective can make, because other parts are not there."""
    return Leg(dims, now, now, [change])
