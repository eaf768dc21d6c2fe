"""Metrics of several runs as curves that can be compared."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from meshdsl.errors import MeshDSLError, nearest
from meshdsl.train.watch.metrics_file import Record, read_records
from meshdsl.train.watch.units import unit

_TIMES = (
    (2 * 3600, 3600, "hours"),
    (2 * 60, 60, "minutes"),
    (0, 1, "seconds"),
)  # from how many seconds on, in one, its name
_MOST = 600  # pieces of a curve of which the least and the greatest value are drawn


@dataclass(frozen=True)
class Points:
    """Values `y` [n] at `x` [n], without any that are not finite."""

    x: np.ndarray
    y: np.ndarray


@dataclass(frozen=True)
class Curve:
    """A metric over one run.

    Attributes:
      run: its name.
      line: of every step; smoothed, where that is asked for.
      raw: as it was measured, where `line` is smoothed.
      validation: the same metric on held-out text, by the name of the dataset; of a lone dataset that is empty.
    """

    run: str
    line: Points
    raw: Points | None = None
    validation: dict[str, Points] = field(default_factory=dict)


@dataclass(frozen=True)
class Panel:
    """A metric over all runs that have it."""

    metric: str
    x_words: str
    curves: tuple[Curve, ...]

    @property
    def y_words(self) -> str:
        name = self.metric.replace("_", " ")
        return f"{name}, {unit(self.metric)}" if unit(self.metric) not in ("", name) else name


def read_runs(folders: Sequence[Path]) -> dict[str, list[Record]]:
    """The records of each run, by the shortest end of its path that tells it from the others.

    Raises:
      MeshDSLError: a folder does not exist, or has no metrics.
    """
    runs = {folder: _read(folder) for folder in dict.fromkeys(folders)}
    return dict(zip(_names(list(runs)), runs.values(), strict=True))


def _read(folder: Path) -> list[Record]:
    if not folder.is_dir():
        near = (
            nearest(folder.name, [each.name for each in folder.parent.iterdir() if each.is_dir()])
            if folder.parent.is_dir()
            else ""
        )
        raise MeshDSLError(f"no run {folder}{near}")
    path = folder / "metrics.jsonl"
    if not path.is_file():
        inside = sorted(each.parent.name for each in folder.glob("*/metrics.jsonl"))
        runs = f"; its folders have: {', '.join(inside)}" if inside else ""
        raise MeshDSLError(f"{folder}: is no run, it has no metrics.jsonl{runs}")
    records = list(read_records(path))
    if not records:
        raise MeshDSLError(f"{folder}: no step of the run is in its metrics.jsonl yet")
    return records


def _names(folders: list[Path]) -> list[str]:
    parts = [folder.absolute().parts for folder in folders]
    for depth in range(1, max(map(len, parts)) + 1):
        names = ["/".join(part[-depth:]) for part in parts]
        if len(set(names)) == len(names):
            break
    return names


def panels(
    runs: dict[str, list[Record]], metrics: Iterable[str], x: str, smooth: int
) -> list[Panel]:
    """A panel for each of `metrics`, over `x`: step, tokens or time; `smooth`: means of so many steps are drawn.

    Raises:
      MeshDSLError: no run has a metric.
    """
    known = sorted(
        {key for records in runs.values() for record in records for key in record} - {"step"}
    )
    for metric in metrics:
        if metric not in known:
            raise MeshDSLError(f"no metric `{metric}` in {', '.join(runs)}{nearest(metric, known)}")
    along = {run: _along(run, records, x) for run, records in runs.items()}
    words, scale = _x_words(x, max(each[-1] for each in along.values()))
    return [
        Panel(
            metric,
            words,
            tuple(
                _curve(run, records, along[run] / scale, metric, smooth)
                for run, records in runs.items()
                if _has(records, metric)
            ),
        )
        for metric in metrics
    ]


def _has(records: list[Record], metric: str) -> bool:
    return any(metric in record for record in records)


def _along(run: str, records: list[Record], x: str) -> np.ndarray:
    """Of each record the step, the tokens until then, or the seconds that all steps until then took."""
    key = {"step": "step", "tokens": "tokens", "time": "seconds"}[x]
    if not all(key in record for record in records):
        raise MeshDSLError(f"{run}: its records have no `{key}`, so it cannot be drawn over {x}")
    values = np.asarray([record[key] for record in records], float)
    return np.cumsum(values) if x == "time" else values


def _x_words(x: str, most: float) -> tuple[str, float]:
    if x != "time":
        return x, 1.0
    scale, words = next((scale, words) for least, scale, words in _TIMES if most >= least)
    return f"time, {words}", float(scale)


def _curve(run: str, records: list[Record], along: np.ndarray, metric: str, smooth: int) -> Curve:
    raw = _points(records, along, metric)
    line = Points(raw.x, smoothed(raw.y, smooth)) if smooth > 1 else raw
    names = {f"validation_{metric}": ""} | {
        key: key.split("/", 1)[1].rpartition("/")[0]
        for record in records
        for key in record
        if key.startswith("validation/") and key.endswith(f"/{metric}")
    }
    validation = {
        name: _points(records, along, key)
        for key, name in names.items()
        if key != metric and _has(records, key)
    }
    return Curve(run, thin(line), thin(raw) if smooth > 1 else None, validation)


def _points(records: list[Record], along: np.ndarray, metric: str) -> Points:
    y = np.asarray([record.get(metric, np.nan) for record in records], float)
    finite = np.isfinite(y)
    return Points(along[finite], y[finite])


def smoothed(y: np.ndarray, window: int) -> np.ndarray:
    """The mean of the `window` values around each one of `y` [n]; of fewer at the ends."""
    total = np.concatenate([[0.0], np.cumsum(y)])
    at = np.arange(len(y))
    low, high = np.maximum(0, at - (window - 1) // 2), np.minimum(len(y), at + window // 2 + 1)
    return (total[high] - total[low]) / (high - low)


def thin(points: Points) -> Points:
    """The same curve in at most 1,200 points: of each piece of it the least and the greatest value, so that no spike is lost."""
    if len(points.x) <= 2 * _MOST:
        return points
    edges = np.linspace(0, len(points.x), _MOST + 1).astype(int)
    kept = sorted(
        {
            low + int(pick(points.y[low:high]))
            for low, high in itertools.pairwise(edges)
            for pick in (np.argmin, np.argmax)
        }
    )
    return Points(points.x[kept], points.y[kept])
