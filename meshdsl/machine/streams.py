"""The streams of a device: one that computes, and lanes that move data meanwhile, each first come first served.

A lane is one direction of the links of a mesh axis, or the copies between the memories of a chip. What is launched on lanes runs while
the compute stream goes on; it waits for it where the result is used. After Jia et al., *Beyond data and model parallelism*, 2019.
"""

from __future__ import annotations

from collections.abc import Hashable

from meshdsl.record.collective import Collective

Lane = tuple[str, str]
COPIES: Lane = ("copies", "")


class Streams:
    """The clocks of all streams, in seconds.

    Attributes:
      now: until when the compute stream is busy.
      lanes: until when each lane is busy.
      events: when what was started under a name is finished.
    """

    def __init__(self):
        self.now = 0.0
        self.lanes: dict[Lane, float] = {}
        self.events: dict[Hashable, float] = {}
        self._under_way: dict[Hashable, frozenset[Lane]] = {}

    def compute(self, seconds: float) -> tuple[float, float]:
        start, self.now = self.now, self.now + seconds
        return start, self.now

    def launch(
        self, name: Hashable, lanes: tuple[Lane, ...], seconds: float, ready: float | None = None
    ) -> tuple[float, float]:
        """Start as soon as all `lanes` are free, and not before `ready` (now, if not given). The compute stream goes on."""
        start = max(
            [self.now if ready is None else ready, *(self.lanes.get(lane, 0.0) for lane in lanes)]
        )
        end = start + seconds
        for lane in lanes:
            self.lanes[lane] = end
        self.events[name] = end
        self._under_way[name] = frozenset(lanes)
        return start, end

    def hold(self, lanes: tuple[Lane, ...], seconds: float) -> tuple[float, float]:
        """Communicate now, while the compute stream waits. What is under way on these lanes shares them: it finishes that much later."""
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
        """Hold the compute stream until a moment; returns for how long."""
        waited = max(until - self.now, 0.0)
        self.now += waited
        return waited

    def skip(self, seconds: float) -> None:
        """Let the same thing happen for `seconds` more: everything that is under way moves with it."""
        self.now += seconds
        self.lanes = {lane: end + seconds for lane, end in self.lanes.items()}
        self.events = {name: end + seconds for name, end in self.events.items()}


def lanes_of(collective: Collective, network, directions: str = "+-") -> tuple[Lane, ...]:
    """The lanes that a collective occupies: on a torus both directions of the links of its axes, unless it is a shift in one direction; a switch and
    what joins slices or nodes is one lane, whatever the axes."""
    kinds = [level.kind for level in network.lay(collective.axes).levels]
    shared = tuple((kind, "") for kind in kinds if kind != "torus")
    return (
        *shared,
        *(
            (axis, direction)
            for axis in collective.axes
            for direction in directions
            if "torus" in kinds
        ),
    )


def stream_of(collective: Collective) -> str:
    """The name of its stream in a timeline: `data, model`."""
    return ", ".join(collective.axes)
