"""From one placement to another, as a list of steps: pure, nothing here touches an array.

    pending -> split    psum_scatter        split -> whole                  all_gather
    pending -> whole    psum                split of another dim            all_to_all
    whole -> split      slice (free)        other axes of the same dim      ppermute
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

Split = tuple[tuple[str, ...], ...]  # for each dim of a tensor the axes that split it, major first


class Step(NamedTuple):
    operation: str
    axes: tuple[str, ...]  # for ppermute all axes of the dim, in the order that they had
    dim: int = -1  # gathered, sliced, scattered, permuted; for all_to_all the dim that becomes split
    source: int = -1  # for all_to_all the dim that was split
    order: tuple[str, ...] = ()  # for ppermute the axes in the order that they get


def plan(
    now: Split, then: Split, pending: tuple[str, ...] = (), fits: Callable[[int, tuple[str, ...]], bool] = lambda dim, axes: True
) -> list[Step]:
    """The steps from the split `now`, with sums pending over `pending`, to the split `then` with nothing pending.

    Steps that shrink the array come first (psum_scatter, slice), all_to_all next, psum after that, all_gather last.
    The axes of a dim nest, major first, so only the innermost can be added or removed: where `then` wants another
    order, the axes that are wanted are added inside, put in order by one ppermute, and the others gathered.

    Args:
      fits: whether a dim may be split over these axes on the way.
    """
    now = [list(axes) for axes in now]
    then = [list(axes) for axes in then]
    pending = list(pending)
    wanted = {axis for axes in then for axis in axes}
    steps: list[Step] = []
    while True:
        step = _shrink(now, then, pending) or _exchange(now, then) or _complete(now, then, pending, fits)
        if step is None and pending and (whole := [a for a in pending if a not in wanted]):
            step = Step("psum", tuple(whole))
        step = step or _reorder(now, then, wanted) or _gather(now, then, wanted)
        if step is None:
            assert not pending and now == then, (now, then, pending)
            return steps
        steps.append(step)
        assert len(steps) < 64, (now, then, pending, steps)
        _apply(step, now, pending)


def _ready(now, then):
    """The dims whose split only lacks inner axes, with those axes."""
    for dim, (have, want) in enumerate(zip(now, then, strict=True)):
        if len(have) < len(want) and want[: len(have)] == have:
            yield dim, want[len(have) :]


def _shrink(now, then, pending) -> Step | None:
    used = {axis for axes in now for axis in axes}
    for dim, missing in _ready(now, then):
        scatter = _leading(missing, lambda a: a in pending)
        if scatter:
            return Step("psum_scatter", scatter, dim)
        part = _leading(missing, lambda a: a not in pending and a not in used)
        if part:
            return Step("slice", part, dim)
    return None


def _exchange(now, then) -> Step | None:
    for dim, missing in _ready(now, then):
        for source, have in enumerate(now):
            for n in range(min(len(have), len(missing)), 0, -1):
                if have[-n:] == missing[:n] and then[source][: len(have) - n + 1] != have[: len(have) - n + 1]:
                    return Step("all_to_all", tuple(missing[:n]), dim, source)
    return None


def _complete(now, then, pending, fits) -> Step | None:
    """Add the axes that a dim lacks inside those that it has, where these are not the first that it wants."""
    used = {axis for axes in now for axis in axes}
    for dim, (have, want) in enumerate(zip(now, then, strict=True)):
        missing = [a for a in want if a not in have]
        if not have or not missing or want[: len(have)] == have or not fits(dim, (*have, *missing)):
            continue
        if all(a in pending for a in missing):
            return Step("psum_scatter", tuple(missing), dim)
        if not used.intersection(missing) and not set(pending).intersection(missing):
            return Step("slice", tuple(missing), dim)
        for source, axes in enumerate(now):
            if axes[-len(missing) :] == missing and then[source][: len(axes)] != axes:
                return Step("all_to_all", tuple(missing), dim, source)
    return None


def _reorder(now, then, wanted) -> Step | None:
    """Put the axes of a dim that has all that it wants in the wanted order, and those that leave inside."""
    for dim, (have, want) in enumerate(zip(now, then, strict=True)):
        if want and set(want) <= set(have) and have[: len(want)] != want:
            leaving = sorted((a for a in have if a not in want), key=lambda a: a in wanted)
            return Step("ppermute", tuple(have), dim, order=(*want, *leaving))
    return None


def _gather(now, then, wanted) -> Step | None:
    for dim, (have, want) in enumerate(zip(now, then, strict=True)):
        if want[: len(have)] != have:
            common = 0
            while common < len(want) and common < len(have) and have[common] == want[common]:
                common += 1
            surplus = have[common:]
            dropped = _leading(surplus[::-1], lambda a: a not in wanted)[::-1]
            return Step("all_gather", dropped or (surplus[-1],), dim)
    return None


def _leading(axes, test) -> tuple[str, ...]:
    taken = []
    for axis in axes:
        if not test(axis):
            break
        taken.append(axis)
    return tuple(taken)


def _apply(step, now, pending) -> None:
    if step.operation in ("psum", "psum_scatter"):
        for axis in step.axes:
            pending.remove(axis)
    if step.operation in ("psum_scatter", "slice", "all_to_all"):
        now[step.dim] += step.axes
    if step.operation == "all_to_all":
        del now[step.source][-len(step.axes) :]
    if step.operation == "all_gather":
        del now[step.dim][-len(step.axes) :]
    if step.operation == "ppermute":
        now[step.dim] = list(step.order)
