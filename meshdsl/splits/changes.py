"""The changes that lead from one split to another, in the order in which they run.

pending -> split    psum_scatter        split -> whole                  all_gather
pending -> whole    psum                split of another dim            all_to_all
whole -> split      slice (free)        other axes of the same dim      ppermute
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from meshdsl.dims import Dims

Split = tuple[tuple[str, ...], ...]  # for each dim of a tensor the axes that split it, major first
SUMS = ("psum", "psum_scatter")  # the changes that take a sum


class Change(NamedTuple):
    """One change of split: a collective, or a slice.

    Attributes:
      operation: psum, psum_scatter, all_gather, all_to_all, ppermute or slice.
      axes: over which it runs; for ppermute all axes of the dim, in the order that they had.
      dim: the number of the dim that is gathered, sliced, scattered or permuted; for all_to_all of
        the dim that becomes split.
      source: for all_to_all the number of the dim that was split.
      order: for ppermute the axes in the order that they get.
    """

    operation: str
    axes: tuple[str, ...]
    dim: int = -1
    source: int = -1
    order: tuple[str, ...] = ()


def changes(
    now: Split,
    then: Split,
    pending: tuple[str, ...] = (),
    fits: Callable[[int, tuple[str, ...]], bool] = lambda dim, axes: True,
) -> list[Change]:
    """The changes from the split `now`, with sums pending over `pending`, to the split `then`.

    Steps that shrink the array come first (psum_scatter, slice), all_to_all next, psum after
    that, all_gather last. The axes of a dim nest, major first, so only the innermost can be added
    or removed: where `then` wants another order, the axes that are wanted are added inside, put
    in order by one ppermute, and the others gathered.

    Args:
      fits: whether a dim may be split over these axes on the way.
    """
    return _changes([list(axes) for axes in now], [list(axes) for axes in then], [*pending], fits)


def _changes(now, then, pending: list[str], fits) -> list[Change]:
    """As `changes`; `now` and `pending` are what is left to do, and are changed on the way."""
    wanted = {axis for axes in then for axis in axes}
    found: list[Change] = []
    while True:
        change = (
            _shrink(now, then, pending)
            or _exchange(now, then)
            or _complete(now, then, pending, fits)
        )
        if change is None and pending and (whole := [a for a in pending if a not in wanted]):
            change = Change("psum", tuple(whole))
        change = change or _reorder(now, then, wanted) or _gather(now, then, wanted)
        if change is None:
            assert not pending and now == then, (now, then, pending)
            return found
        found.append(change)
        assert len(found) < 64, (now, then, pending, found)
        _apply(change, now, pending)


def padded_changes(
    dims: Dims, now: Split, then: Split, scope, pending: tuple[str, ...] = ()
) -> list[Change]:
    """The changes from `now` to `then`, of a tensor whose dims may be padded.

    Where the padding of a dim differs between the two splits, the dim is made whole first.
    """

    def fits(dim: int, axes: tuple[str, ...]) -> bool:
        return scope.padded(dims[dim], axes) == scope.padded(dims[dim], now[dim])

    whole = [
        i
        for i, (a, b) in enumerate(zip(now, then, strict=True))
        if a and b and a != b and not fits(i, b)
    ]
    if not whole:
        return changes(now, then, pending, fits)
    between = tuple(() if i in whole else axes for i, axes in enumerate(now))
    return [*changes(now, between), *changes(between, then, pending, fits)]


def _ready(now, then):
    """The dims whose split only lacks inner axes, with those axes."""
    for dim, (have, want) in enumerate(zip(now, then, strict=True)):
        if len(have) < len(want) and want[: len(have)] == have:
            yield dim, want[len(have) :]


def _shrink(now, then, pending) -> Change | None:
    used = {axis for axes in now for axis in axes}
    for dim, missing in _ready(now, then):
        scatter = _leading(missing, lambda a: a in pending)
        if scatter:
            return Change("psum_scatter", scatter, dim)
        part = _leading(missing, lambda a: a not in pending and a not in used)
        if part:
            return Change("slice", part, dim)
    return None


def _exchange(now, then) -> Change | None:
    for dim, missing in _ready(now, then):
        for source, have in enumerate(now):
            for n in range(min(len(have), len(missing)), 0, -1):
                if (
                    have[-n:] == missing[:n]
                    and then[source][: len(have) - n + 1] != have[: len(have) - n + 1]
                ):
                    return Change("all_to_all", tuple(missing[:n]), dim, source)
    return None


def _complete(now, then, pending, fits) -> Change | None:
    """Add the axes that a dim lacks inside those that it has, where these should not come first."""
    used = {axis for axes in now for axis in axes}
    for dim, (have, want) in enumerate(zip(now, then, strict=True)):
        missing = [a for a in want if a not in have]
        if not have or not missing or want[: len(have)] == have or not fits(dim, (*have, *missing)):
            continue
        if all(a in pending for a in missing):
            return Change("psum_scatter", tuple(missing), dim)
        if not used.intersection(missing) and not set(pending).intersection(missing):
            return Change("slice", tuple(missing), dim)
        for source, axes in enumerate(now):
            if axes[-len(missing) :] == missing and then[source][: len(axes)] != axes:
                return Change("all_to_all", tuple(missing), dim, source)
    return None


def _reorder(now, then, wanted) -> Change | None:
    """Put the axes of a dim that has all that it wants in order, those that leave innermost."""
    for dim, (have, want) in enumerate(zip(now, then, strict=True)):
        if want and set(want) <= set(have) and have[: len(want)] != want:
            leaving = sorted((a for a in have if a not in want), key=lambda a: a in wanted)
            return Change("ppermute", tuple(have), dim, order=(*want, *leaving))
    return None


def _gather(now, then, wanted) -> Change | None:
    for dim, (have, want) in enumerate(zip(now, then, strict=True)):
        if want[: len(have)] != have:
            common = 0
            while common < len(want) and common < len(have) and have[common] == want[common]:
                common += 1
            surplus = have[common:]
            dropped = _leading(surplus[::-1], lambda a: a not in wanted)[::-1]
            return Change("all_gather", dropped or (surplus[-1],), dim)
    return None


def _leading(axes, test) -> tuple[str, ...]:
    taken = []
    for axis in axes:
        if not test(axis):
            break
        taken.append(axis)
    return tuple(taken)


def _apply(change, now, pending) -> None:
    if change.operation in ("psum", "psum_scatter"):
        for axis in change.axes:
            pending.remove(axis)
    if change.operation in ("psum_scatter", "slice", "all_to_all"):
        now[change.dim] += change.axes
    if change.operation == "all_to_all":
        del now[change.source][-len(change.axes) :]
    if change.operation == "all_gather":
        del now[change.dim][-len(change.axes) :]
    if change.operation == "ppermute":
        now[change.dim] = list(change.order)
