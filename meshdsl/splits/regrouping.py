"""Which splits a reshape keeps, and the cheapest way to one of those.

The elements of a group of dims are numbered through, major first. An axis that splits a dim of
the group decides one digit of that number: where the digit stands, the product of all sizes
before it, is what a dim of the result must have too if the axis is to split it without any
element moving. Where sizes do not allow that but the split is the outermost of its group, each
device has a run of consecutive numbers and needs another one, most of which it has: the rest
comes by `ppermute`.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from math import prod
from typing import NamedTuple

from meshdsl import dims as dim_algebra
from meshdsl.dims import Dim, Dims
from meshdsl.splits import windows
from meshdsl.splits.changes import Split, padded_changes
from meshdsl.splits.exchanges import exchanges

Axes = tuple[str, ...]
Placed = Mapping[Dim, Axes]  # for each dim the axes that split it


class Group(NamedTuple):
    """Dims of the operand and of the result whose elements are the same, in the same order."""

    old: Dims
    new: Dims


def best_splits(
    now: Split, then: Split, dims: Dims, out: Dims, groups: Sequence[Group], scope
) -> tuple[Split, Split]:
    """The splits of operand and result with which the fewest elements travel in all.

    Args:
      now, then: the splits that the operand has and that the result is to have.
      dims, out: dims of both; those in no group are kept.
    """
    wanted, best = dict(zip(out, then, strict=True)), None
    for before in _candidates(now, wanted, dims, groups, scope):
        after = kept(groups, dict(zip(dims, before, strict=True)), wanted, scope)
        if after is None:
            continue
        after = tuple(after[d] for d in out)
        price = [
            sum(prices)
            for prices in zip(
                _price(dims, now, before, scope),
                _price_within(groups, dims, before, out, after, scope),
                _price(out, after, then, scope),
                strict=True,
            )
        ]
        if best is None or price < best[0]:
            best = price, before, after
        if not any(price):
            break
    assert best is not None  # the split in which everything is whole is always kept
    return best[1:]


def kept(groups: Sequence[Group], before: Placed, wanted: Placed, scope) -> Placed | None:
    """The split of the result if nothing travels, or only the ends of runs; None if there is none.

    Args:
      wanted: decides among equal places, which only axes of size 1 have.
    """
    regrouped = {d for group in groups for d in group.old}
    after = {d: axes for d, axes in before.items() if d not in regrouped}
    for group in groups:
        split = [d for d in group.old if before[d]]
        found = (
            dict.fromkeys(group.new, ())
            if not split
            else _by_digits(group, before, wanted, scope) or _by_runs(group, before)
        )
        if found is None:
            return None
        after |= found
    return after


def _by_digits(group: Group, before: Placed, wanted: Placed, scope) -> Placed | None:
    """Each axis where the digit that it decides stands."""
    places, found, free = _places(group.new), {d: [] for d in group.new}, []
    for dim, (start, _) in _places(group.old).items():
        if before[dim] and scope.padded(dim, before[dim]) != dim.size:
            return None
        for axis in before[dim]:
            if (radix := scope.sizes[axis]) == 1:
                free.append(axis)
                continue
            at = next((d for d, (first, end) in places.items() if first <= start < end), None)
            if at is None or start != places[at][0] * scope.parts(found[at]):
                return None
            found[at].append(axis)
            start *= radix
    if free and not group.new:
        return None
    for axis in free:
        at = next((d for d in group.new if axis in wanted[d]), group.new[0])
        found[at].append(axis)
    placed = {d: _ordered(axes, wanted[d], scope) for d, axes in found.items()}
    return placed if all(scope.padded(d, axes) == d.size for d, axes in placed.items()) else None


def _places(dims: Dims) -> dict[Dim, tuple[int, int]]:
    """For each dim the place of its first digit, and the place after its last."""
    sizes = [d.size for d in dims]
    return {d: (prod(sizes[:i]), prod(sizes[: i + 1])) for i, d in enumerate(dims)}


def _ordered(axes: list[str], wanted: Axes, scope) -> Axes:
    """`axes` with those of size 1 where `wanted` has them, if the others keep their order."""
    order = tuple(a for a in wanted if a in axes)
    real = [[a for a in some if scope.sizes[a] > 1] for some in (order, axes)]
    return order if len(order) == len(axes) and real[0] == real[1] else tuple(axes)


def _by_runs(group: Group, before: Placed) -> Placed | None:
    """The axes of the outermost dim, if no other is split, on the outermost of the new dims."""
    old = [d for d in group.old if d.size > 1 or before[d]]
    new = [d for d in group.new if d.size > 1] or group.new[:1]
    if not new or any(before[d] for d in old[1:]):
        return None
    return {d: before[old[0]] if d == new[0] else () for d in group.new}


def runs(group: Group, have: int, want: int, parts: int) -> list[windows.Piece]:
    """The pieces by which parts with runs of `have` elements of the group get runs of `want`."""
    return windows.pieces([j * want for j in range(parts)], want, have, dim_algebra.size(group.old))


def _candidates(
    now: Split, wanted: Placed, dims: Dims, groups: Sequence[Group], scope
) -> Iterator[Split]:
    """Splits to which the operand could be brought.

    The first is the one that it has. In the others each axis is left, gathered, or moved to a dim
    where it may be of use.
    """
    yield now
    regrouped = {d for group in groups for d in group.old}
    outer = [
        next((d for d in group.old if d.size > 1), *group.old[:1]) for group in groups if group.old
    ]
    home = {axis: dim for dim, axes in zip(dims, now, strict=True) for axis in axes}
    aims = _aims(wanted, groups, scope)
    axes = list(dict.fromkeys([*(a for axes in wanted.values() for a in axes), *home]))
    choices = []
    for axis in axes:
        useful = [*outer, *(d for d in dims if d not in regrouped)] if axis in home else []
        choices.append(dict.fromkeys([home.get(axis), aims.get(axis), *useful, None]))
    ranks = [
        {a: i for i, a in enumerate(order)}
        for order in ([a for axes in now for a in axes] + axes, axes)
    ]
    seen = {now}
    for chosen in itertools.product(*choices):
        for rank in ranks:
            placed = {d: [] for d in dims}
            for axis, dim in zip(axes, chosen, strict=True):
                if dim is not None:
                    placed[dim].append(axis)
            split = tuple(
                tuple(sorted(placed[d], key=lambda a: rank.get(a, len(rank)))) for d in dims
            )
            if split not in seen:
                seen.add(split)
                yield split


def _aims(wanted: Placed, groups: Sequence[Group], scope) -> dict[str, Dim]:
    """For each axis that is to split the result, the dim of the operand that has its digit."""
    grouped = {d: group for group in groups for d in group.new}
    found = {}
    for dim, axes in wanted.items():
        start = _places(grouped[dim].new)[dim][0] if dim in grouped else 0
        for axis in axes:
            if dim not in grouped:
                found[axis] = dim
            else:
                places = _places(grouped[dim].old).items()
                found[axis] = next((d for d, (first, end) in places if first <= start < end), None)
            start *= scope.sizes[axis]
    return found


def _price(dims: Dims, now: Split, then: Split, scope) -> tuple[int, int]:
    """How many elements a device receives between two splits, and in how many collectives."""
    elements, collectives, split = 0, 0, list(now)
    for step in padded_changes(dims, now, then, scope):
        parts = scope.parts(step.axes)
        have = _elements(dims, split, scope)
        match step.operation:
            case "all_gather":
                split[step.dim] = split[step.dim][: -len(step.axes)]
                have = _elements(dims, split, scope)
            case "all_to_all":
                split[step.source] = split[step.source][: -len(step.axes)]
                split[step.dim] += step.axes
            case "slice":
                split[step.dim] += step.axes
                continue
            case "ppermute":
                split[step.dim] = step.order
        elements += have - have // parts if step.operation != "ppermute" else have
        collectives += parts > 1
    return elements, collectives


def _price_within(
    groups: Sequence[Group], dims: Dims, before: Split, out: Dims, after: Split, scope
) -> tuple[int, int]:
    """As `_price`, for what travels where runs end elsewhere."""
    given, got = dict(zip(dims, before, strict=True)), dict(zip(out, after, strict=True))
    elements, collectives = 0, 0
    for group in groups:
        have = _elements(group.old, [given[d] for d in group.old], scope)
        want = _elements(group.new, [got[d] for d in group.new], scope)
        if have != want:
            parts = scope.parts([a for d in group.old for a in given[d]])
            travels = exchanges([p for p in runs(group, have, want, parts) if p.source != p.target])
            others = _elements(dims, before, scope) // have
            elements += others * sum(max(p.length for p in exchange) for exchange in travels)
            collectives += len(travels)
    return elements, collectives


def _elements(dims: Dims, split, scope) -> int:
    return prod(scope.part(d, axes) for d, axes in zip(dims, split, strict=True))
