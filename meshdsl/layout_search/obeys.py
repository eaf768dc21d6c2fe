"""Whether a layout obeys the constraints of a search."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from meshdsl.errors import MeshDSLError
from meshdsl.layout import LEVELS, Layout, Rule
from meshdsl.layout_search.constraint_texts import parse_never
from meshdsl.layout_search.constraints import Constraints
from meshdsl.machine.coordinates import device_coordinates
from meshdsl.machine.target import HOST, Target


class Never:
    """Whether a rule is one that the layout must not have."""

    def __init__(self, patterns: Iterable[str]):
        self._patterns = [parse_never(pattern) for pattern in patterns]
        self._known: dict[tuple[str, str, str], bool] = {}

    def __call__(self, level: str, dim: str, axis: str) -> bool:
        rule = (level, dim, axis)
        if rule not in self._known:
            self._known[rule] = any(
                all(want in ("*", have) for want, have in zip(pattern, rule, strict=True))
                for pattern in self._patterns
            )
        return self._known[rule]


class Obeys:
    """Whether a candidate obeys constraints: `Obeys(constraints, target)(layout, settings)`.

    It costs some microseconds for a layout whose rules are parsed.

    Each axis larger than 1 must have a rule: the devices along one without all do the same. Rules
    that are kept must be there with the attributes that they state, in their order; and
    above them no other rule of the same list may take their axis. An axis that they name is larger
    than 1, unless its size is given as 1.

    Args:
      target: on which axes lie within a host, or not.
    """

    def __init__(self, constraints: Constraints, target: Target):
        self.constraints, self.target = constraints, target
        c = constraints
        self._never = Never(c.never)
        self._sizes, self._words = c.sizes, c.words
        self._larger = {rule.axis for rule in c.kept} - set(self._sizes)
        self._across = set(c.across)
        self._kept = {level: [r for r in c.kept if r.level == level] for level in LEVELS}

    def __call__(self, layout: Layout, settings: Mapping[str, str] | None = None) -> bool:
        """Whether a layout obeys, with the size of each axis as a number.

        Args:
          settings: of the run that go with it, such as `{"model.remat": "full"}`.
        """
        c = self.constraints
        if settings:
            if c.remat is not None and settings.get("model.remat", c.remat[0]) not in c.remat:
                return False
            count = int(settings.get("microbatches", 1))
            if c.microbatches is not None and count not in c.microbatches:
                return False
        elif c.microbatches is not None and 1 not in c.microbatches:
            return False
        return self.mesh(layout.mesh, layout.dcn) and self.rules(layout)

    def mesh(self, sizes: Mapping[str, Any], dcn: Sequence[str] = ()) -> bool:
        """Whether a mesh of these sizes obeys, of which the axes in `dcn` go across slices."""
        if sum(size > 1 for size in sizes.values()) > self.constraints.axes:
            return False
        if any(sizes.get(axis, 1) != size for axis, size in self._sizes.items()):
            return False
        if any(sizes.get(axis, 1) == 1 for axis in self._larger):
            return False
        if self._across and {a for a in dcn if sizes[a] > 1} != {
            a for a in self._across if sizes.get(a, 1) > 1
        }:
            return False
        within = self.constraints.within_host
        return all(
            lies_within_host(self.target, tuple(sizes.items()), axis)
            for axis in within
            if sizes.get(axis, 1) > 1
        )

    def rules(self, layout: Layout) -> bool:
        """Whether the rules of a layout obey, and what it says beside them."""
        if any(getattr(layout, word) != value for word, value in self._words.items()):
            return False
        parsed = layout.parsed
        if {axis for axis, size in layout.mesh.items() if size != 1} - {r.axis for r in parsed}:
            return False
        if any(self._never(rule.level, rule.dim, rule.axis) for rule in parsed):
            return False
        return all(
            _keeps(kept, [r for r in parsed if r.level == level])
            for level, kept in self._kept.items()
            if kept
        )


def _keeps(kept: Sequence[Rule], rules: Sequence[Rule]) -> bool:
    """Whether `rules` has all of `kept`, in order, and no other that takes one of their axes."""
    left = list(kept)
    for rule in rules:
        if left and _is(left[0], rule):
            left.pop(0)
        elif any(rule.axis == other.axis for other in left):
            return False
    return not left


def _is(kept: Rule, rule: Rule) -> bool:
    """Whether `rule` is the one that is kept, with the attributes that are stated."""
    return (
        (kept.dim, kept.axis) == (rule.dim, rule.axis)
        and (rule.pads or not kept.pads)
        and kept.move in ("collective", rule.move)
        and kept.order in ("natural", rule.order)
        and kept.microbatches in (None, rule.microbatches)
        and kept.rounds in (1, rule.rounds)
    )


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
