"""The ways to run it, side by side, each over the same drawn traces of faults."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from statistics import fmean, quantiles
from typing import Any

from meshdsl.rehearsal.closed_form import daly
from meshdsl.rehearsal.faults import Faults, Trace
from meshdsl.rehearsal.run import Option, Run
from meshdsl.rehearsal.simulate import CAUSES, Outcome, simulate

_LONGEST = 86400.0  # seconds: the longest interval between checkpoints that is tried
_FINER = 2**0.5  # between two intervals that are tried
_BETTER = 1e-4  # by this part of the time a longer interval has to be better to be chosen
_SEARCHED = 12  # traces by which the interval is chosen


@dataclass(frozen=True)
class Row:
    """A way to run it, and what comes of it.

    Attributes:
      interval: seconds of steps between two checkpoints, in the first stretch.
      outcomes: one for each trace.
      chips: of the job, those of spare slices among them.
      useful: chips that the run uses.
    """

    option: Option
    interval: float
    outcomes: tuple[Outcome, ...]
    chips: int
    useful: int

    @cached_property
    def goodput(self) -> float:
        """The share of the time of all traces that went into steps that count."""
        return self.outcomes[0].work / self.seconds

    @cached_property
    def spread(self) -> tuple[float, float]:
        """The goodput that 5% and 95% of the traces stay below."""
        if len(self.outcomes) == 1:
            return self.goodput, self.goodput
        cuts = quantiles([outcome.goodput for outcome in self.outcomes], n=20, method="inclusive")
        return cuts[0], cuts[-1]

    @cached_property
    def seconds(self) -> float:
        return fmean(outcome.seconds for outcome in self.outcomes)

    @property
    def faults(self) -> float:
        return fmean(outcome.faults for outcome in self.outcomes)

    @cached_property
    def losses(self) -> dict[str, float]:
        """By cause, the share of the time."""
        each = {cause: fmean(o.losses[cause] for o in self.outcomes) for cause in CAUSES}
        return {cause: seconds / self.seconds for cause, seconds in each.items()}

    @property
    def chip_hours(self) -> float:
        return self.seconds / 3600 * self.chips

    @property
    def wasted(self) -> float:
        """Chip hours that were no steps that count."""
        return self.chip_hours - self.outcomes[0].work / 3600 * self.useful

    def to_dict(self) -> dict[str, Any]:
        return {
            "memory": bool(self.option.memory),
            "spares": self.option.spares,
            "fewer": self.option.fewer,
            "every": list(self.option.every),
            "memory_every": [2 * steps for steps in self.option.memory],
            "interval_seconds": self.interval,
            "goodput": self.goodput,
            "goodput_5": self.spread[0],
            "goodput_95": self.spread[1],
            "seconds": self.seconds,
            "faults": self.faults,
            "chip_hours": self.chip_hours,
            "wasted_chip_hours": self.wasted,
            "losses": self.losses,
        }


@dataclass(frozen=True)
class Rehearsal:
    """What a rehearsal needs to know.

    Attributes:
      chips: of one slice.
      set: steps between two checkpoints as the settings of the run have them, of each stretch.
      spares: the most spare slices that are tried.
    """

    run: Run
    faults: Faults
    traces: tuple[Trace, ...]
    chips: int
    set: tuple[int, ...]
    spares: int = 0

    @property
    def mtbf(self) -> float:
        """Mean seconds between faults of all kinds in the job."""
        return self.faults.mean(self.run.hosts, self.run.slices)

    def row(self, option: Option, traces: int | None = None) -> Row:
        run = self.run
        interval = option.every[0] * run.stretches[0].seconds
        outcomes = tuple(simulate(run, option, trace) for trace in self.traces[:traces])
        useful = run.slices * self.chips
        return Row(option, interval, outcomes, useful + option.spares * self.chips, useful)

    def as_set(self) -> Row:
        """The run as its settings have it: no copies, no spare slices."""
        return self.row(Option(self.set))

    def rows(self) -> Iterator[Row]:
        """Each way to run it, at the best interval between checkpoints."""
        shared = self.faults.slice_mtbf is not None
        for memory in self.memories:
            every = self.run.every(self.best_interval(memory))
            for spares in range(self.spares + 1):
                for fewer in (False, True) if shared and self.run.slices > 1 else (False,):
                    yield self.row(Option(every, memory, spares, fewer))

    @property
    def memories(self) -> Sequence[tuple[int, ...]]:
        """The steps between two copies in memory: no copies, and the best by Daly's formula."""
        if self.run.hosts < 2:
            return [()]
        run = self.run
        return [(), run.every(max(daly(run.handover, self.mtbf), run.copy))]

    @cached_property
    def tried(self) -> dict[tuple[int, ...], dict[float, Row]]:
        """For each of `memories`, rows by the interval between checkpoints.

        They go from a short interval on until it is too long.
        """
        return {memory: self._tried(memory) for memory in self.memories}

    def _tried(self, memory: tuple[int, ...]) -> dict[float, Row]:
        run = self.run
        longest = min(_LONGEST, run.work(run.steps))
        option = Option((), memory, self.spares)
        interval = max(daly(run.handover, self.mtbf), run.write) / 4
        interval = min(longest, max(interval, run.stretches[0].seconds))
        found: dict[float, Row] = {}
        worse = 0
        while worse < 4 and interval <= longest:
            found[interval] = self.row(replace(option, every=run.every(interval)), _SEARCHED)
            best = min(row.seconds for row in found.values())
            worse = worse + 1 if found[interval].seconds > best else 0
            interval *= _FINER
        return found

    def best_interval(self, memory: tuple[int, ...]) -> float:
        """Of the intervals that are as good as the best one, the shortest."""
        rows = self.tried[memory]
        best = min(row.seconds for row in rows.values())
        return next(each for each, row in rows.items() if row.seconds <= best * (1 + _BETTER))
