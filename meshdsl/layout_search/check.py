"""Constraints that no layout can obey: one error, which names the first of them that fails."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from meshdsl.errors import MeshDSLError, either, nearest
from meshdsl.figures import byte_words
from meshdsl.layout import LEVELS
from meshdsl.layout_search.axis_names import known_axes, known_dims
from meshdsl.layout_search.constraints import Constraints, kept_words, parse_never
from meshdsl.layout_search.found import Judged
from meshdsl.layout_search.judge import MARGIN
from meshdsl.layout_search.obeys import Never, host_devices, sizes_within_host
from meshdsl.layout_search.text import layout_words
from meshdsl.machine.target import Target


@dataclass(frozen=True)
class Facts:
    """What is known of a workload and its machine before any layout is estimated.

    Attributes:
      dims: the sizes of each dim that a rule may name.
      remats: the values of `model.remat` that there are; empty where there is no such setting.
      batch: rows of a step; 0 where the workload has no setting of that kind.
    """

    target: Target
    dims: Mapping[str, tuple[int, ...]]
    remats: tuple[str, ...] = ()
    batch: int = 0

    @property
    def machine(self) -> str:
        """The machine in words."""
        count = self.target.devices
        return f"{self.target}, {count} device{'s' * (count > 1)}"


def check(c: Constraints, facts: Facts) -> None:
    """Raise a MeshDSLError where no layout can obey, as far as that shows before any is estimated.

    Raises:
      MeshDSLError: a dim or a value that there is not, with the nearest known; or a constraint that
        contradicts another one or the machine.
    """
    _check_names(c, facts)
    for words, why in obstacles(c, facts):
        raise MeshDSLError(f"search: no layout obeys {words} on {facts.machine}: {why}")


def nothing_fits(c: Constraints, facts: Facts, least: Judged) -> MeshDSLError:
    """The error for a search that has found no layout that fits, and this one as the least."""
    needed = byte_words(int(least.peak / (1 - MARGIN)))
    found = f"the least that was found is {needed}, {layout_words(least.candidate)}"
    if c.memory is not None and c.memory < (facts.target.chip.hbm or c.memory + 1):
        return MeshDSLError(
            f"search: no layout obeys max-memory {byte_words(c.memory)} on {facts.machine}: {found}"
        )
    fewer = "" if c == Constraints(axes=c.axes) else ", or fewer constraints"
    return MeshDSLError(
        f"search: no layout does on {facts.machine}: {found}, of "
        f"{byte_words(facts.target.chip.hbm or 0)}; it takes more devices, or a smaller model or "
        f"batch{fewer}"
    )


# -- names -------------------------------------------------------------------------------------


def _check_names(c: Constraints, facts: Facts) -> None:
    """Raise a MeshDSLError for what the workload does not have."""
    for rule in c.kept:
        names = [] if rule.optional else [rule.dim]
        for name in [*names, *(rule.microbatches or ())[:1]]:
            if name not in facts.dims:
                raise _no_dim(f'keep "{rule.text}"', str(name), facts)
    axes = known_axes() | {rule.axis for rule in c.kept} | set(c.sizes) | set(c.across)
    asked = [(f"within-host {axis}", axis) for axis in c.within_host]
    for pattern in c.never:
        _, dim, axis = parse_never(pattern)
        # A pattern may speak of what another model has, so that it can be used for several.
        if dim not in ("*", *facts.dims) and dim not in known_dims():
            raise _no_dim(f'never "{pattern}"', dim, facts)
        asked.append((f'never "{pattern}"', axis))
    for where, axis in asked:
        if axis != "*" and axis not in axes:
            raise MeshDSLError(
                f"search: {where}: no layout has an axis `{axis}` here, and neither --mesh nor a "
                f"rule that is kept names it{nearest(axis, axes)}"
            )
    for remat in c.remat or ():
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


def _no_dim(where: str, dim: str, facts: Facts) -> MeshDSLError:
    return MeshDSLError(f"search: {where}: no dim `{dim}` in this model{nearest(dim, facts.dims)}")


# -- meshes and rules --------------------------------------------------------------------------


def obstacles(c: Constraints, facts: Facts) -> Iterator[tuple[str, str]]:
    """Each constraint that no layout can obey beside those above it, in words, and why."""
    never, sizes, devices = Never(c.never), c.sizes, facts.target.devices
    may_split = lambda axis: any(not never(level, d, axis) for level in LEVELS for d in facts.dims)
    product = 1
    for axis, size in sizes.items():
        product *= size
        if devices % product:
            yield c.size_words(axis), f"{product} does not divide {devices}"
            return
        if size > 1 and not may_split(axis):
            yield c.size_words(axis), f"no rule is left that splits anything over `{axis}`"
    yield from _across_slices(c, facts)
    larger = {axis for axis, size in sizes.items() if size > 1}
    rest = devices // product
    for rule in c.kept:
        words = kept_words(rule)
        if pattern := never(rule.level, rule.dim, rule.axis):
            yield words, f'never "{pattern}" rules it out'
        count = sizes.get(rule.axis, 1)
        uneven = [n for n in facts.dims.get(rule.dim, ()) if n % count]
        if uneven and rule.level == "rules" and not rule.pads and not rule.microbatches:
            yield (
                words,
                f"`{rule.dim}`={uneven[0]} does not divide over `{rule.axis}`={count}, and nothing "
                'says uneven = "pad"',
            )
        if rule.axis not in sizes and rest == 1:
            yield words, f"no devices are left for `{rule.axis}`"
        larger |= {rule.axis} - set(sizes)
    if len(larger) > c.axes:
        names = ", ".join(f"`{axis}`" for axis in sorted(larger))
        yield f"axes {c.axes}", f"{names} are {len(larger)} axes larger than 1"
    spare = len(larger) < c.axes and may_split("")
    if rest > 1 and larger <= set(sizes) and not spare:
        words = [f'never "{pattern}"' for pattern in c.never] if len(larger) < c.axes else []
        words = words or [f"axes {c.axes}"]
        yield (
            words[-1],
            f"a factor of {rest} of the devices is left, and nothing may be split over it",
        )
    yield from _within_host(c, facts)


def _across_slices(c: Constraints, facts: Facts) -> Iterator[tuple[str, str]]:
    """Axes across slices that do not fit the slices."""
    t = facts.target
    tpu = t.chip.kind == "tpu"
    groups = t.slices if tpu else (*t.shape, 1)[1]
    asked = 1
    for axis in c.across:
        asked *= c.sizes.get(axis, 1)
    if asked > 1 and (asked != groups if tpu else groups % asked):
        there = f"there {'is' if groups == 1 else 'are'} {groups} {'slice' if tpu else 'node'}"
        yield c.size_words(c.across[-1]), f"{there}{'s' * (groups > 1)}, and {asked} are asked for"


def _within_host(c: Constraints, facts: Facts) -> Iterator[tuple[str, str]]:
    """Axes that are too large for a host, alone or together."""
    host, legal = host_devices(facts.target), sizes_within_host(facts.target)
    of = "node" if facts.target.chip.kind == "gpu" else "host"
    inside = [c.sizes.get(axis, 1) for axis in c.within_host]
    for axis, size in zip(c.within_host, inside, strict=True):
        if size not in legal:
            may = either(list(map(str, legal)))
            why = f"a {of} has {host} devices, and an axis within one may have a size of {may}"
            yield f"within-host {axis}", f"{why}, not {size}"
    if host % (product := math.prod(inside)):
        why = f"a {of} has {host} devices, which {product} does not divide"
        yield f"within-host {c.within_host[-1]}", why
