"""Data classes that say how mesh axes lie on the network of a machine.

An `AxisNetwork` belongs to an axis, or to several taken together. It consists of levels, the inner
ones first: the devices of one chip, the torus of a slice (or the switch of a node), the slices (or
nodes). On a torus a level has one `TorusPart` for each dim of the torus that it uses.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple


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
