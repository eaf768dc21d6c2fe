"""Metrics of several runs as curves that can be compared."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from meshdsl.errors import MeshDSLError, nearest
from meshdsl.train.watch.metrics_file import StepMetrics, read_metrics
from meshdsl.train.watch.units import COUNTED, unit

# From how many seconds on a time is given in a unit, the seconds in one, and its name.
_TIME_UNITS = ((2 * 3600, 3600, "hours"), (2 * 60, 60, "minutes"), (0, 1, "seconds"))


@dataclass(frozen=True)
class Points:
    """Values `y` [n] at `x` [n], all of them finite."""

    x: np.ndarray
    y: np.ndarray


@dataclass(frozen=True)
class Curve:
    """A metric over the steps of one run.

    Attributes:
      run: the name of the run.
      line: the metric at every step, smoothed if that is asked for.
      raw: the metric as it was measured, if `line` is smoothed.
      validation: the same metric on held-out text, by the name of the dataset, which is empty where
        there is only one.
    """

    run: str
    line: Points
    raw: Points | None = None
    validation: dict[str, Points] = field(default_factory=dict)


@dataclass(frozen=True)
class Panel:
    """A metric, with a curve for each run that has it.

    Attributes:
      x_words: what x is, for example `time, hours`.
      counted: what the runs count their data in, see `units.unit`.
    """

    metric: str
    x_words: str
    curves: tuple[Curve, ...]
    counted: str = "tokens"

    @property
    def y_words(self) -> str:
        """What y is, for example `loss, nats per token`."""
        name, words = self.metric.replace("_", " "), unit(self.metric, self.counted)
        return f"{name}, {words}" if words not in ("", name) else name


def read_runs(folders: Sequence[Path]) -> dict[str, list[StepMetrics]]:
    """The metrics of the steps of each run.

    Returns:
      By the name of the run: the shortest end of its path that no other run has.

    Raises:
      MeshDSLError: a folder does not exist, or has no metrics.
    """
    runs = {folder: _read(folder) for folder in dict.fromkeys(folders)}
    return dict(zip(run_names(list(runs)), runs.values(), strict=True))


def check_run(folder: Path, *others: str) -> None:
    """Raise a MeshDSLError unless a folder has the metrics of a run, or one of the other files."""
    if not folder.is_dir():
        near = (
            nearest(folder.name, [each.name for each in folder.parent.iterdir() if each.is_dir()])
            if folder.parent.is_dir()
            else ""
        )
        raise MeshDSLError(f"no run {folder}{near}")
    if not any((folder / name).is_file() for name in ("metrics.jsonl", *others)):
        inside = sorted(each.parent.name for each in folder.glob("*/metrics.jsonl"))
        runs = f"; its folders have: {', '.join(inside)}" if inside else ""
        raise MeshDSLError(f"{folder}: is no run, it has no metrics.jsonl{runs}")


def _read(folder: Path) -> list[StepMetrics]:
    check_run(folder)
    steps = list(read_metrics(folder / "metrics.jsonl"))
    if not steps:
        raise MeshDSLError(f"{folder}: no step of the run is in its metrics.jsonl yet")
    return steps


def run_names(folders: Sequence[Path]) -> list[str]:
    """The ends of the paths of runs, all of the shortest length at which they differ."""
    parts = [folder.absolute().parts for folder in folders]
    names: list[str] = []
    for depth in range(1, max(map(len, parts)) + 1):
        names = ["/".join(part[-depth:]) for part in parts]
        if len(set(names)) == len(names):
            break
    return names


def panels(
    runs: dict[str, list[StepMetrics]], metrics: Iterable[str], x: str, smooth: int
) -> list[Panel]:
    """A panel for each of `metrics`.

    Args:
      runs: as from `read_runs`.
      x: what curves are drawn over: `step`, `time`, or one of `units.COUNTED`.
      smooth: the number of steps whose mean is drawn; 1 draws every step.

    Raises:
      MeshDSLError: no run has a metric, or a run has no values for `x`.
    """
    known = sorted({key for steps in runs.values() for step in steps for key in step} - {"step"})
    for metric in metrics:
        if metric not in known:
            raise MeshDSLError(f"no metric `{metric}` in {', '.join(runs)}{nearest(metric, known)}")
    along = {run: _along(run, steps, x) for run, steps in runs.items()}
    counts = [name for name in COUNTED if any(name in step for s in runs.values() for step in s)]
    # Runs of several tasks have no unit of the loss in common.
    counted = (counts or COUNTED)[0] if len(counts) < 2 else "examples"
    words, scale = _x_words(x, max(each[-1] for each in along.values()))
    return [
        Panel(
            metric,
            words,
            tuple(
                _curve(run, steps, along[run] / scale, metric, smooth)
                for run, steps in runs.items()
                if _has(steps, metric)
            ),
            counted,
        )
        for metric in metrics
    ]


def _has(steps: list[StepMetrics], metric: str) -> bool:
    return any(metric in step for step in steps)


def _along(run: str, steps: list[StepMetrics], x: str) -> np.ndarray:
    """The x of each step; for `time` the seconds of all steps until then."""
    key = "seconds" if x == "time" else x
    if not all(key in step for step in steps):
        raise MeshDSLError(f"{run}: its records have no `{key}`, so it cannot be drawn over {x}")
    values = np.asarray([step[key] for step in steps], float)
    return np.cumsum(values) if x == "time" else values


def _x_words(x: str, most: float) -> tuple[str, float]:
    """What x is in words, and what to divide its values by; `most` is the largest of them."""
    if x != "time":
        return x, 1.0
    scale, words = next((scale, words) for least, scale, words in _TIME_UNITS if most >= least)
    return f"time, {words}", float(scale)


def _curve(
    run: str, steps: list[StepMetrics], along: np.ndarray, metric: str, smooth: int
) -> Curve:
    raw = _points(steps, along, metric)
    line = Points(raw.x, smoothed(raw.y, smooth)) if smooth > 1 else raw
    # On held-out text: `validation_loss`, or with several datasets `validation/NAME/loss`.
    names = {f"validation_{metric}": ""} | {
        key: key.split("/", 1)[1].rpartition("/")[0]
        for step in steps
        for key in step
        if key.startswith("validation/") and key.endswith(f"/{metric}")
    }
    validation = {
        name: _points(steps, along, key)
        for key, name in names.items()
        if key != metric and _has(steps, key)
    }
    return Curve(run, line, raw if smooth > 1 else None, validation)


def _points(steps: list[StepMetrics], along: np.ndarray, metric: str) -> Points:
    y = np.asarray([step.get(metric, np.nan) for step in steps], float)
    finite = np.isfinite(y)
    return Points(along[finite], y[finite])


def smoothed(y: np.ndarray, count: int) -> np.ndarray:
    """The mean of the `count` values around each value of `y` [n]; of fewer at the ends."""
    total = np.concatenate([[0.0], np.cumsum(y)])
    at = np.arange(len(y))
    low, high = np.maximum(0, at - (count - 1) // 2), np.minimum(len(y), at + count // 2 + 1)
    return (total[high] - total[low]) / (high - low)
