"""Where a search begins: the shipped layouts on meshes of many sizes, with what must be kept."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest

from meshdsl.layout import Layout, shipped
from meshdsl.layout_search.constraints import Constraints
from meshdsl.layout_search.obeys import Never
from meshdsl.layout_search.plan import Line, Plan, merged, plan_of

_FIRST = (  # often the best
    *("fsdp", "fsdp-sequence", "experts-fsdp", "experts-exchange"),
    *("data", "zero1", "context", "hybrid-fsdp"),
)
_ALONE = 6  # dims are tried alone
_NAMES = ("data", "model")  # of the axis for that
_SECOND = (2, 4, 8)  # sizes that the second axis of a shipped layout begins with
_EXPERT = (4, 8, 2)  # the same of an axis of experts, most of whose weights it keeps from moving


@dataclass(frozen=True)
class Start:
    """A shipped layout on some mesh.

    Attributes:
      name: of the layout.
      pure: whether it is the layout as it is shipped, but for the sizes of its mesh.
    """

    plan: Plan
    name: str
    pure: bool


def starts(
    devices: int, dims: Mapping[str, Sequence[int]], constraints: Constraints
) -> Iterator[Start]:
    """Shipped layouts on meshes of `devices`, those first whose second axis is small.

    Lines that speak of dims that the workload lacks are left out where they are optional. A layout
    with another line of that kind is of no use here. What `constraints` keep stands above.

    Args:
      dims: the sizes of each dim of the workload.
    """
    # Each layout with one mesh before any has another one: a search may have little time.
    each = [_of(name, devices, dims, constraints) for name in dict.fromkeys((*_FIRST, *shipped()))]
    for found in zip_longest(*each):
        yield from (start for some in found if some for start in some)
    if constraints.kept or constraints.sizes:
        yield from (Start(p, "", False) for p in _kept(Plan((), ()), devices, constraints))
    # For dims of which no shipped layout speaks: each alone over all devices.
    never, whole = (
        Never(constraints.never),
        [name for name, sizes in dims.items() if all(n % devices == 0 for n in sizes)],
    )
    for dim in whole[:_ALONE]:
        axis = next((a for a in _NAMES if not never("rules", dim, a)), _NAMES[0])
        mesh = ((axis, devices),) if devices > 1 else ()
        yield Start(Plan(mesh, (Line("rules", dim, axis),) if mesh else ()), "", False)


def _of(
    name: str, devices: int, dims: Mapping[str, Sequence[int]], constraints: Constraints
) -> Iterator[list[Start]]:
    """A shipped layout, the starts of one mesh after those of another."""
    layout = Layout.load(shipped()[name])
    if any(rule.dim not in dims and not rule.optional for rule in layout.parsed):
        return
    for sizes in _meshes(tuple(layout.mesh), devices):
        plan = replace(plan_of(layout, sizes), dcn=())
        plan = replace(plan, lines=tuple(x for x in plan.lines if x.dim in dims))
        constrained = constraints.kept or constraints.sizes
        if any(merged(plan)) and not constrained:
            return  # it is without the dims that make it what it is, as a pipeline's layers
        others = _kept(plan, devices, constraints) if constrained else ()
        yield [Start(plan, name, True), *(Start(p, name, False) for p in others)]


def _meshes(axes: Sequence[str], devices: int) -> Iterator[dict[str, int]]:
    """Sizes of axes whose product is `devices`, of which all but the largest are small."""
    if not axes:
        if devices == 1:
            yield {}
        return
    if len(axes) == 1:
        yield {axes[0]: devices}
        return
    # The large axis is the one that a layout gives what is left: by custom that is `data`.
    small = [axis for axis in axes if axis != "data"][-1]
    for size in _EXPERT if small == "expert" else _SECOND:
        if devices % size == 0 and devices // size > 1:
            others = [axis for axis in axes if axis != small]
            for rest in _meshes(others, devices // size):
                sizes = {**rest, small: size}
                yield {axis: sizes[axis] for axis in axes}


def _kept(plan: Plan, devices: int, constraints: Constraints) -> Iterator[Plan]:
    """A plan with the lines and sizes that must be kept, where the sizes can be made to fit."""
    kept = (
        plan_of(constraints.keep, {r.axis: 2 for r in constraints.kept})
        if (constraints.keep and constraints.kept)
        else Plan((), ())
    )
    fixed = constraints.sizes
    named = {x.axis for x in kept.lines} - set(fixed)
    for size in _SECOND if named else (1,):
        decided = fixed | dict.fromkeys(named - set(dict(plan.sizes)), size)
        sizes = _fitted(dict(plan.sizes), decided, devices)
        if sizes is None:
            continue
        lines: tuple[Line, ...] = kept.lines + tuple(
            x
            for x in plan.lines
            if not any((x.level, x.dim, x.axis) == (k.level, k.dim, k.axis) for k in kept.lines)
        )
        across = constraints.across
        ordered = {a: sizes[a] for a in (*across, *sizes) if a in sizes}
        whole = replace(plan, lines=lines, sizes=tuple(ordered.items()), dcn=tuple(across))
        words = {w: str(v) for w, v in constraints.words.items() if w in ("gather", "sum")}
        for word, value in words.items():
            whole = whole.with_word(word, value)
        yield whole.with_sizes(dict(whole.sizes))


def _fitted(
    sizes: Mapping[str, int], decided: Mapping[str, int], devices: int
) -> dict[str, int] | None:
    """`sizes` with those that are decided, and the largest other one made to fit the devices."""
    found = dict(sizes) | dict(decided)
    free = [axis for axis in found if axis not in decided]
    product = 1
    for size in found.values():
        product *= size
    if product == devices:
        return found
    if not free:
        left = devices
        for size in decided.values():
            if left % size:
                return None
            left //= size
        return (
            found | ({"data": left} if "data" not in decided and left > 1 else {})
            if (left == 1 or "data" not in decided)
            else None
        )
    largest = max(free, key=lambda axis: found[axis])
    others = product // found[largest]
    if devices % others:
        return None
    return found | {largest: devices // others}
