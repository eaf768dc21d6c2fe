"""Constraints that no layout can obey: one error, which names the first of them that fails."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

from meshdsl.errors import MeshDSLError, either, nearest
from meshdsl.figures import byte_words
from meshdsl.layout import LEVELS
from meshdsl.layout_search.axis_names import axes_of_dims, known_axes
from meshdsl.layout_search.constraints import Constraints, kept_words, parse_never
from meshdsl.layout_search.found import Judged
from meshdsl.layout_search.judge import MARGIN
from meshdsl.layout_search.obeys import host_devices, never, sizes_within_host
from meshdsl.layout_search.text import layout_words
from meshdsl.layout_search.workload import Workload
from meshdsl.machine.target import Target

Dims = Mapping[str, Sequence[int]]  # the sizes of each dim that a rule may name


def check(c: Constraints, workload: Workload, dims: Dims) -> None:
    """Raise a MeshDSLError where no layout can obey, as far as that shows before any is estimated.

    Raises:
      MeshDSLError: a dim or a value that there is not, with the nearest known; or a constraint that
        contradicts another one or the machine.
    """
    _check_names(c, dims)
    _check_settings(c, workload)
    for words, why in obstacles(c, workload.target, dims):
        machine = _machine(workload.target)
        raise MeshDSLError(f"search: no layout obeys {words} on {machine}: {why}")


def nothing_fits(c: Constraints, target: Target, least: Judged) -> MeshDSLError:
    """The error for a search that has found no layout that fits, and this one as the least."""
    needed = byte_words(int(least.peak / (1 - MARGIN)))
    found = f"the least that was found is {needed}, {layout_words(least.candidate)}"
    machine, hbm = _machine(target), target.chip.hbm
    if c.memory is not None and c.memory < (hbm or c.memory + 1):
        return MeshDSLError(
            f"search: no layout obeys max-memory {byte_words(c.memory)} on {machine}: {found}"
        )
    fewer = "" if c == Constraints(axes=c.axes) else ", or fewer constraints"
    return MeshDSLError(
        f"search: no layout does on {machine}: {found}, of {byte_words(hbm or 0)}; it takes more "
        f"devices, or a smaller model or batch{fewer}"
    )


def _machine(target: Target) -> str:
    return f"{target}, {target.devices} device{'s' * (target.devices > 1)}"


# -- names and settings ------------------------------------------------------------------------


def _check_names(c: Constraints, dims: Dims) -> None:
    """Raise a MeshDSLError for dims and axes that the workload does not have."""
    asked: list[tuple[str, str]] = []  # dims, each with the constraint that names it
    for rule in c.kept:
        names = [] if rule.optional else [rule.dim]
        asked += [(f'keep "{rule.text}"', n) for n in (*names, *(rule.microbatches or ())[:1])]
    axes = known_axes() | {rule.axis for rule in c.kept} | set(c.sizes) | set(c.across)
    named = [(f"within-host {axis}", axis) for axis in c.within_host]
    for pattern in c.never:
        _, dim, axis = parse_never(pattern)
        # A pattern may speak of what another model has, so that it can be used for several.
        asked += [(f'never "{pattern}"', dim)] if dim not in ("*", *axes_of_dims()) else []
        named += [(f'never "{pattern}"', axis)] if axis != "*" else []
    for where, dim in asked:
        if dim not in dims:
            near = nearest(dim, dims)
            raise MeshDSLError(f"search: {where}: no dim `{dim}` in this model{near}")
    for where, axis in named:
        if axis not in axes:
            raise MeshDSLError(
                f"search: {where}: no layout has an axis `{axis}` here, and neither --mesh nor a "
                f"rule that is kept names it{nearest(axis, axes)}"
            )


def _check_settings(c: Constraints, workload: Workload) -> None:
    """Raise a MeshDSLError for values of settings that the workload cannot have."""
    remats, rows = workload.choices.get("model.remat", ()), workload.rows
    for remat in c.remat or ():
        if remat not in remats:
            why = f"there is no such value of `model.remat`{nearest(remat, remats)}"
            why = why if remats else "this model has no setting `remat`"
            raise MeshDSLError(f"search: remat {remat}: {why}")
    for count in c.microbatches or ():
        if not rows or rows % count:
            why = f"a batch of {rows} does not divide into so many"
            why = why if rows else "this function has no setting `microbatches`"
            raise MeshDSLError(f"search: microbatches {count}: {why}")


# -- meshes and rules --------------------------------------------------------------------------


def obstacles(c: Constraints, target: Target, dims: Dims) -> Iterator[tuple[str, str]]:
    """Each constraint that no layout can obey beside those above it, in words, and why."""
    sizes, devices = c.sizes, target.devices
    may_split = lambda axis: any(
        not never(c.never, level, d, axis) for level in LEVELS for d in dims
    )
    product = 1
    for axis, size in sizes.items():
        product *= size
        if devices % product:
            yield c.size_words(axis), f"{product} does not divide {devices}"
            return
        if size > 1 and not may_split(axis):
            yield c.size_words(axis), f"no rule is left that splits anything over `{axis}`"
    yield from _across_slices(c, target)
    larger = {axis for axis, size in sizes.items() if size > 1}
    rest = devices // product
    for rule in c.kept:
        words = kept_words(rule)
        if pattern := never(c.never, rule.level, rule.dim, rule.axis):
            yield words, f'never "{pattern}" rules it out'
        count = sizes.get(rule.axis, 1)
        uneven = [n for n in dims.get(rule.dim, ()) if n % count]
        if uneven and rule.level == "rules" and not rule.pads and not rule.microbatches:
            parts = f"`{rule.dim}`={uneven[0]} does not divide over `{rule.axis}`={count}"
            yield words, f'{parts}, and nothing says uneven = "pad"'
        if rule.axis not in sizes and rest == 1:
            yield words, f"no devices are left for `{rule.axis}`"
        larger |= {rule.axis} - set(sizes)
    if len(larger) > c.axes:
        names = ", ".join(f"`{axis}`" for axis in sorted(larger))
        yield f"axes {c.axes}", f"{names} are {len(larger)} axes larger than 1"
    more = len(larger) < c.axes  # axes may be added
    if rest > 1 and larger <= set(sizes) and not (more and may_split("")):
        words = f'never "{c.never[-1]}"' if more and c.never else f"axes {c.axes}"
        yield words, f"a factor of {rest} of the devices is left, and nothing may be split over it"
    yield from _within_host(c, target)


def _across_slices(c: Constraints, target: Target) -> Iterator[tuple[str, str]]:
    """Axes across slices that do not fit the slices."""
    tpu = target.chip.kind == "tpu"
    groups = target.slices if tpu else (*target.shape, 1)[1]
    asked = math.prod(c.sizes.get(axis, 1) for axis in c.across)
    if asked > 1 and (asked != groups if tpu else groups % asked):
        there = f"there {'is' if groups == 1 else 'are'} {groups} {'slice' if tpu else 'node'}"
        yield c.size_words(c.across[-1]), f"{there}{'s' * (groups > 1)}, and {asked} are asked for"


def _within_host(c: Constraints, target: Target) -> Iterator[tuple[str, str]]:
    """Axes that are too large for a host, alone or together."""
    host, legal = host_devices(target), sizes_within_host(target)
    has = f"a {'node' if target.chip.kind == 'gpu' else 'host'} has {host} devices"
    inside = {axis: c.sizes.get(axis, 1) for axis in c.within_host}
    for axis, size in inside.items():
        if size not in legal:
            may = either(list(map(str, legal)))
            why = f"{has}, and an axis within one may have a size of {may}, not {size}"
            yield f"within-host {axis}", why
    if host % (product := math.prod(inside.values())):
        yield f"within-host {c.within_host[-1]}", f"{has}, which {product} does not divide"
