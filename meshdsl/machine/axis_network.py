"""How mesh axes lie on the network of a machine, as data and in words.

An `AxisNetwork` belongs to an axis, or to several taken together. It consists of levels, the inner
ones first: the devices of one chip, the torus of a slice (or the switch of a node), the slices (or
nodes). On a torus a level has one `TorusPart` for each dim of the torus that it uses.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

from meshdsl.machine.target import Target


@dataclass(frozen=True)
class TorusPart:
    """The chips along one dim of the torus that a group of devices uses.

    Attributes:
      dim: the dim of the torus: `x`, `y` or `z`.
      size: how many chips the group has along it.
      of: how many chips there are along it.
      step: the distance from one chip of the group to the next; 1 for neighbours.
      ring: whether the links join the last chip of the group to its first.
      bandwidth: bytes/s of one device, both ways. Links that the group shares with other groups,
        whose chips stand between its own, count for its share.
    """

    dim: str
    size: int
    of: int
    step: int
    ring: bool
    bandwidth: float

    @property
    def hops(self) -> int:
        """Hops that a gather along it takes one after the other; a ring is gone both ways round."""
        return self.step * (self.size // 2 if self.ring else self.size - 1)


class Route(NamedTuple):
    """How collectives of a kind use a level.

    Attributes:
      bandwidth: bytes/s of one device over all the links that are used, both ways, as the vendor
        states them.
      hops: of a gather, a scatter or half a sum, one after the other.
    """

    bandwidth: float
    hops: int


@dataclass(frozen=True)
class Level:
    """What a group of devices uses of one network.

    Attributes:
      kind: `cores` (the devices of a chip), `torus`, `switch` or `scale-out`.
      size: how many members of the group it joins.
      latency: seconds of a hop.
      one_way: bytes/s of one device to a neighbour.
      sum, gather, scatter: how these collectives use it; gathers and scatters may leave links
        unused.
      step_hops: the most hops from a device to the next one of the group; next to the last one is
        the first.
      parts: on a torus, one for each dim that the group uses; empty where it fills no block of it.
      form: one of `overlap.FORMS` on a torus and among the devices of a chip; otherwise empty.
    """

    kind: str
    size: int
    latency: float
    one_way: float
    sum: Route
    gather: Route
    scatter: Route
    step_hops: int = 1
    parts: tuple[TorusPart, ...] = ()
    form: str = ""

    @property
    def one_ring(self) -> bool:
        """Whether sums go along one ring through all chips, though they lie on several dims."""
        return len(self.parts) > 1 and self.sum.bandwidth < sum(p.bandwidth for p in self.parts)

    @property
    def links(self) -> int:
        """How many links of one device it uses."""
        if self.one_ring:
            return 2 if self.ring else 1
        return sum(2 if p.ring else 1 for p in self.parts) or 1

    @property
    def ring(self) -> bool:
        """Whether it uses a torus, and is a ring along every dim that it uses."""
        return bool(self.parts) and all(p.ring for p in self.parts)


@dataclass(frozen=True)
class AxisNetwork:
    """How a mesh axis, or several together, lie on the network of the machine.

    Attributes:
      levels: the networks that it uses, inner first; none for a single device.
    """

    levels: tuple[Level, ...]

    @property
    def size(self) -> int:
        """How many devices there are along the axis."""
        return math.prod(level.size for level in self.levels)

    @property
    def wraps(self) -> bool:
        """Whether it is a ring along every dim of the torus that it uses, and uses one."""
        torus = [level for level in self.levels if level.kind == "torus"]
        return bool(torus) and all(level.ring for level in torus)

    @property
    def form(self) -> str:
        """One of `overlap.FORMS`: that of the outermost level that has one; otherwise empty."""
        return next((level.form for level in reversed(self.levels) if level.form), "")


def form_of_torus(parts: tuple[TorusPart, ...], *, whole: bool, axes: int) -> str:
    """The form (`overlap.FORMS`) of axes that use a torus.

    Args:
      parts: what they use of it.
      whole: whether they are all devices of a slice.
      axes: how many there are, those of one device aside.
    """
    if not parts:
        return "no block"
    dims = ("", "one dim", "two dims", "three dims")[len(parts)]
    if whole and axes > 1:
        return "whole slice by several axes"
    if whole and all(part.ring for part in parts):
        return "whole slice of rings"
    if whole:
        equal = len(parts) == 2 and parts[0].size == parts[1].size
        return "whole slice of two equal dims" if equal else f"whole slice of {dims}"
    in_part = any(part.size < part.of for part in parts)
    if len(parts) == 1:
        return "part of a dim" if in_part else dims
    return "part of a block" if in_part else dims


_SWITCHES = {"gpu": "GPUs of a node, NVLink", "cpu": "virtual devices of a process"}
_SCALE_OUT = {
    "tpu": "slices, the data-centre network",
    "gpu": "nodes, InfiniBand",
    "cpu": "processes",
}


def describe(axis: AxisNetwork, target: Target) -> str:
    """Describes each level of `axis`, the inner ones first.

    An example is `ring of 16 along x of the torus, 2 links, 180 GB/s both ways`.
    """
    if axis.size == 1:
        return "one device"
    if not target.timed:
        return f"{axis.size} virtual devices of one machine"
    return "; then ".join(_level(level, target) for level in axis.levels)


def _level(level: Level, target: Target) -> str:
    rate = f"{level.sum.bandwidth / 1e9:.4g} GB/s"
    if level.kind == "cores":
        return f"the {level.size} devices of a chip, {rate} one way"
    if level.kind == "switch":
        return f"{level.size} {_SWITCHES[target.chip.kind]}, {rate} one way"
    if level.kind == "scale-out":
        return f"{level.size} {_SCALE_OUT[target.chip.kind]}, {rate} one way"
    if not level.parts:
        return (
            f"{level.size} chips that fill no block of the torus, "
            f"up to {level.step_hops} hops apart, {rate}"
        )
    links = f"{level.links} link{'s' * (level.links > 1)}"
    ways = " both ways" if level.ring else ""
    return f"{_block(level, target)}, {links}, {rate}{ways}{_others(level)}"


def _block(level: Level, target: Target) -> str:
    """The chips of a level that fills a block of the torus: `4 by 4, rings along y and z ...`."""
    along = [_along(p, target) for p in level.parts]
    kinds = ["ring" if p.ring else "line" for p in level.parts]
    sizes = " by ".join(str(p.size) for p in level.parts)
    if len(along) == 1:
        return f"{kinds[0]} of {sizes} along {along[0]} of the torus"
    if level.one_ring:
        return f"one ring through {sizes} chips along {_list(along)} of the torus"
    if len(set(kinds)) == 1:
        return f"{sizes}, {kinds[0]}s along {_list(along)} of the torus"
    each = [f"a {kind} along {dim}" for kind, dim in zip(kinds, along, strict=True)]
    return f"{sizes}, {_list(each)} of the torus"


def _others(level: Level) -> str:
    """What gathers and scatters reach, in brackets, where it is not what sums reach."""
    rates: dict[float, list[str]] = {}
    for what, route in (("gathers", level.gather), ("scatters", level.scatter)):
        if route.bandwidth != level.sum.bandwidth:
            rates.setdefault(route.bandwidth, []).append(what)
    if not rates:
        return ""
    said = [f"{' and '.join(what)} {rate / 1e9:.4g} GB/s" for rate, what in rates.items()]
    return f" ({', '.join(said)})"


def _along(part: TorusPart, target: Target) -> str:
    """The dim of the torus, and in brackets what makes the part less than a ring of its own."""
    wraps = target.wraps["xyz".index(part.dim)]
    notes = [f"{part.size} of its {part.of} chips"] if part.size < part.of else []
    if part.step > 1:
        notes.append(f"one in {part.step}, 1/{part.step} of the bandwidth")
    if not part.ring:
        notes.append("no ring, half the bandwidth" if wraps else "no wrap-around")
    return part.dim + (f" ({', '.join(notes)})" if notes else "")


def _list(items: list[str]) -> str:
    return f"{', '.join(items[:-1])} and {items[-1]}"
