"""From how a run stands to what its page shows."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence

from meshdsl.figures import byte_words, clock_words, long_words
from meshdsl.tools.run_page import Chart, Happened, RunView
from meshdsl.train.watch.event_words import event_words
from meshdsl.train.watch.goodput import CAUSES
from meshdsl.train.watch.metrics_file import StepMetrics, is_finite
from meshdsl.train.watch.standing import Standing
from meshdsl.train.watch.units import SPEED

_POINTS = 600  # of a curve, at most
_EVENTS = 200  # the newest of a run, that are listed and marked
_BAD = {"lost", "rollback", "gone", "skipped"}
_LEAST = 0.0005  # of the time of a run: what takes less is left out


def view_of(run: Standing) -> RunView:
    """What the page shows of a run."""
    timed = bool(run.events) and all(is_finite(line.get("time")) for line in run.lines)
    began = run.events[0]["time"] if timed else 0.0
    axis = (lambda line: line["time"] - began) if timed else (lambda line: float(line["step"]))
    starts = [event["time"] - began for event in run.events if event["event"] == "start"]
    return RunView(
        name=run.name,
        state=run.state_words,
        facts=list(run.facts()),
        charts=_charts(run, axis, starts if timed else []),
        x_words=clock_words if timed else "{:,.0f}".format,
        timed=timed,
        parts=_parts(run),
        parts_title=f"Goodput {run.goodput.share:.1%} of {clock_words(run.goodput.wall)}"
        if run.goodput
        else "",
        seconds_words=clock_words,
        events=[_happened(event, run, began) for event in run.events[-_EVENTS:]],
    )


def _charts(
    run: Standing, axis: Callable[[StepMetrics], float], starts: Sequence[float]
) -> list[Chart]:
    speed = run.speed or ""
    shown: list[tuple[str, str, Callable[[float], str]]] = [
        ("loss", "Loss", "{:.4g}".format),
        (speed, f"{speed.removesuffix(SPEED)} per second".capitalize(), "{:,.0f}".format),
        ("mfu_causal", "MFU", "{:.1%}".format),
        ("memory_bytes", "Memory of the fullest device", byte_words),
    ]
    found = []
    for metric, title, words in shown:
        points = [(axis(line), line[metric]) for line in run.lines if is_finite(line.get(metric))]
        held_out = f"validation_{metric}"
        dots = [(axis(line), line[held_out]) for line in run.lines if is_finite(line.get(held_out))]
        if points:
            most = max(y for _, y in points)
            unit = 1024.0 ** int(math.log2(max(1.0, most)) / 10) if words is byte_words else 1.0
            found.append(Chart(title, _pieces(points, starts), words, dots, unit))
    return found


def _pieces(
    points: Sequence[tuple[float, float]], starts: Sequence[float]
) -> list[list[tuple[float, float]]]:
    """The points of each start, as means of some that follow each other."""
    size = max(1, math.ceil(len(points) / _POINTS))
    pieces: list[list[tuple[float, float]]] = []
    bounds = [*starts[1:], math.inf]
    rest = list(points)
    for bound in bounds:
        piece = [point for point in rest if point[0] < bound]
        rest = rest[len(piece) :]
        if piece:
            groups = [piece[i : i + size] for i in range(0, len(piece), size)]
            pieces.append([_mean(group) for group in groups])
    return pieces


def _mean(points: Sequence[tuple[float, float]]) -> tuple[float, float]:
    return (
        math.fsum(x for x, _ in points) / len(points),
        math.fsum(y for _, y in points) / len(points),
    )


def _parts(run: Standing) -> list[tuple[str, float]]:
    if not run.goodput:
        return []
    least = _LEAST * run.goodput.wall
    lost = sorted(run.goodput.losses.items(), key=lambda item: -item[1])
    return [
        ("steps that count", run.goodput.good),
        *((CAUSES[cause], seconds) for cause, seconds in lost if seconds > least),
    ]


def _happened(event: dict, run: Standing, began: float) -> Happened:
    bad = event["event"] in _BAD or "error" in event or bool(event.get("hosts"))
    sort = "bad" if bad else "start" if event["event"] in ("start", "end") else ""
    when = time.strftime("%m-%d %H:%M:%S", time.localtime(event["time"]))
    words = f"{when}, {long_words(round(run.now - event['time']))} ago"
    x = event["time"] - began if began else float(event.get("step") or 0)
    return Happened(x, words, event_words(event), sort)
