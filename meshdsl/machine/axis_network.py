"""How devices that work together lie on the networks of a machine."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class Part:
    """A group's part of one dim of the torus.

    Attributes:
      dim: `x`, `y` or `z`.
      size, of, step: `size` of the `of` chips along it, every `step`-th.
      ring: the ends of the part are joined.
      bandwidth: bytes/s of one device, both ways, without what it leaves to groups that stand between its chips.
    """

    dim: str
    size: int
    of: int
    step: int
    ring: bool
    bandwidth: float

    @property
    def hops(self) -> int:
        """Steps of a gather along it: both ways round in a ring."""
        return self.step * (self.size // 2 if self.ring else self.size - 1)


@dataclass(frozen=True)
class Level:
    """What a group uses of one network.

    Attributes:
      kind: `cores` (the devices of a chip), `torus`, `switch` or `scale-out`.
      size: devices of the group that it joins.
      bandwidth: W, bytes/s of one device over all its links, both ways, as the vendor states them.
      gather_bandwidth: the same for gathers and scatters, which may leave links unused.
      one_way: bytes/s of one device to a neighbour.
      hops, gather_hops: steps of half a sum, and of a gather.
      latency: seconds of a step.
      step_hops: hops from a device to the next one of the group, the last one's to the first included.
      parts: of a torus; none where the group fills no block of it.
    """

    kind: str
    size: int
    bandwidth: float
    gather_bandwidth: float
    one_way: float
    hops: int
    gather_hops: int
    latency: float
    step_hops: int = 1
    parts: tuple[Part, ...] = ()

    @property
    def one_ring(self) -> bool:
        """Several dims of a torus, one of them only in part: everything goes along one ring through all chips."""
        return len(self.parts) > 1 and any(p.size < p.of for p in self.parts)

    @property
    def links(self) -> int:
        """Links of one device that it uses."""
        if self.one_ring:
            return 2 if self.ring else 1
        return sum(2 if p.ring else 1 for p in self.parts) or 1

    @property
    def ring(self) -> bool:
        """Every dim of the torus that it uses is a ring."""
        return bool(self.parts) and all(p.ring for p in self.parts)


@dataclass(frozen=True)
class Lay:
    """How a mesh axis, or several together, lie on the machine.

    Attributes:
      size: devices.
      kind: `ring` or `line` on one dim of a torus, `torus` on several, `path` where the devices do not fill a block of it, `cores`,
        `switch`, `scale-out`; `mixed` for more than one level; `none` for a single device.
      links: of one device.
      gbytes_one_way: GB/s to a neighbour. gbytes: both ways over all links, of the narrowest level.
      wraps: every dim of the torus that it uses is a ring.
      hops: steps of a gather, over all levels.
      levels: the networks it uses, inner first.
    """

    size: int
    kind: str
    links: int
    gbytes_one_way: float
    gbytes: float
    wraps: bool
    hops: int
    levels: tuple[Level, ...]


def lay_of(levels: tuple[Level, ...]) -> Lay:
    """What `levels`, inner first, are together."""
    if not levels:
        return Lay(1, "none", 0, 0.0, 0.0, False, 0, ())
    kind = levels[0].kind if len(levels) == 1 else "mixed"
    if kind == "torus":
        level = levels[0]
        kind = (
            "torus"
            if len(level.parts) > 1
            else "path"
            if not level.parts
            else "ring"
            if level.ring
            else "line"
        )
    return Lay(
        size=math.prod(level.size for level in levels),
        kind=kind,
        links=sum(level.links for level in levels),
        gbytes_one_way=min(level.one_way for level in levels) / 1e9,
        gbytes=min(level.bandwidth for level in levels) / 1e9,
        wraps=any(level.ring for level in levels)
        and all(level.ring for level in levels if level.kind == "torus"),
        hops=sum(level.gather_hops for level in levels),
        levels=levels,
    )
