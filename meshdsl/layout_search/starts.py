"""Where a search begins: the shipped layouts on meshes of every size, with what must be kept."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import zip_longest

from meshdsl.layout import Layout, shipped
from meshdsl.layout_search.constraints import Constraints
from meshdsl.layout_search.obeys import never
from meshdsl.layout_search.plan import Plan, merged, plan_of, rule_of

_FIRST = (  # often the best
    *("fsdp", "fsdp-sequence", "experts-fsdp", "experts-exchange"),
    *("context", "fsdp-once", "data", "zero1", "hybrid-fsdp"),
)
_EXPERT = (4, 8)  # sizes that an axis of experts, whose weights it keeps from moving, begins with
_KEPT = (2, 4, 8)  # sizes of an axis that a kept rule adds to a layout
_NAMES = ("data", "model")  # of the axis of a dim that is split alone
_ALONE = 4  # dims are split alone

Start = tuple[Plan, str]  # with the name of the shipped layout that it is, or empty


def starts(
    devices: int, dims: Mapping[str, Sequence[int]], constraints: Constraints
) -> Iterator[list[Start]]:
    """Shipped layouts, each on its first mesh; then each on its second, and so on.

    The first mesh of a layout is the one whose second axis is the smallest. Rules of dims that the
    workload lacks are left out where they are optional, and a layout with another rule of that kind
    is of no use here. What `constraints` keep stands above.

    Args:
      dims: the sizes of each dim of the workload, those of the most work first.
    """
    each = [_of(name, devices, dims, constraints) for name in dict.fromkeys((*_FIRST, *shipped()))]
    alone = list(_alone(devices, dims, constraints))
    alone += _kept(Plan((), ()), devices, constraints)
    for found in zip_longest(*each, [alone], fillvalue=()):
        yield [start for some in found for start in some]


def _of(
    name: str, devices: int, dims: Mapping[str, Sequence[int]], constraints: Constraints
) -> Iterator[list[Start]]:
    """A shipped layout, the starts of one mesh after those of another."""
    layout = Layout.load(shipped()[name])
    if any(rule.dim not in dims and not rule.optional for rule in layout.parsed):
        return
    for sizes in _meshes(tuple(layout.mesh), devices):
        plan = replace(plan_of(layout, sizes), dcn=())
        plan = plan.with_rules(x for x in plan.rules if x.dim in dims)
        if any(merged(plan)) and not (constraints.kept or constraints.sizes):
            return  # it is without the dims that make it what it is, as a pipeline's layers
        yield [(plan, name), *_kept(plan, devices, constraints)]


def _alone(
    devices: int, dims: Mapping[str, Sequence[int]], constraints: Constraints
) -> Iterator[Start]:
    """Each dim alone over all devices, as there may be dims of which no shipped layout speaks."""
    if devices == 1:
        yield Plan((), ()), ""
        return
    whole = [dim for dim, sizes in dims.items() if all(size % devices == 0 for size in sizes)]
    for dim in whole[:_ALONE]:
        axis = next((a for a in _NAMES if not never(constraints.never, "rules", dim, a)), _NAMES[0])
        yield Plan(((axis, devices),), (rule_of("rules", dim, axis),)), ""


def _meshes(axes: Sequence[str], devices: int) -> Iterator[dict[str, int]]:
    """All sizes above 1 whose product is `devices`, those first of which but one are small."""
    if len(axes) < 2:
        if axes or devices == 1:
            yield dict.fromkeys(axes, devices)
        return
    # The large axis is the one that a layout gives what is left: by custom that is `data`.
    small = [axis for axis in axes if axis != "data"][-1]
    divisors = [n for n in range(2, devices) if devices % n == 0]
    if small == "expert":
        divisors.sort(key=lambda n: (n not in _EXPERT, n))
    for size in divisors:
        for rest in _meshes([axis for axis in axes if axis != small], devices // size):
            sizes = {**rest, small: size}
            yield {axis: sizes[axis] for axis in axes}


def _kept(plan: Plan, devices: int, constraints: Constraints) -> Iterator[Start]:
    """A plan with the rules and sizes that must be kept, where the sizes can be made to fit."""
    if not (constraints.kept or constraints.sizes):
        return
    keep = constraints.keep or Layout()
    kept = plan_of(keep, {rule.axis: 2 for rule in keep.parsed}).rules
    there = {(k.level, k.dim, k.axis) for k in kept}
    others = (x for x in plan.rules if (x.level, x.dim, x.axis) not in there)
    whole = replace(plan.with_rules([*kept, *others]), dcn=constraints.across)
    for word, value in constraints.words.items():
        whole = whole.with_word(word, value)
    added = {x.axis for x in kept} - set(constraints.sizes) - set(dict(plan.sizes))
    for size in _KEPT if added else (1,):
        decided = constraints.sizes | dict.fromkeys(added, size)
        if (sizes := _fitted(dict(plan.sizes), decided, devices)) is not None:
            order = (*constraints.across, *sizes)
            yield whole.with_sizes({axis: sizes[axis] for axis in order if axis in sizes}), ""


def _fitted(
    sizes: Mapping[str, int], decided: Mapping[str, int], devices: int
) -> dict[str, int] | None:
    """`sizes` with those that are decided, and the largest other one made to fit the devices."""
    found = {**sizes, **decided}
    free = [axis for axis in found if axis not in decided]
    if not free and "data" in found:
        return found if math.prod(found.values()) == devices else None
    largest = max(free, key=found.__getitem__, default="data")
    others = math.prod(size for axis, size in found.items() if axis != largest)
    return None if devices % others else found | {largest: devices // others}
