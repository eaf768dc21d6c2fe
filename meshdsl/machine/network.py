"""The network of a target under a mesh: how each axis lies on it, and how long a collective takes there.

The devices of a collective are a group; all groups over the same axes work at the same time and share the links. A group is seen as
levels, the inner ones first: the devices of a chip, the torus of a slice (or the switch of a node), and the slices (or nodes).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import cached_property

import numpy as np

from meshdsl.machine import collective_time
from meshdsl.machine.axis_description import words
from meshdsl.machine.axis_network import Lay, Level, Part, lay_of
from meshdsl.machine.chips import Chip
from meshdsl.machine.coordinates import places
from meshdsl.machine.target import Target
from meshdsl.record.collective import live_axes


class Network:
    """The network of `target` under a mesh of `axis_sizes`, which is of as many devices as the target."""

    def __init__(self, target: Target, axis_sizes: Mapping[str, int]):
        assert math.prod(axis_sizes.values()) == target.devices, (target, axis_sizes)
        self.target, self.axis_sizes = target, dict(axis_sizes)
        self._lays: dict[tuple[str, ...], Lay] = {}

    @cached_property
    def _places(self) -> np.ndarray:
        return places(self.target, self.axis_sizes)

    def seconds(self, operation: str, axes: tuple[str, ...], bytes: float) -> float:
        """Seconds of one collective alone on its links; 0 where the target has no figures.

        Args:
          operation: as in `Collective.operation`. What moves nothing (`slice`, `vary`) takes no time.
          bytes: the larger of operand and result on one device, as in `Collective.bytes`.
        """
        if not self.target.timed:
            return 0.0
        return collective_time.seconds(
            operation, self.lay(axes).levels, bytes, self.target.chip.link_efficiency
        )

    def axis(self, name: str) -> Lay:
        """How the axis `name` lies on the machine."""
        return self.lay((name,))

    def lay(self, axes: tuple[str, ...]) -> Lay:
        """How the `axes` together lie on the machine."""
        axes = live_axes(axes, self.axis_sizes)
        if axes not in self._lays:
            self._lays[axes] = lay_of(self._levels(axes))
        return self._lays[axes]

    def words(self, axis: str) -> str:
        """How the axis lies, in words: `ring of 16 along x of the torus, 2 links, 180 GB/s both ways`."""
        return words(self.axis(axis), self.target)

    def _levels(self, axes: tuple[str, ...]) -> tuple[Level, ...]:
        if not axes:
            return ()
        order = [i for i, a in enumerate(self.axis_sizes) if a not in axes] + [
            i for i, a in enumerate(self.axis_sizes) if a in axes
        ]
        n = math.prod(self.axis_sizes[a] for a in axes)
        k = self._places.shape[-1]
        groups = self._places.transpose(*order, len(order)).reshape(-1, n, k)
        chip = self.target.chip
        outer, inner = groups[..., 0], groups[..., 1:]
        spread = int(_distinct(outer).max())
        levels: list[Level] = []
        if chip.kind == "tpu":
            cores = int(_distinct(inner[..., 3]).max())
            if cores > 1:
                levels.append(_switch("cores", cores, chip.core_bandwidth, chip.link_latency))
            if n > cores * spread:
                levels.append(_torus(inner[..., :3], n // cores // spread, self.target))
        elif n > spread:
            levels.append(_switch("switch", n // spread, chip.link_bandwidth, chip.link_latency))
        if spread > 1:
            levels.append(
                _switch("scale-out", spread, chip.scale_out_bandwidth, chip.scale_out_latency)
            )
        return tuple(levels)


def _switch(kind: str, size: int, bandwidth: float, latency: float) -> Level:
    """A level where every device reaches every other in one step, so that doublings make a gather."""
    steps = math.ceil(math.log2(size))
    return Level(kind, size, bandwidth, bandwidth, bandwidth, steps, steps, latency)


def _distinct(values: np.ndarray) -> np.ndarray:
    """Of each row, how many values differ."""
    return 1 + np.count_nonzero(np.diff(np.sort(values, axis=-1), axis=-1), axis=-1)


def _torus(at: np.ndarray, size: int, target: Target) -> Level:
    """The level of groups whose devices stand at the coordinates `at` [group, device, dim] of the torus, `size` chips in each slice."""
    chip, shape = target.chip, (*target.shape, 1, 1)[:3]
    joined = (*target.wraps, False, False)[:3]
    apart = np.abs(at - np.roll(at, -1, axis=1))
    step_hops = int(
        np.where(joined, np.minimum(apart, np.array(shape) - apart), apart).sum(-1).max()
    )
    extents = _distinct(at.swapaxes(1, 2))
    if (extents != extents[0]).any() or extents[0].prod() != size:
        link, steps = chip.link_bandwidth, step_hops * (size - 1)
        return Level("torus", size, link, link, link, steps, steps, chip.link_latency, step_hops)
    parts = []
    for d, extent in enumerate(extents[0]):
        if extent > 1:
            found = np.unique(at[0, :, d])
            step = int(np.diff(found).min())
            ring = joined[d] and int(extent) * step == shape[d]
            parts.append(
                Part(
                    "xyz"[d],
                    int(extent),
                    shape[d],
                    step,
                    ring,
                    (2 if ring else 1) * chip.link_bandwidth / step,
                )
            )
    return _block(tuple(parts), size, chip, step_hops)


def _block(parts: tuple[Part, ...], size: int, chip: Chip, step_hops: int) -> Level:
    """The level of groups that fill `parts` of the torus' dims, by what the TPU compiler makes of them.

    A sum over whole dims goes along all of them at once, in as many shares of the array. One over a part of a dim, and a gather or
    a scatter over more than `Chip.gather_dims` dims, goes along one ring through all chips, last dim first, as fast as its narrowest dim.
    A gather or a scatter over all three dims is compiled as a sum where that is faster.
    """
    ring = min(p.bandwidth for p in parts)
    ring_hops = parts[-1].step * (size // 2 if all(p.ring for p in parts) else size - 1)
    every, every_hops = sum(p.bandwidth for p in parts), sum(p.hops for p in parts)
    if any(p.size < p.of for p in parts):
        every, every_hops = ring, ring_hops
    if len(parts) <= chip.gather_dims:
        gather, gather_hops = every, every_hops
    elif len(parts) == 3 and every / 2 > ring:
        gather, gather_hops = every / 2, 2 * every_hops
    else:
        gather, gather_hops = ring, ring_hops
    one_way = chip.link_bandwidth / max(p.step for p in parts)
    return Level(
        "torus",
        size,
        every,
        gather,
        one_way,
        every_hops,
        gather_hops,
        chip.link_latency,
        step_hops,
        parts,
    )
