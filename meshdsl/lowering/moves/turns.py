"""Turns of a loop: each turn works on one slice of a dim, such as one microbatch of the batch.

A rule with `microbatches` makes the turns. `Scope.taking_turns` then adds a rule of its own below
all rules of the layout, for example `batch -> 16 microbatches`, whose axis stands for the turns of
the loop and not for devices. So the law splits tensors over this axis as over any other. A dim that
is split over it is *in turns*: inside of the loop, a tensor has only the slice of this turn.

Slices are cut from a tensor in one certain split, the *home* of the dim. A tensor in another split
is brought home first, then cut, and the slice is brought to the split that is asked for: these are
the legs of its way (`legs_between`). JAX differentiates the slice as it stands. No collective runs
over turns, because the slices of other turns do not exist at the same time: an op that would need
such a collective is an error.

Where a dim in turns is renamed, or regrouped with others, the dim that has its elements afterwards
is in turns too (`follow`).
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from math import prod
from typing import NamedTuple

import jax
from jax import lax

from meshdsl.dims import Dim, Dims
from meshdsl.errors import MeshDSLError
from meshdsl.lowering.collectives import Axes
from meshdsl.splits.changes import Change, Split, padded_changes
from meshdsl.splits.regrouping import Group, best_splits
from meshdsl.tensor import Tensor


class Closures:
    """Tensors from outside of a loop in turns that its body uses, and what stands for them.

    Before slices are cut from a tensor, the tensor is brought home. If the body did that, it would
    be done again in each turn. So the body is traced once to learn which tensors it brings home.
    These are brought home before the loop begins, and the body is traced again.

    Attributes:
      away: tensors that were not at home when the body used them, each with its split at home. The
        body may have computed such a tensor itself.
    """

    def __init__(self) -> None:
        self.away: dict[Hashable, tuple[Tensor, Split]] = {}
        self._home: dict[Hashable, tuple[Tensor, Tensor]] = {}

    def met(self, x: Tensor, home: Split) -> None:
        """Note that the body has used `x`, and has brought it to the split `home`."""
        self.away[_identity(x)] = x, home

    def brought(self, x: Tensor, copy: Tensor) -> None:
        """From now on the body uses `copy`, which is at home, in the place of `x`."""
        self._home[_identity(x)] = x, copy

    def at_home(self, x: Tensor) -> Tensor:
        """The copy of `x` that was brought home; `x` itself if there is none."""
        _, found = self._home.get(_identity(x), (x, x))
        return found


def _identity(x: Tensor) -> Hashable:
    return id(x.stored), x.dims, x.placement


class Turn(NamedTuple):
    """A turn of a loop.

    Attributes:
      number: the number of this turn.
      count: how many turns there are.
      homes: the home of each dim in turns, by its name: the axes that split the dim when slices are
        cut. Each device cuts its own part of the dim, so a turn has elements of every part.
      closures: what the body takes from outside of the loop.
    """

    number: jax.Array
    count: int
    homes: dict[str, Axes]
    closures: Closures

    def slice_of(self, x, at: int) -> jax.Array:
        """This turn's slice of an array, along position `at`."""
        size = x.shape[at] // self.count
        return lax.dynamic_slice_in_dim(x, self.number * size, size, at)

    def block(self, dim: Dim, scope) -> int:
        """How many elements a turn has of each part of `dim` at home."""
        return dim.size // (scope.parts(self.homes[dim.name]) * self.count)

    def index_in_whole(self, index, dim: Dim, scope):
        """The index in the whole dim of an element that has this `index` in the turn's slice."""
        block = self.block(dim, scope)
        return (index // block * self.count + self.number) * block + index % block


def at_home(x: Tensor, scope) -> Tensor:
    """The copy of `x` that a loop in turns has brought home, see `Closures`; else `x` itself."""
    for turn in scope.turns.values():
        x = turn.closures.at_home(x)
    return x


def needs_all(name: str, rule: str, scope) -> MeshDSLError:
    """The error of an op that asks for the elements of other turns of a loop."""
    asked = f"{name}: this needs all of a dim that is cut into microbatches ("
    if scope.rest is not None and scope.rest.axis:
        cut = next(r for r in scope.layout.turns if r.axis == scope.rest.axis)
        return MeshDSLError(
            f'{asked}{cut}), and with schedule = "early" each microbatch goes back before the '
            "others have come: its loss is one term of a sum over all microbatches. Leave the "
            "schedule out"
        )
    return MeshDSLError(
        f"{asked}{rule}), and inside of the pipeline only one of them is there at a time; compute "
        "it outside of the scan, or let the body return each layer's sum as a result"
    )


def check_whole(name: str, x: Tensor) -> None:
    """Raise a MeshDSLError if `x` is one turn's slice, or one turn's term of a sum."""
    if x.placement is None or not x.placement.scope.turns:
        return
    scope = x.placement.scope
    every = (*x.pending, *(axis for axes in x.placement.axes for axis in axes))
    if axis := next((a for a in every if a in scope.turns), None):
        raise needs_all(name, str(next(r for r in scope.layout.turns if r.axis == axis)), scope)


def follow(name: str, x: Tensor, groups: Sequence[Group]) -> None:
    """Tell the scope which new dims of a regrouping are in turns, because an old dim was.

    Number the elements of a group in order, major first. The number of the turn is one digit of
    the number of an element. Each new dim has some of the digits, and the one that has the turn's
    is in turns. For example, where `batch` is in turns, (`batch`, `length`) may be merged to
    `tokens`: the turn is then a digit of the index in `tokens`.

    Raises:
      MeshDSLError: no new dim alone has the digit of the turn.
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
            place = prod(d.size for d in before) * scope.parts(home)
            outer = (*(axis for d in before for axis in split[d]), *home)
            found = _in_turns(place, outer, turn, group.new, scope)
            if found is None:
                raise needs_all(name, str(scope.rule((dim,), "rules", axis)), scope)
            scope.also_in_turns(axis, *found)


def _in_turns(place: int, outer: Axes, turn: Turn, dims: Dims, scope) -> tuple[Dim, Axes] | None:
    """The one of the new `dims` that has the digit of the turn, with its home; or None.

    Args:
      place: where the digit of the turn stands: how many values the digits before it have together.
      outer: the axes that decide the digits before it, major first.
    """
    end = 1
    for dim in dims:
        begin, end = end, end * dim.size
        inner = [outer[i:] for i in range(len(outer) + 1)]
        home = next((axes for axes in inner if begin * scope.parts(axes) == place), None)
        if home is not None and dim.size % (scope.parts(home) * turn.count) == 0:
            return dim, home
    return None


def regrouped(
    now: Split, then: Split, dims: Dims, out: Dims, groups: Sequence[Group], scope
) -> tuple[Split, Split]:
    """As `regrouping.best_splits`. Of dims in turns, it is the slices of a turn that are regrouped.

    The axes of turns are left out before, and added to the same dims afterwards.
    """
    if not scope.turns:
        return best_splits(now, then, dims, out, groups, scope)
    cut_dims, cut_now = scope.in_turn(dims, now)
    cut_out, cut_then = scope.in_turn(out, then)
    cut = dict(zip((*dims, *out), (*cut_dims, *cut_out), strict=True))
    all_cut = lambda dims: tuple(cut[d] for d in dims)
    cut_groups = [Group(all_cut(group.old), all_cut(group.new)) for group in groups]
    before, after = best_splits(cut_now, cut_then, cut_dims, cut_out, cut_groups, scope)
    turns = lambda axes: tuple(a for a in axes if a in scope.turns)
    with_turns = lambda split, whole: tuple(
        (*axes, *turns(own)) for axes, own in zip(split, whole, strict=True)
    )
    return with_turns(before, now), with_turns(after, then)


class Leg(NamedTuple):
    """A leg of the way of a tensor from one split to another.

    There is one leg, unless a dim of the tensor is cut into turns on the way. Then there are three:
    the first brings the tensor home, the second cuts this turn's slice, for which nothing travels,
    and the third brings the slice to the split at the end.

    Attributes:
      dims: the dims of the tensor. One that is in turns on this leg has the size of a slice.
      now, then: the splits at the beginning and at the end of the leg, without axes of turns.
      changes: the changes that lead from one to the other.
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
    joined = next((i for i, (a, b) in enumerate(turns) if a is not None and b is None), None)
    if joined is not None:
        axes = tuple(axis for axis in now[joined] if axis in scope.turns)
        return [_impossible(dims, now, Change("all_gather", axes, joined))]
    cut = next((i for i, (a, b) in enumerate(turns) if a is None and b is not None), None)
    before, now = scope.in_turn(dims, now)
    after, then_left = scope.in_turn(dims, then)
    if cut is None:
        return [_leg(before, now, then_left, scope, pending)]
    home = turns[cut][1].homes[dims[cut].name]
    others = lambda axes: tuple(axis for axis in axes if axis not in home)
    home_split = tuple(home if i == cut else others(axes) for i, axes in enumerate(now))
    axes = tuple(axis for axis in then[cut] if axis in scope.turns)
    return [
        _leg(before, now, home_split, scope, pending),
        Leg(after, home_split, home_split, [Change("slice", axes, cut)]),
        _leg(after, home_split, then_left, scope, ()),
    ]


def note_closure(x: Tensor, legs: list[Leg], split: Split, scope) -> None:
    """Note that the body of a loop in turns uses `x`, if `x` is brought home from other stages.

    Such a tensor is to be brought home before the loop begins, see `Closures`.

    Args:
      legs: the way of `x` to the split in which the body uses it.
      split: that split.
    """
    first = legs[0]
    changed = {axis for change in first.changes for axis in change.axes}
    if len(legs) > 1 and not changed.isdisjoint(scope.spent):
        turn = scope.turn_of(axis for axes in split for axis in axes)
        turn.closures.met(x, first.then)


def _leg(dims: Dims, now: Split, then: Split, scope, pending) -> Leg:
    return Leg(dims, now, then, padded_changes(dims, now, then, scope, pending))


def _impossible(dims: Dims, now: Split, change: Change) -> Leg:
    """A leg with a change over turns, which no collective can make: it will be refused."""
    return Leg(dims, now, now, [change])
