"""Simulates the streams of a device: one that computes, and lanes on which data moves meanwhile.

A lane is one direction of the links of a mesh axis, or the copies between the memories of a chip.
Each lane serves first come, first served. What is launched on lanes runs while the compute stream
goes on; the compute stream waits for it where its result is used. The approach is that of Jia et
al., *Beyond data and model parallelism*, 2019.
"""

from __future__ import annotations

from collections.abc import Hashable

from meshdsl.machine.network import Network
from meshdsl.program.collective import Collective

Lane = tuple[str, str]
COPIES: Lane = ("copies", "")


class Streams:
    """The clocks of all streams of one device, in seconds from the start of the simulation.

    The methods that run something return when it starts and when it ends.

    Attributes:
      now: the time until which the compute stream is busy.
      lanes: for each lane, the time until which it is busy.
      events: for each name that something was launched under, the time at which it is finished.
    """

    def __init__(self):
        self.now = 0.0
        self.lanes: dict[Lane, float] = {}
        self.events: dict[Hashable, float] = {}
        self._under_way: dict[Hashable, frozenset[Lane]] = {}

    def compute(self, seconds: float) -> tuple[float, float]:
        """Computes for so long."""
        start, self.now = self.now, self.now + seconds
        return start, self.now

    def launch(
        self, name: Hashable, lanes: tuple[Lane, ...], seconds: float, ready: float | None = None
    ) -> tuple[float, float]:
        """Starts to move data as soon as all `lanes` are free, while the compute stream goes on.

        Args:
          name: under which `events` has the time at which it is finished.
          ready: it does not start before; by default the time of the compute stream.
        """
        start = max(
            [self.now if ready is None else ready, *(self.lanes.get(lane, 0.0) for lane in lanes)]
        )
        end = start + seconds
        for lane in lanes:
            self.lanes[lane] = end
        self.events[name] = end
        self._under_way[name] = frozenset(lanes)
        return start, end

    def communicate(self, lanes: tuple[Lane, ...], seconds: float) -> tuple[float, float]:
        """Moves data at once, while the compute stream waits.

        What is under way on these lanes shares them, and finishes that much later.
        """
        start, end = self.now, self.now + seconds
        self._under_way = {
            name: on for name, on in self._under_way.items() if self.events[name] > start
        }
        for name, on in self._under_way.items():
            if not on.isdisjoint(lanes):
                self.events[name] += seconds
        for lane in lanes:
            self.lanes[lane] = max(self.lanes.get(lane, 0.0), start) + seconds
        self.now = end
        return start, end

    def wait(self, until: float) -> float:
        """Lets the compute stream wait until a moment; returns for how long it waits."""
        waited = max(until - self.now, 0.0)
        self.now += waited
        return waited

    def skip(self, seconds: float) -> None:
        """Moves all clocks forward: what happened before goes on for so much longer."""
        self.now += seconds
        self.lanes = {lane: end + seconds for lane, end in self.lanes.items()}
        self.events = {name: end + seconds for name, end in self.events.items()}


def lanes_of(collective: Collective, network: Network, directions: str = "+-") -> tuple[Lane, ...]:
    """The lanes that a collective occupies.

    On a torus these are the links of its axes, one lane for each direction. A switch, and what
    joins slices or nodes, is one lane that all axes share.

    Args:
      directions: `+` or `-` for a shift in one direction; everything else takes both.
    """
    kinds = [level.kind for level in network.axes(collective.axes).levels]
    shared = tuple((kind, "") for kind in kinds if kind != "torus")
    if "torus" not in kinds:
        return shared
    links = ((axis, direction) for axis in collective.axes for direction in directions)
    return (*shared, *links)


def stream_of(collective: Collective) -> str:
    """The name of the stream that shows a collective in a timeline: `data, model`."""
    return ", ".join(collective.axes)
