"""Which faults a run will meet: how often each kind comes, and traces of them that are drawn.

All times between faults are exponential: a machine does not age, and a fault brings no other one.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields
from typing import Literal, NamedTuple

from meshdsl.errors import MeshDSLError
from meshdsl.rehearsal.words import parse_pairs

FLAG = "--faults"


@dataclass(frozen=True)
class Faults:
    """How often faults come, in seconds; None: never.

    Attributes:
      mtbf: mean time between faults of a host, a chip or a process anywhere in the whole job, with
        all its slices: the run dies, and a machine or a process takes the place of the lost one.
      host_mtbf: the same of one host, instead of `mtbf`.
      slice_mtbf: mean time until one slice is gone as a whole.
      slice_back: seconds until such a slice is there again.
    """

    mtbf: float | None = None
    host_mtbf: float | None = None
    slice_mtbf: float | None = None
    slice_back: float = 3600.0

    def of_job(self, hosts: int) -> float | None:
        """Mean seconds between faults of the first kind in a job of so many hosts."""
        return self.host_mtbf / hosts if self.host_mtbf else self.mtbf

    def mean(self, hosts: int, slices: int) -> float:
        """Mean seconds between faults of all kinds in a job of so many hosts and slices."""
        found = [self.of_job(hosts), self.slice_mtbf and self.slice_mtbf / slices]
        return 1 / sum(1 / mean for mean in found if mean)

    def scaled(self, by: float) -> Faults:
        """The faults of a day in a day divided by `by`."""
        times = {f.name: getattr(self, f.name) for f in fields(self)}
        return Faults(**{name: value and value / by for name, value in times.items()})


def parse_faults(text: str) -> Faults:
    """The faults in `mtbf=4h,slice_mtbf=3d`.

    Raises:
      MeshDSLError: a key is unknown, its value no time with a unit, or no fault is named.
    """
    found = parse_pairs(FLAG, text, [f.name for f in fields(Faults)])
    if not found.keys() - {"slice_back"}:
        raise MeshDSLError(f"{FLAG} {text}: expected faults, as mtbf=4h,slice_mtbf=3d")
    if {"mtbf", "host_mtbf"} <= found.keys():
        raise MeshDSLError(
            f"{FLAG} {text}: mtbf is that of the whole job and host_mtbf that of one host; give "
            "one of the two"
        )
    if "slice_back" in found and "slice_mtbf" not in found:
        raise MeshDSLError(f"{FLAG} {text}: slice_back needs a slice_mtbf")
    return Faults(**found)


class Event(NamedTuple):
    """Something that happens to the machines of a job.

    Attributes:
      seconds: since the job began.
      kind: `fault`: of a host or a process; `lost`: a slice is gone; `back`: it is there again.
      slice: its number, for the last two.
      chance: drawn between 0 and 1, for what the time alone does not say.
    """

    seconds: float
    kind: Literal["fault", "lost", "back"]
    slice: int
    chance: float


class _Stream:
    """Events of one source, drawn as far as somebody has asked."""

    def __init__(self, seed: str, draw: Callable[[random.Random, float], list[Event]]):
        self._random, self._draw, self._drawn = random.Random(seed), draw, list[Event]()

    def __iter__(self) -> Iterator[Event]:
        i = 0
        while True:
            if i == len(self._drawn):
                after = self._drawn[-1].seconds if self._drawn else 0.0
                self._drawn += self._draw(self._random, after)
            yield self._drawn[i]
            i += 1


class Trace:
    """Faults that were drawn: the same ones for whatever run meets them.

    Args:
      hosts: of the whole job, without spare slices.
      seed: another one draws other faults.
    """

    def __init__(self, faults: Faults, hosts: int, seed: int):
        self._faults, self._seed = faults, seed
        self._mtbf = faults.of_job(hosts)
        self._streams: dict[int, _Stream] = {}

    def events(self, slices: int) -> Iterator[Event]:
        """What happens, in its order and without an end.

        A slice has the same losses however many there are.

        Args:
          slices: of the job, with spare ones.
        """
        sources = [-1] if self._mtbf else []
        if self._faults.slice_mtbf:
            sources += range(slices)
        return heapq.merge(*(self._stream(number) for number in sources))

    def _stream(self, number: int) -> _Stream:
        if number not in self._streams:
            draw = self._slice(number) if number >= 0 else self._fault
            self._streams[number] = _Stream(f"{self._seed} {number}", draw)
        return self._streams[number]

    def _fault(self, source: random.Random, after: float) -> list[Event]:
        assert self._mtbf
        at = after + source.expovariate(1 / self._mtbf)
        return [Event(at, "fault", -1, source.random())]

    def _slice(self, number: int) -> Callable[[random.Random, float], list[Event]]:
        def draw(source: random.Random, after: float) -> list[Event]:
            assert self._faults.slice_mtbf
            at = after + source.expovariate(1 / self._faults.slice_mtbf)
            back = at + self._faults.slice_back
            lost = Event(at, "lost", number, source.random())
            return [lost, Event(back, "back", number, 0.0)]

        return draw
