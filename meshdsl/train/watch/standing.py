"""How a run stands, read from its folder while it goes on or when it has ended."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from meshdsl.figures import byte_words, clock_words, long_words
from meshdsl.train.watch.curves import check_run
from meshdsl.train.watch.events import Event, read_events
from meshdsl.train.watch.goodput import Goodput, goodput_of
from meshdsl.train.watch.metrics_file import MetricsReader, StepMetrics, is_finite
from meshdsl.train.watch.units import COUNTED, SPEED

_NEWEST = 20  # steps whose median says how long a step takes
_PATIENCE = 60.0  # seconds without a sign of life, or so many steps, and a run counts as gone
_STEPS = 10
_SPEEDS = tuple(f"{counted}{SPEED}" for counted in COUNTED)
_KEPT = {"step", "time", "loss", "skipped", "seconds", "mfu_causal", "memory_bytes", *_SPEEDS}
_KEPT |= {"memory_peak_bytes", "startup_seconds", "slow_processes", "learning_rate"}


@dataclass(frozen=True)
class Standing:
    """How a run stands.

    Attributes:
      name: of the run.
      state: in words: `running`, `starting`, `finished`, `preempted`, `no sign of life`, ...
      steps: of the whole run; None where no event says so.
      lines: of each step some of its metrics.
      events: in their order. Where a start has no end and another follows it, `gone` stands between
        them, with the time of its last sign of life.
      goodput: None where no event says when the run began.
      now: when this was read, in seconds since 1970.
      seen: the last sign of life; None where there is none.
    """

    name: str
    state: str
    steps: int | None
    lines: Sequence[StepMetrics]
    events: Sequence[Event]
    goodput: Goodput | None
    now: float
    seen: float | None

    @property
    def state_words(self) -> str:
        """The state, and for how long it has been so: `no sign of life for 5 min`."""
        starts = [event["time"] for event in self.events if event["event"] == "start"]
        since = {"no sign of life": self.seen, "starting": max(starts, default=None)}
        began = since.get(self.state)
        return (
            self.state
            if began is None
            else f"{self.state} for {long_words(round(self.now - began))}"
        )

    @property
    def step(self) -> int:
        """The newest step that is done."""
        return self.lines[-1]["step"] if self.lines else 0

    @property
    def speed(self) -> str | None:
        """The name of the metric that is the speed of training."""
        return next((name for name in _SPEEDS if self.lines and name in self.lines[-1]), None)

    def newest(self, metric: str) -> float | None:
        """The value of a metric in the newest step; None where it has none."""
        return self.lines[-1].get(metric) if self.lines else None

    def typical(self, metric: str) -> float | None:
        """The median of a metric over the newest steps; None where they have none."""
        found = [line[metric] for line in self.lines[-_NEWEST:] if is_finite(line.get(metric))]
        return statistics.median(found) if found else None

    def facts(self) -> Iterator[tuple[str, str]]:
        """What its newest steps say, in words: `("loss", "2.4529")`."""
        yield "step", f"{self.step:,}" + (f" of {self.steps:,}" if self.steps else "")
        if self.state == "running" and self.left:
            yield "left", clock_words(self.left)
        for name in ("loss", "validation_loss"):
            values = [line[name] for line in self.lines if name in line][-1:]
            yield from ((name.replace("_", " "), f"{value:.4f}") for value in values)
        if self.speed and (speed := self.typical(self.speed)) is not None:
            yield f"{self.speed.removesuffix(SPEED)}/s", f"{speed:,.0f}"
        if (mfu := self.typical("mfu_causal")) is not None:
            yield "MFU", f"{mfu:.1%}"
        if is_finite(used := self.newest("memory_bytes")):
            peak = self.newest("memory_peak_bytes")
            more = f", peak {byte_words(peak)}" if is_finite(peak) else ""
            yield "memory", byte_words(used) + more
        if slow := self.newest("slow_processes"):
            yield "slow processes", f"{slow:.0f}"

    @property
    def left(self) -> float | None:
        """Seconds to the end, as the newest steps went; None where that is unknown."""
        seconds = self.typical("seconds")
        return None if seconds is None or not self.steps else seconds * (self.steps - self.step)


class RunReader:
    """Reads how a run stands, as often as wanted.

    Raises:
      MeshDSLError: there is no run in the folder.
    """

    def __init__(self, name: str, folder: Path):
        check_run(folder, "events.jsonl")
        self._name, self._events = name, folder / "events.jsonl"
        self._metrics = MetricsReader(folder / "metrics.jsonl", _is_kept)

    def standing(self, now: float) -> Standing:
        """How the run stands at `now`, in seconds since 1970."""
        lines, events = self._metrics.lines(), read_events(self._events)
        seen = max(_signs(lines, events), default=None)
        state = _state(lines, events, now, seen)
        going = state in ("running", "starting")
        spent = goodput_of(events, lines, now if going else None)
        starts = [event for event in events if event["event"] == "start"]
        steps = starts[-1].get("steps") if starts else None
        return Standing(
            name=self._name,
            state=state,
            steps=int(steps) if is_finite(steps) else None,
            lines=lines,
            events=list(_with_gone(events)),
            goodput=spent,
            now=now,
            seen=seen,
        )


def _is_kept(metric: str) -> bool:
    return metric in _KEPT or metric.endswith("_seconds") or metric.startswith("validation")


def _signs(lines: Sequence[StepMetrics], events: Sequence[Event]) -> Iterator[float]:
    """The times of signs of life of the newest start."""
    if lines and is_finite(lines[-1].get("time")):
        yield lines[-1]["time"]
    for event in events[-1:]:
        yield from (event[key] for key in ("time", "written") if is_finite(event.get(key)))


def _state(
    lines: Sequence[StepMetrics], events: Sequence[Event], now: float, seen: float | None
) -> str:
    newest = {one["event"]: i for i, one in enumerate(events)}
    start, end = newest.get("start", -1), newest.get("end", -1)
    if end > start:
        return str(events[end].get("reason", "ended"))
    if seen is None:
        return "unknown"
    if newest.get("first_step", -1) < start:
        return "starting"
    took = [line["seconds"] for line in lines[-_NEWEST:] if is_finite(line.get("seconds"))]
    patience = max(_PATIENCE, _STEPS * statistics.median(took)) if took else _PATIENCE
    return "running" if now - seen < patience else "no sign of life"


def _with_gone(events: Sequence[Event]) -> Iterator[Event]:
    """The events, and where a start without an end was gone."""
    before: Mapping[str, object] | None = None
    for event in events:
        if event["event"] == "start" and before and before["event"] != "end":
            times = [one for one in (before["time"], event.get("seen")) if is_finite(one)]
            yield {"time": max(times), "event": "gone"}
        yield event
        before = event
