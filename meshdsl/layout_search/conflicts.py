"""Constraints that no layout can obey: one error, which names the smallest set in conflict."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from meshdsl.dims import Dim
from meshdsl.errors import MeshDSLError, either, nearest
from meshdsl.figures import byte_words
from meshdsl.layout import LEVELS, Rule
from meshdsl.layout_search.axis_names import known_axes, known_dims
from meshdsl.layout_search.constraint_texts import parse_never
from meshdsl.layout_search.constraints import Constraints, Part, parts, together
from meshdsl.layout_search.obeys import Never, host_devices, sizes_within_host
from meshdsl.machine.target import Target


@dataclass(frozen=True)
class Facts:
    """What is known of a workload and its machine before any layout is priced.

    Attributes:
      dims: the sizes of each dim that a rule may name; none for one whose size is not known.
      remats: the values of `model.remat` that there are; empty where there is no such setting.
      batch: rows of a step; 0 where the workload has no setting of that kind.
    """

    target: Target
    dims: Mapping[str, tuple[int, ...]]
    remats: tuple[str, ...] = ()
    batch: int = 0
    groups: int = field(init=False)

    def __post_init__(self) -> None:
        """`groups`: how many slices there are, or nodes."""
        t = self.target
        found = t.slices if t.chip.kind == "tpu" else (*t.shape, 1)[1]
        object.__setattr__(self, "groups", found)


@dataclass(frozen=True)
class Least:
    """The candidate that needs the least memory.

    Attributes:
      bytes: that it needs on one device, with what an estimate must leave free.
      words: the candidate, in words: `data=4, fsdp, model.remat=full`.
    """

    bytes: int
    words: str = ""


def dims_by_name(dims: Iterable[Dim]) -> dict[str, tuple[int, ...]]:
    """The sizes of each of `dims`, by name."""
    found: dict[str, dict[int, None]] = {}
    for dim in dims:
        found.setdefault(dim.name, {})[dim.size] = None
    return {name: tuple(sizes) for name, sizes in found.items()}


def check(c: Constraints, facts: Facts) -> None:
    """Raise a MeshDSLError where no layout can obey, as far as that shows without pricing any.

    Raises:
      MeshDSLError: a dim or a value that there is not, with the nearest known; or constraints that
        contradict each other or the machine: it names the smallest set of them that does.
    """
    _check_names(c, facts)
    if obstacle(c, facts):
        raise _conflict(c, facts, lambda some: obstacle(some, facts))


def nothing_fits(
    c: Constraints, facts: Facts, least: Callable[[Constraints], Least | None]
) -> MeshDSLError:
    """The error for a search that has found no layout that fits.

    It names the smallest set of constraints of which one must go. Where none is to blame, the model
    needs more devices.

    Args:
      least: the candidate under some constraints that needs the least memory; None where there is
        none at all. It is called at most once for each constraint, and one time more.
    """
    capacity = facts.target.chip.hbm or 0
    known: dict[str, Least | None] = {}

    def too_large(some: Constraints) -> str:
        if reason := obstacle(some, facts):
            return reason
        budget = capacity if some.memory is None else min(some.memory, capacity or some.memory)
        # What the least is does not depend on how much memory there is.
        without = repr(replace(some, memory=None))
        if without not in known:
            known[without] = least(some)
        found = known[without]
        if found is None:
            return "no layout that obeys can be used for this model"
        if found.bytes <= budget:
            return ""
        words = f", {found.words}" if found.words else ""
        return (
            f"the least that a layout needs is {byte_words(found.bytes)}{words}, of "
            f"{byte_words(budget)}"
        )

    return _conflict(c, facts, too_large)


def smallest_conflict(
    some: Sequence[Part], infeasible: Callable[[Sequence[Part]], object]
) -> list[Part]:
    """The parts of an infeasible set of which none can be left out without making it feasible.

    Each part is left out in turn, and stays out where what is left is still infeasible.
    """
    left = list(some)
    for part in some:
        without = [other for other in left if other is not part]
        if infeasible(without):
            left = without
    return left


def _conflict(c: Constraints, facts: Facts, reason: Callable[[Constraints], str]) -> MeshDSLError:
    some = parts(c)
    # What nothing reaches is often the memory alone, which is seen at once.
    memory = [part for part in some if part.field == "memory"]
    if memory and reason(together(memory)):
        some = memory
    guilty = smallest_conflict(some, lambda left: reason(together(left)))
    why = reason(together(guilty))
    machine = f"{facts.target}, {facts.target.devices} device{'s' * (facts.target.devices > 1)}"
    if not guilty:
        return MeshDSLError(
            f"search: no layout does on {machine}: {why}; it takes more devices, or a smaller model"
            " or batch"
        )
    words = [part.words for part in guilty]
    if len(words) == 1:
        return MeshDSLError(f"search: no layout obeys {words[0]} on {machine}: {why}")
    both = "both " if len(words) == 2 else ""
    return MeshDSLError(
        f"search: no layout obeys {both}{', '.join(words[:-1])} and {words[-1]} on {machine}: "
        f"{why}; leave out one of them"
    )


# -- names -------------------------------------------------------------------------------------


def _check_names(c: Constraints, facts: Facts) -> None:
    """Raise a MeshDSLError for what the workload does not have."""
    for rule in c.kept:
        names = [] if rule.optional else [rule.dim]
        names += [rule.microbatches[0]] if rule.microbatches else []
        for name in names:
            if name not in facts.dims:
                raise _no_dim(f'keep "{rule.text}"', name, facts)
    for pattern in c.never:
        _, dim, axis = parse_never(pattern)
        # A pattern may speak of what another model has, so that it can be used for several.
        if dim not in ("*", *facts.dims) and dim not in known_dims():
            raise _no_dim(f'never "{pattern}"', dim, facts)
        _check_axis(f'never "{pattern}"', axis, c)
    for axis in c.within_host:
        _check_axis(f"within-host {axis}", axis, c)
    if c.remat is not None:
        for remat in c.remat:
            if not facts.remats:
                raise MeshDSLError(f"search: remat {remat}: this model has no setting `remat`")
            if remat not in facts.remats:
                raise MeshDSLError(
                    f"search: remat {remat}: there is no such value of `model.remat`"
                    f"{nearest(remat, facts.remats)}"
                )
    for count in c.microbatches or ():
        if not facts.batch:
            raise MeshDSLError(
                f"search: microbatches {count}: this function has no setting `microbatches`"
            )
        if facts.batch % count:
            raise MeshDSLError(
                f"search: microbatches {count}: a batch of {facts.batch} does not divide into "
                "so many"
            )


def _check_axis(where: str, axis: str, c: Constraints) -> None:
    """Raise a MeshDSLError for an axis that no layout of this search would have."""
    named = known_axes() | {rule.axis for rule in c.kept} | set(c.sizes) | set(c.across)
    if axis != "*" and axis not in named:
        raise MeshDSLError(
            f"search: {where}: no layout has an axis `{axis}` here, and neither --mesh nor a rule "
            f"that is kept names it{nearest(axis, named)}"
        )


def _no_dim(where: str, dim: str, facts: Facts) -> MeshDSLError:
    return MeshDSLError(f"search: {where}: no dim `{dim}` in this model{nearest(dim, facts.dims)}")


# -- meshes and rules --------------------------------------------------------------------------


def obstacle(c: Constraints, facts: Facts) -> str:
    """Why no layout and no mesh can obey; empty where one can, before anything is priced."""
    return next(_obstacles(c, facts), "")


def _obstacles(c: Constraints, facts: Facts) -> Iterator[str]:
    never, sizes, devices = Never(c.never), c.sizes, facts.target.devices
    for rule in c.kept:
        if never(rule.level, rule.dim, rule.axis):
            yield f"`{rule.dim} -> {rule.axis}` is asked for, and not allowed"
    yield from _across_slices(c, facts)
    open_axes = {rule.axis for rule in c.kept} - set(sizes)
    larger = open_axes | {axis for axis, size in sizes.items() if size > 1}
    if len(larger) > c.axes:
        names = ", ".join(f"`{axis}`" for axis in sorted(larger))
        yield f"{names} are {len(larger)} axes larger than 1"
    product = math.prod(sizes.values())
    if devices % product:
        yield f"{product} does not divide {devices}"
        return
    host, legal = host_devices(facts.target), sizes_within_host(facts.target)
    of = "node" if facts.target.chip.kind == "gpu" else "host"
    for axis in c.within_host:
        if sizes.get(axis, 1) not in legal:
            yield (
                f"a {of} has {host} devices, and an axis within one may have a size of "
                f"{either(list(map(str, legal)))}"
            )
    inside = math.prod(sizes.get(axis, 1) for axis in c.within_host)
    if host % inside:
        yield f"a {of} has {host} devices, which {inside} does not divide"
    for rule in c.kept:
        if size := _uneven(rule, sizes.get(rule.axis, 1), facts):
            yield (
                f"`{rule.dim}`={size} does not divide over `{rule.axis}`={sizes[rule.axis]}, and "
                'nothing says uneven = "pad"'
            )
    for axis in sorted(larger - open_axes):
        if not _splits_something(axis, never, facts):
            yield f"no rule is left that splits anything over `{axis}`"
    rest = devices // product
    if not _rest_fits(c, facts, sorted(open_axes), rest, host // math.gcd(host, inside)):
        if open_axes:
            names = ", ".join(f"`{axis}`" for axis in sorted(open_axes))
            yield (
                f"there are no sizes above 1 for {names} that divide {rest} devices and what is to "
                "be split"
            )
        else:
            yield f"a factor of {rest} of the devices is left, and nothing may be split over it"


def _across_slices(c: Constraints, facts: Facts) -> Iterator[str]:
    """Why the axes across slices do not fit the slices."""
    asked = math.prod(c.sizes.get(axis, 1) for axis in c.across)
    tpu = facts.target.chip.kind == "tpu"
    what = "slice" if tpu else "node"
    if asked > 1 and (asked != facts.groups if tpu else facts.groups % asked):
        count = f"{facts.groups} {what}{'s' * (facts.groups > 1)}"
        yield f"there {'is' if facts.groups == 1 else 'are'} {count}, and {asked} are asked for"


def _uneven(rule: Rule, count: int, facts: Facts) -> int:
    """A size of the rule's dim that does not divide into so many parts; 0 where all do."""
    if rule.level != "rules" or rule.pads or rule.microbatches:
        return 0
    return next((size for size in facts.dims.get(rule.dim, ()) if size % count), 0)


def _rest_fits(
    c: Constraints, facts: Facts, open_axes: Sequence[str], rest: int, host: int
) -> bool:
    """Whether the axes without a size, and axes that may be added, can have the product `rest`."""
    if not open_axes:
        spare = c.axes - sum(size > 1 for size in c.sizes.values())
        return rest == 1 or (spare > 0 and _splits_something("", Never(c.never), facts))
    axis, *others = open_axes
    rules = [rule for rule in c.kept if rule.axis == axis]
    for size in range(2, rest + 1):
        inside = axis in c.within_host
        if (
            rest % size
            or (inside and (host % size or size not in sizes_within_host(facts.target)))
            or any(_uneven(rule, size, facts) for rule in rules)
        ):
            continue
        sized = Constraints(
            keep=c.keep,
            never=c.never,
            mesh={**c.sizes, axis: size},
            axes=c.axes,
            within_host=c.within_host,
        )
        if _rest_fits(sized, facts, others, rest // size, host // size if inside else host):
            return True
    return False


def _splits_something(axis: str, never: Never, facts: Facts) -> bool:
    """Whether there is a rule for `axis` that is allowed."""
    return any(not never(level, dim, axis) for level in LEVELS for dim in facts.dims)
