"""Whether a layout obeys the constraints of a search, and if not, which one it breaks."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import chain
from types import MappingProxyType
from typing import Any

import numpy as np

from meshdsl.errors import MeshDSLError
from meshdsl.layout import LEVELS, Layout, Rule
from meshdsl.layout_search.constraints import Constraints, kept_words, parse_never
from meshdsl.layout_search.plan import attributes
from meshdsl.layout_search.workload import sizes_of
from meshdsl.machine.network import device_coordinates
from meshdsl.machine.target import HOST, Target

NO_SETTINGS: Mapping[str, Any] = MappingProxyType({})


def never(patterns: Iterable[str], level: str, dim: str, axis: str) -> str:
    """The first pattern by which a layout must not have a rule; empty if it may."""
    rules_out = lambda pattern: all(
        wanted in ("*", has)
        for wanted, has in zip(parse_never(pattern), (level, dim, axis), strict=True)
    )
    return next(filter(rules_out, patterns), "")


def broken(
    c: Constraints, target: Target, layout: Layout, settings: Mapping[str, str] = NO_SETTINGS
) -> str:
    """The first constraint that a layout breaks, in words; empty if it obeys.

    Each axis larger than 1 must have a rule: the devices along one without all do the same. Rules
    that are kept must be there with the attributes that they state, in their order; and
    above them no other rule of the same list may take their axis. An axis that they name is larger
    than 1, unless its size is given as 1.

    Args:
      target: on which axes lie within a host, or not.
      layout: with the size of each axis as a number.
      settings: of the run that go with it, such as `{"model.remat": "full"}`.
    """
    if c.remat is not None and settings.get("model.remat", c.remat[0]) not in c.remat:
        return f"remat {','.join(c.remat)}"
    if c.microbatches and int(settings.get("microbatches", 1)) not in c.microbatches:
        return f"microbatches {','.join(map(str, c.microbatches))}"
    return next(chain(_by_rules(c, layout), _by_mesh(c, target, layout)), "")


def _by_rules(c: Constraints, layout: Layout) -> Iterator[str]:
    """The constraints that the rules of a layout break."""
    for rule in layout.parsed:
        if pattern := never(c.never, rule.level, rule.dim, rule.axis):
            yield f'never "{pattern}"'
    for word, value in c.words.items():
        if getattr(layout, word) != value:
            yield f"keep {word} = {str(value).lower()}"
    for level in LEVELS:
        kept = [r for r in c.kept if r.level == level]
        if kept and (missed := _missed(kept, [r for r in layout.parsed if r.level == level])):
            yield kept_words(missed)
    ruled = {rule.axis for rule in layout.parsed}
    idle = [axis for axis, size in layout.mesh.items() if size != 1 and axis not in ruled]
    yield from (f"a rule for each axis, as for `{axis}`" for axis in idle)


def _by_mesh(c: Constraints, target: Target, layout: Layout) -> Iterator[str]:
    """The constraints that the mesh of a layout breaks."""
    sizes, decided = sizes_of(layout), c.sizes
    large = [axis for axis, size in sizes.items() if size > 1]
    for axis, size in decided.items():
        if sizes.get(axis, 1) != size:
            yield c.size_words(axis)
    for rule in c.kept:
        if rule.axis not in decided and rule.axis not in large:
            yield kept_words(rule)
    if len(large) > c.axes:
        yield f"axes {c.axes}"
    yield from (c.size_words(axis) for axis in c.across if axis in large and axis not in layout.dcn)
    if other := [a for a in layout.dcn if c.across and a in large and a not in c.across]:
        yield f"dcn {','.join(c.across)}: it has `{other[0]}` there"
    for axis in c.within_host:
        if axis in large and not lies_within_host(target, tuple(sizes.items()), axis):
            yield f"within-host {axis}"


def _missed(kept: Sequence[Rule], rules: Sequence[Rule]) -> Rule | None:
    """The first of `kept` that is not in `rules` in this order, or stands below another."""
    left = list(kept)
    for rule in rules:
        if left and _is(left[0], rule):
            left.pop(0)
        elif taken := [other for other in left if rule.axis == other.axis]:
            return taken[0]
    return left[0] if left else None


def _is(kept: Rule, rule: Rule) -> bool:
    """Whether `rule` is the one that is kept, with the attributes that are stated."""
    has = attributes(rule)
    stated = all(has.get(name) == value for name, value in attributes(kept).items())
    return stated and (kept.dim, kept.axis) == (rule.dim, rule.axis)


def host_devices(target: Target) -> int:
    """How many devices of a target one host has; for GPUs those of a node."""
    if target.chip.kind == "tpu":
        chips = math.prod(min(n, host) for n, host in zip(target.shape, HOST, strict=False))
        return chips * target.chip.devices_per_chip
    return target.shape[0]


@lru_cache(maxsize=64)
def sizes_within_host(target: Target) -> tuple[int, ...]:
    """The sizes of an axis that can lie within a host, as the last one of a mesh.

    On a torus JAX lays an axis along a whole dim where that has its size, and a dim goes across
    hosts. So an axis of 4 may lie on 4 chips of several hosts.
    """
    devices, host = target.devices, host_devices(target)
    return tuple(
        size
        for size in range(1, host + 1)
        if host % size == 0
        and lies_within_host(target, (("rest", devices // size), ("axis", size)), "axis")
    )


@lru_cache(maxsize=4096)
def lies_within_host(target: Target, sizes: tuple[tuple[str, int], ...], axis: str) -> bool:
    """Whether devices along `axis` of a mesh of `sizes` are those of one host, wherever one looks.

    False where the mesh cannot be laid on the target.
    """
    try:
        at = device_coordinates(target, dict(sizes))
    except MeshDSLError:
        return False
    hosts = at[..., :4] // np.array([1, *HOST]) if target.chip.kind == "tpu" else at[..., :1]
    along = [name for name, _ in sizes].index(axis)
    return bool((hosts == np.take(hosts, [0], axis=along)).all())
