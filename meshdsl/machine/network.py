"""The network of a target under a mesh: how each axis lies on it, and how long a collective takes.

The devices of one collective form a group. All groups over the same axes work at the same time and
share the links. The network of a group consists of levels, the inner ones first: the devices of a
chip, the torus of a slice (or the switch of a node), and the slices (or nodes).

Times follow the alpha-beta model: the latency of the hops, plus the bytes over the bandwidth. The
algorithms are those of "How to Scale Your Model", chapter Sharded Matrices
(https://jax-ml.github.io/scaling-book/sharding). With n devices, V the bytes of the whole array
that is gathered or reduced, B the bytes on one device, and W the bandwidth of a level, both ways of
the links that are used:

    all_gather, psum_scatter   V (n - 1) / n / W
    psum, pmax, pmin           2 V (n - 1) / n / W
    all_to_all                 B n / (4 W) on a torus, n and W of the dim where it is longest
                               B (n - 1) / n / W through a switch
    ppermute                   B / W one way

Over several levels the outer ones work on what the inner ones leave for them: each device moves its
own part. The hops through a switch are those of recursive doubling (Thakur, Rabenseifner and Gropp,
2005: "Optimization of Collective Communication Operations in MPICH").

Where times of a collective were measured (`Chip.collectives`), they are taken instead.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property, partial

import numpy as np

from meshdsl.machine.axis_network import (
    AxisNetwork,
    Level,
    Route,
    TorusPart,
    describe,
    form_of_torus,
)
from meshdsl.machine.chips import Chip
from meshdsl.machine.measured_collectives import curve_of
from meshdsl.machine.target import Target
from meshdsl.mesh import arrange
from meshdsl.program.collective import live_axes

# Of collectives that leave to each device its own part of an array at each level: how the level is
# used (`Level`), and how many times.
_IN_PARTS = {
    "all_gather": ("gather", 1),
    "psum_scatter": ("scatter", 1),
    "psum": ("sum", 2),
    "pmax": ("sum", 2),
    "pmin": ("sum", 2),
}


class Network:
    """The network of a target under a mesh of as many devices."""

    def __init__(self, target: Target, axis_sizes: Mapping[str, int]):
        assert math.prod(axis_sizes.values()) == target.devices, (target, axis_sizes)
        self.target, self.axis_sizes = target, dict(axis_sizes)
        self._networks: dict[tuple[str, ...], AxisNetwork] = {}

    @cached_property
    def _coordinates(self) -> np.ndarray:
        return device_coordinates(self.target, self.axis_sizes)

    def seconds(self, operation: str, axes: tuple[str, ...], bytes: float) -> float:
        """Seconds of one collective alone on its links; 0 where the target has no figures.

        Args:
          operation: as in `Collective.operation`. What moves nothing (`slice`, `vary`) takes no
            time.
          axes: the mesh axes that the collective goes over.
          bytes: the larger of operand and result on one device, as in `Collective.bytes`.
        """
        if not self.target.timed:
            return 0.0
        return seconds_over(self.axes(axes).levels, operation, bytes, self.target.chip)

    def between_slices(self, operation: str, bytes: float) -> float:
        """As `seconds`, of a collective among devices of which each is in another slice or node."""
        levels = self.axes(tuple(self.axis_sizes)).levels
        outer = tuple(level for level in levels if level.kind == "scale-out")
        return seconds_over(outer, operation, bytes, self.target.chip)

    def sent_between(self, operation: str, axes: tuple[str, ...], bytes: float) -> float:
        """Bytes that each device sends to other slices or nodes in one collective.

        What is summed or gathered within a slice first goes between slices in parts: with 16
        devices in each of 2 slices a sum of B bytes sends 2 (B / 16) / 2. TPU compilers do so with
        one sum over both axes (seen in programs that libtpu 0.0.42.1 compiled for two slices of
        v5e:2x4), and NCCL does. The arguments are those of `seconds`.
        """
        inside = 1
        for level in self.axes(axes).levels:
            if level.kind != "scale-out":
                inside *= level.size
            elif operation == "ppermute":
                return bytes
            else:
                share = (level.size - 1) / level.size
                if operation == "all_to_all":
                    return bytes * share
                _, times = _IN_PARTS.get(operation, ("", 0))
                return bytes * (times * share / inside)
        return 0.0

    def axis(self, name: str) -> AxisNetwork:
        """How the mesh axis `name` lies on the network."""
        return self.axes((name,))

    def axes(self, names: tuple[str, ...]) -> AxisNetwork:
        """How the mesh axes `names`, taken together as one, lie on the network."""
        names = live_axes(names, self.axis_sizes)
        if names not in self._networks:
            self._networks[names] = AxisNetwork(self._levels(names))
        return self._networks[names]

    def describe(self, axis: str) -> str:
        """How a mesh axis lies on the network, in words.

        An example is `ring of 16 along x of the torus, 2 links, 180 GB/s both ways`.
        """
        return describe(self.axis(axis), self.target)

    def _levels(self, axes: tuple[str, ...]) -> tuple[Level, ...]:
        if not axes:
            return ()
        groups = self._groups(axes)
        size, chip = groups.shape[1], self.target.chip
        outer, inner = groups[..., 0], groups[..., 1:]
        spread = int(_distinct(outer).max())  # slices or nodes that a group spans
        levels: list[Level] = []
        if chip.kind == "tpu":
            cores = int(_distinct(inner[..., 3]).max())
            if cores > 1:
                switch = _switch("cores", cores, chip.core_bandwidth, chip.link_latency)
                levels.append(replace(switch, form="devices of a chip"))
            if size > cores * spread:
                whole = size // spread * self.target.slices == self.target.devices
                form = partial(form_of_torus, whole=whole, axes=self._within_slices(axes))
                levels.append(_torus(inner[..., :3], size // cores // spread, self.target, form))
        elif size > spread:
            levels.append(_switch("switch", size // spread, chip.link_bandwidth, chip.link_latency))
        if spread > 1:
            levels.append(_scale_out(spread, chip))
        return tuple(levels)

    def _within_slices(self, axes: tuple[str, ...]) -> int:
        """How many of `axes` do not only lead from slice to slice."""
        groups = [self._groups((axis,)) for axis in axes]
        return sum(int(_distinct(group[..., 0]).max()) < group.shape[1] for group in groups)

    def _groups(self, axes: tuple[str, ...]) -> np.ndarray:
        """The groups over `axes` as an array [group, device, coordinate]."""
        inside = [i for i, axis in enumerate(self.axis_sizes) if axis in axes]
        outside = [i for i, axis in enumerate(self.axis_sizes) if axis not in axes]
        size = math.prod(self.axis_sizes[axis] for axis in axes)
        at = self._coordinates.transpose(*outside, *inside, len(self.axis_sizes))
        return at.reshape(-1, size, at.shape[-1])


def _switch(kind: str, size: int, bandwidth: float, latency: float) -> Level:
    """A level where any device reaches any other in one hop, so that a gather goes by doubling."""
    route = Route(bandwidth, math.ceil(math.log2(size)))
    return Level(kind, size, latency, bandwidth, sum=route, gather=route, scatter=route)


def _scale_out(size: int, chip: Chip) -> Level:
    """The level of slices, nodes, or processes of CPU devices.

    Between the latter gloo sends nothing before the receiver has told the sender that it waits for
    it, so that a hop is there and back, and its sums go along a ring, in twice as many hops as
    there are other processes (measured: `python -m benchmarks.slow_network`).
    """
    latency, bandwidth = chip.scale_out_latency, chip.scale_out_bandwidth
    if chip.kind != "cpu":
        return _switch("scale-out", size, bandwidth, latency)
    level = _switch("scale-out", size, bandwidth, 2 * latency)
    return replace(level, sum=Route(bandwidth, size - 1))


def _distinct(values: np.ndarray) -> np.ndarray:
    """How many different values there are along the last dim."""
    return 1 + np.count_nonzero(np.diff(np.sort(values, axis=-1), axis=-1), axis=-1)


def _torus(
    at: np.ndarray, size: int, target: Target, form: Callable[[tuple[TorusPart, ...]], str]
) -> Level:
    """The level of groups on the torus of a slice.

    Args:
      at: coordinates of the devices, [group, device, dim of the torus].
      size: how many chips a group has in each slice.
      form: that of the axes, from the parts of the torus that they use.
    """
    chip, shape = target.chip, (*target.shape, 1, 1)[:3]
    joined = (*target.wraps, False, False)[:3]
    apart = np.abs(at - np.roll(at, -1, axis=1))
    nearest = np.where(joined, np.minimum(apart, np.array(shape) - apart), apart)
    step_hops = int(nearest.sum(-1).max())
    extents = _distinct(at.swapaxes(1, 2))
    if (extents != extents[0]).any() or extents[0].prod() != size:
        link = chip.link_bandwidth
        route = Route(link, step_hops * (size - 1))
        return Level(
            *("torus", size, chip.link_latency, link, route, route, route, step_hops), form=form(())
        )
    parts = []
    for d, extent in enumerate(extents[0].tolist()):
        if extent > 1:
            step = int(np.diff(np.unique(at[0, :, d])).min())
            ring = joined[d] and extent * step == shape[d]
            bandwidth = (2 if ring else 1) * chip.link_bandwidth / step
            parts.append(TorusPart("xyz"[d], extent, shape[d], step, ring, bandwidth))
    return _block(tuple(parts), size, chip, step_hops, form(tuple(parts)))


def _block(parts: tuple[TorusPart, ...], size: int, chip: Chip, step_hops: int, form: str) -> Level:
    """The level of groups that fill a block of the torus, as the TPU compiler uses its links.

    A collective goes along all dims at once, in as many shares of the array, or along one ring
    through all chips, last dim first, as fast as its narrowest dim. `Chip.overlap` says which, and
    what is compiled as a sum, which takes twice as long. Over a part of a block in which one dim is
    no ring everything goes along one ring.
    """
    hops = parts[-1].step * (size // 2 if all(p.ring for p in parts) else size - 1)
    ring = Route(min(p.bandwidth for p in parts), hops)
    every = Route(sum(p.bandwidth for p in parts), sum(p.hops for p in parts))
    runs = chip.overlap_over(form)
    if form == "part of a block":  # each dim has the same share, so the narrowest is the last
        rings = len(parts) if all(p.ring for p in parts) else 1
        every = Route(rings * ring.bandwidth, every.hops if rings > 1 else hops)

    def route(operation: str) -> Route:
        total = ring if runs.has("rings", "psum") else every
        if runs.has("sums", operation):
            return Route(total.bandwidth / 2, 2 * total.hops)
        return ring if runs.has("rings", operation) else every

    return Level(
        "torus",
        size,
        chip.link_latency,
        one_way=chip.link_bandwidth / max(p.step for p in parts),
        sum=route("psum"),
        gather=route("all_gather"),
        scatter=route("psum_scatter"),
        step_hops=step_hops,
        parts=parts,
        form=form,
    )


@dataclass(frozen=True)
class _Device:
    """The attributes of a device that JAX reads when it arranges a mesh."""

    id: int
    coords: tuple[int, int, int]
    core_on_chip: int
    slice_index: int
    device_kind: str
    platform: str = "tpu"


def device_coordinates(target: Target, sizes: Mapping[str, int]) -> np.ndarray:
    """The coordinates of the device at each position of a mesh, without having the devices.

    JAX itself arranges the mesh, on stand-ins that have the coordinates of the real devices.

    Args:
      sizes: of the mesh axes; the mesh has as many devices as `target`.

    Returns:
      An array [*sizes, k]. Its last dim is (slice, x, y, z, core) for TPUs, and (node, GPU) for
      GPUs; of CPUs (process, device), and a machine without figures is one process.
    """
    shape = tuple(sizes.values())
    if target.chip.kind != "tpu":
        return np.stack(
            np.divmod(np.arange(target.devices).reshape(shape), target.shape[0]), axis=-1
        )
    x, y, z = (*target.shape, 1, 1)[:3]
    # JAX numbers the cores of a chip first, then the chips along x, then along y and z.
    indices = np.indices((target.slices, z, y, x, target.chip.devices_per_chip)).reshape(5, -1)
    at = indices[[0, 3, 2, 1, 4]].T
    devices = [
        _Device(i, (x, y, z), core, s, target.chip.device_kind)
        for i, (s, x, y, z, core) in enumerate(at.tolist())
    ]
    mesh = arrange(sizes, devices) if sizes else np.array(devices)
    return at[[d.id for d in mesh.flat]].reshape(*shape, 5)


def form_of(levels: tuple[Level, ...]) -> str:
    """The form of a group by which measured times are found: `8`, or `4x2` in two nodes.

    It is empty on a torus, where groups of one size differ in the links that they have.
    """
    sizes = {level.kind: level.size for level in levels}
    if not sizes or not {"switch", "scale-out"}.issuperset(sizes):
        return ""
    inside, nodes = (sizes.get(kind, 1) for kind in ("switch", "scale-out"))
    return f"{inside}x{nodes}" if nodes > 1 else str(inside)


def levels_of_form(form: str, chip: Chip) -> tuple[Level, ...]:
    """The levels of a group of a form, the other way round than `form_of`."""
    inside, nodes = (*map(int, form.split("x")), 1)[:2]
    levels = (
        _switch("switch", inside, chip.link_bandwidth, chip.link_latency),
        _scale_out(nodes, chip),
    )
    return tuple(level for level in levels if level.size > 1)


def seconds_over(levels: tuple[Level, ...], operation: str, bytes: float, chip: Chip) -> float:
    """Seconds of one collective alone on its links; 0 for what moves nothing, such as `slice`.

    What was measured goes before what the figures of the links say.

    Args:
      levels: of the network of its devices, inner first.
      operation: as in `Collective.operation`.
      bytes: the larger of operand and result on one device.
      chip: that has the figures.
    """
    efficiency = chip.link_efficiency
    if measured := curve_of(chip.collectives, operation, form_of(levels)):
        return measured.seconds(bytes)
    if operation == "ppermute":
        one_way = [
            bytes / (level.one_way * efficiency) + level.step_hops * level.latency
            for level in levels
        ]
        return max(one_way, default=0.0)
    total = 0.0
    for level in levels:
        if operation == "all_to_all":
            total += _all_to_all(level, bytes) / efficiency + level.sum.hops * level.latency
        elif operation in _IN_PARTS:
            kind, times = _IN_PARTS[operation]
            bandwidth, hops = getattr(level, kind)
            moved = bytes * (level.size - 1) / level.size
            total += times * (moved / (bandwidth * efficiency) + hops * level.latency)
            bytes /= level.size
    return total


def _all_to_all(level: Level, bytes: float) -> float:
    """Seconds of an all_to_all at a level, if it reached the whole bandwidth."""
    if level.kind != "torus":
        return bytes * (level.size - 1) / level.size / level.sum.bandwidth
    whole = level.size / level.sum.bandwidth
    return bytes / 4 * max((p.size / p.bandwidth for p in level.parts), default=whole)
