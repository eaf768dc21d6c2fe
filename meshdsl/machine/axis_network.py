"""Data classes that say how mesh axes lie on the network of a machine.

An `AxisNetwork` belongs to an axis, or to several taken together. It consists of levels, the inner
ones first: the devices of one chip, the torus of a slice (or the switch of a node), the slices (or
nodes). On a torus a level has one `TorusPart` for each dim of the torus that it uses.
"""

from __future__ import annotations

import math
from dataclasses import dataclass


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


@dataclass(frozen=True)
class Level:
    """What a group of devices uses of one network.

    Attributes:
      kind: `cores` (the devices of a chip), `torus`, `switch` or `scale-out`.
      size: how many members of the group it joins.
      bandwidth: bytes/s of one device over all its links, both ways, as the vendor states them.
      gather_bandwidth, scatter_bandwidth: the same for gathers and for scatters, which may leave
        links unused.
      one_way: bytes/s of one device to a neighbour.
      hops: of half a sum, one after the other.
      gather_hops, scatter_hops: of a gather and of a scatter, one after the other.
      latency: seconds of a hop.
      step_hops: the most hops from a device to the next one of the group; next to the last one is
        the first.
      parts: on a torus, one for each dim that the group uses; empty where it fills no block of it.
    """

    kind: str
    size: int
    bandwidth: float
    gather_bandwidth: float
    scatter_bandwidth: float
    one_way: float
    hops: int
    gather_hops: int
    scatter_hops: int
    latency: float
    step_hops: int = 1
    parts: tuple[TorusPart, ...] = ()

    @classmethod
    def alike(
        cls,
        kind: str,
        size: int,
        bandwidth: float,
        hops: int,
        latency: float,
        step_hops: int = 1,
    ) -> Level:
        """A level on which all collectives reach the same bandwidth in as many hops."""
        return cls(
            kind,
            size,
            bandwidth,
            gather_bandwidth=bandwidth,
            scatter_bandwidth=bandwidth,
            one_way=bandwidth,
            hops=hops,
            gather_hops=hops,
            scatter_hops=hops,
            latency=latency,
            step_hops=step_hops,
        )

    @property
    def one_ring(self) -> bool:
        """Whether everything goes along one ring through all chips.

        That is so where the group uses several dims of the torus and one of them only in part.
        """
        return len(self.parts) > 1 and any(p.size < p.of for p in self.parts)

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
      size: how many devices there are along the axis.
      kind: `ring` or `line` on one dim of a torus, `torus` on several, `path` where the devices do
        not fill a block of it, `cores`, `switch`, `scale-out`; `mixed` for more than one level;
        `none` for a single device.
      links: how many links of one device it uses.
      gbytes_one_way: GB/s to a neighbour.
      gbytes: GB/s over all links, both ways, of the narrowest level.
      wraps: whether it is a ring along every dim of the torus that it uses.
      hops: of a gather, one after the other, over all levels.
      levels: the networks that it uses, inner first.
    """

    size: int
    kind: str
    links: int
    gbytes_one_way: float
    gbytes: float
    wraps: bool
    hops: int
    levels: tuple[Level, ...]

    @classmethod
    def of_levels(cls, levels: tuple[Level, ...]) -> AxisNetwork:
        """Sums up `levels`, which are ordered inner first; none stand for a single device."""
        if not levels:
            return cls(1, "none", 0, 0.0, 0.0, False, 0, ())
        return cls(
            size=math.prod(level.size for level in levels),
            kind=_kind(levels[0]) if len(levels) == 1 else "mixed",
            links=sum(level.links for level in levels),
            gbytes_one_way=min(level.one_way for level in levels) / 1e9,
            gbytes=min(level.bandwidth for level in levels) / 1e9,
            wraps=any(level.ring for level in levels)
            and all(level.ring for level in levels if level.kind == "torus"),
            hops=sum(level.gather_hops for level in levels),
            levels=levels,
        )


def _kind(level: Level) -> str:
    """What `AxisNetwork.kind` says of a single level."""
    if level.kind != "torus":
        return level.kind
    if len(level.parts) > 1:
        return "torus"
    if not level.parts:
        return "path"
    return "ring" if level.ring else "line"
