"""What is known of a run before it begins: its steps, what a save takes, how it starts again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate


@dataclass(frozen=True)
class Stretch:
    """Steps that take equally long: those of a phase.

    Attributes:
      steps: how many.
      seconds: of one step, with all machines.
    """

    steps: int
    seconds: float


@dataclass(frozen=True)
class Restart:
    """Seconds of the parts of a start after a fault, but for the reading of the state.

    Attributes:
      detect: until the others know that one is gone, and have ended.
      replace: until a machine stands in its place. A slice that takes the place of another one is
        there already.
      start: of processes, until they have met and have checked the run.
      compile: of the step, which is in the cache.
      first: of the first start of the run, in all.
    """

    detect: float = 45.0
    replace: float = 120.0
    start: float = 60.0
    compile: float = 60.0
    first: float = 600.0


@dataclass(frozen=True)
class Run:
    """A run. All times are in seconds.

    Attributes:
      stretches: its steps, in their order.
      handover: that steps wait while a save copies arrays to the memory of the hosts.
      write: from then until the checkpoint is complete, beside the steps.
      restore: to read a checkpoint.
      copy: to send the state from the memory of each host to that of a neighbour, beside the steps.
      fetch: to bring it from there to the devices again.
      restart: the other parts of a start.
      new: that the first save of a start takes from the steps beside `handover`.
      hosts: of all slices.
      slices: that the run has with all its machines.
    """

    stretches: tuple[Stretch, ...]
    handover: float
    write: float
    restore: float
    copy: float = 0.0
    fetch: float = 0.0
    restart: Restart = field(default_factory=Restart)
    new: float = 0.0
    hosts: int = 1
    slices: int = 1

    @property
    def steps(self) -> int:
        return sum(stretch.steps for stretch in self.stretches)

    @property
    def ends(self) -> list[int]:
        """The last step of each stretch, counted from 1."""
        return list(accumulate(stretch.steps for stretch in self.stretches))

    def work(self, steps: float) -> float:
        """Seconds that so many steps from the first one take, when nothing comes between."""
        total, before = 0.0, 0
        for stretch in self.stretches:
            total += stretch.seconds * min(max(0.0, steps - before), stretch.steps)
            before += stretch.steps
        return total

    def every(self, seconds: float) -> tuple[int, ...]:
        """So many seconds in whole steps of each stretch, at least one."""
        return tuple(max(1, round(seconds / stretch.seconds)) for stretch in self.stretches)

    @property
    def restarting(self) -> float:
        """Seconds from a fault until the next step begins, where a machine is replaced."""
        parts = self.restart
        return parts.detect + parts.replace + parts.start + self.restore + parts.compile


@dataclass(frozen=True)
class Option:
    """A way to run it.

    Attributes:
      every: steps between two checkpoints, of each stretch.
      memory: steps between two copies of the state in the memory of neighbours, of each stretch;
        empty: there are none.
      spares: slices that stand by.
      fewer: whether the run goes on with fewer slices while one is gone; else it waits for it.
    """

    every: Sequence[int]
    memory: Sequence[int] = ()
    spares: int = 0
    fewer: bool = False
