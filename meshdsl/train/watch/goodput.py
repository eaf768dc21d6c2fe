"""Goodput: which part of a run's time went into steps that count, and where the rest went.

    goodput(Path("runs/a")).share  # 0.93

A run that is killed leaves no word. What is known of its end is its last sign of life: its last
line of metrics or its last event. So the step that was running then counts as time without a run.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from meshdsl.errors import MeshDSLError
from meshdsl.train.watch.events import Event, read_events
from meshdsl.train.watch.metrics_file import StepMetrics, is_finite, read_metrics
from meshdsl.train.watch.step_timer import BESIDE, IDLE, TRAINING, parts

# What the time goes into that is not in steps that count, each with its words.
CAUSES = {
    "start": "starting",
    "down": "no process ran",
    "lost": "steps that were trained again",
    "skipped": "steps that changed nothing",
    "input": "devices waited for input",
    "checkpoint": "checkpoints",
    "copy": "copies in memory",
    "validation": "validation",
    "phase": "changes of phase",
    "profile": "traces and ledgers",
    "repeat": "gradients computed twice",
    "rest": "the rest",
}


@dataclass(frozen=True)
class Goodput:
    """Where the time of a run went, in seconds. `good` and all of `losses` sum to `wall`.

    Attributes:
      wall: from the first start to the last sign of life, or to now. Where the clock was set back,
        at least what was measured.
      good: in steps that count, as `step_seconds` and `input_seconds` of their metrics have it:
        those that are in metrics.jsonl, but for the first step of each start, which belongs to the
        start, and for skipped ones. Reading a batch counts, because the devices compute meanwhile,
        unless they had nothing to do; see `input`.
      losses: by the names in CAUSES.
        `start`: from the start of a process to the end of its first step.
        `down`: from the end of a start, or its last sign of life, to the next start.
        `lost`: steps that were dropped because the run went back to a checkpoint, and going back.
        `skipped`: steps whose loss or gradient was not finite.
        `input`: reading batches in steps in which the host did not wait for the devices (less than
        a hundredth of the step): so the devices were done, and waited for input, for at most as
        long as this.
        `checkpoint`, `copy`, `validation`, `phase`, `profile`, `repeat`: as the metrics have it.
        `rest`: what was measured by nobody, and the step that runs now.
      start_parts: `start` by its parts, such as `import` and `compile`; `unfinished` is the time of
        starts that came to no step.
      steps: how many count, the first ones of starts included.
      lost_steps: how many were trained and dropped.
      starts: how often the run was started.
    """

    wall: float
    good: float
    losses: Mapping[str, float]
    start_parts: Mapping[str, float] = field(default_factory=dict)
    steps: int = 0
    lost_steps: int = 0
    starts: int = 0

    @property
    def share(self) -> float:
        """The part of the time that was spent in steps that count, from 0 to 1."""
        return self.good / self.wall if self.wall else 0.0


def goodput(folder: Path, now: float | None = None) -> Goodput:
    """The goodput of the run in `folder`, which may be running.

    Args:
      now: seconds since 1970, for a run that goes on; None: until its last sign of life.

    Raises:
      MeshDSLError: no event says when the run began.
    """
    metrics = folder / "metrics.jsonl"
    lines = read_metrics(metrics) if metrics.is_file() else ()
    found = goodput_of(read_events(folder / "events.jsonl"), lines, now)
    if found is None:
        raise MeshDSLError(f"{folder}: has no goodput, because no event says when it was started")
    return found


def goodput_of(
    events: Iterable[Event], lines: Iterable[StepMetrics], now: float | None = None
) -> Goodput | None:
    """As `goodput`, of events and metrics that have been read; None where there is no start."""
    spans = _Spans(events)
    if not spans.starts:
        return None
    tally = _Tally()
    for event in spans.events:
        tally.event(event)
    for line in lines:
        if is_finite(line.get("time")):  # else it is of a version that wrote no events
            spans.sign(line["time"])
            tally.line(line)
    if now is not None:
        spans.sign(now)
    start_parts, started = spans.started()
    losses = dict.fromkeys(CAUSES, 0.0) | tally.losses
    losses |= {"start": started, "down": spans.down()}
    measured = tally.good + sum(losses.values())
    wall = max(spans.wall(), measured)
    losses["rest"] = wall - measured
    return Goodput(
        wall, tally.good, losses, start_parts, tally.steps, tally.lost_steps, len(spans.starts)
    )


class _Tally:
    """The seconds that steps measured, by what they went into."""

    def __init__(self) -> None:
        self.good = 0.0
        self.losses: dict[str, float] = {}
        self.steps = self.lost_steps = 0

    def line(self, line: StepMetrics) -> None:
        self.steps += 1
        spent = {what: seconds for what, seconds in parts(line).items() if is_finite(seconds)}
        training = sum(spent.get(what, 0.0) for what in TRAINING)
        waited = line.get("wait_seconds", training)
        idle = spent.get("input", 0.0) if waited < IDLE * training else 0.0
        if line.get("skipped"):
            self._lose("skipped", training)
        else:
            self.good += training - idle
            self._lose("input", idle)
        self._lose_beside(spent)

    def event(self, event: Event) -> None:
        if event["event"] in ("lost", "rollback"):
            self._lose("lost", _seconds(event, "seconds"))
            self.lost_steps += int(_seconds(event, "steps"))
        if event["event"] in ("lost", "rollback", "end"):
            self._lose_beside({what: _seconds(event, f"{what}_seconds") for what in BESIDE})

    def _lose_beside(self, spent: Mapping[str, float]) -> None:
        for what, seconds in spent.items():
            if what not in TRAINING:
                self._lose(what, seconds)

    def _lose(self, what: str, seconds: float) -> None:
        self.losses[what] = self.losses.get(what, 0.0) + seconds


class _Spans:
    """The starts of a run, and for each its last sign of life, by the clock."""

    def __init__(self, events: Iterable[Event]):
        self.events = list(events)
        self.starts = sorted(one["time"] for one in self.events if one["event"] == "start")
        self._first = [{} for _ in self.starts]  # the event of the first step of each start
        self._ends = list(self.starts)
        for event in self.events:
            for key in ("time", "written", "seen"):
                if is_finite(event.get(key)):
                    at = self.sign(event[key])
                    if key == "time" and event["event"] == "first_step" and at >= 0:
                        self._first[at] = event

    def sign(self, time: float) -> int:
        """Take a sign of life; returns the number of its start, and -1 for what was before."""
        at = bisect_right(self.starts, time) - 1
        if at >= 0:
            self._ends[at] = max(self._ends[at], time)
        return at

    def wall(self) -> float:
        return self._ends[-1] - self.starts[0]

    def down(self) -> float:
        return sum(
            begins - ended for ended, begins in zip(self._ends, self.starts[1:], strict=False)
        )

    def started(self) -> tuple[dict[str, float], float]:
        """What the starts took: by their parts, and in all."""
        sums: dict[str, float] = {}
        for begins, ended, first in zip(self.starts, self._ends, self._first, strict=True):
            found = {
                key.removeprefix("startup_").removesuffix("_seconds"): _seconds(first, key)
                for key in first
                if key.startswith("startup_") and key != "startup_seconds"
            }
            for part, seconds in (found or {"unfinished": ended - begins}).items():
                sums[part] = sums.get(part, 0.0) + seconds
        return sums, sum(sums.values())


def _seconds(found: Mapping[str, Any], key: str) -> float:
    """A number of an event or a line of metrics that cannot be negative; 0 where it has none."""
    value = found.get(key)
    return max(0.0, value) if is_finite(value) else 0.0
