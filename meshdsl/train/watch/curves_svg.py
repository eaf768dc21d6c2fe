"""Draws the curves of one panel as an SVG picture."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from meshdsl.report.page.markup import Markup, svg, tag
from meshdsl.train.watch.curves import Curve, Panel, Points
from meshdsl.train.watch.style import DASHES, MARKS, interleaved_dashes, mark_sizes, style

# All in pixels.
_WIDTH, _HEIGHT = 920, 400
_LEFT, _RIGHT, _TOP, _BOTTOM = 64, 34, 14, 44  # margins around the curves
_LABEL_WIDTH, _LABEL_HEIGHT = 24, 15  # the distance at which two labels do not touch


class Scales:
    """Turns values of a panel into positions in its picture.

    Attributes:
      box: left, right, top and bottom of the curves in pixels, then the least and the greatest x
        and the least and the greatest y.
    """

    def __init__(self, panel: Panel):
        shown = [
            points
            for curve in panel.curves
            for points in (curve.line, curve.raw, *curve.validation.values())
            if points is not None and len(points.x)
        ]
        x, y = (
            np.concatenate([getattr(points, name) for points in shown]) if shown else np.zeros(1)
            for name in "xy"
        )
        self.x = _range(min(0.0, x.min()), x.max())
        self.y = _range(y.min(), y.max(), 0.04)
        self.box = [_LEFT, _WIDTH - _RIGHT, _TOP, _HEIGHT - _BOTTOM, *self.x, *self.y]

    def positions(self, points: Points) -> tuple[np.ndarray, np.ndarray]:
        """How far right and how far down each point is, in pixels."""
        left, right, top, bottom, x0, x1, y0, y1 = self.box
        across = left + (points.x - x0) / (x1 - x0) * (right - left)
        down = bottom - (points.y - y0) / (y1 - y0) * (bottom - top)
        return across, down

    def path(self, points: Points) -> str:
        """The `d` of an SVG path through the points; a lone point is a line of no length."""
        across, down = self.positions(points)
        if not len(across):
            return ""
        corners = "L".join(f"{a:.1f} {b:.1f}" for a, b in zip(across, down, strict=True))
        return f"M{corners}" + "h0" * (len(across) == 1)


def _range(low: float, high: float, margin: float = 0.0) -> tuple[float, float]:
    """The range that is shown for values from `low` to `high`, and `margin` of it on both sides."""
    size = high - low or abs(high) or 1.0
    return float(low - margin * size), float((high if high > low else low + size) + margin * size)


def picture(panel: Panel, runs: list[str], datasets: list[str], scales: Scales) -> Markup:
    """The picture of a panel.

    Args:
      runs: all runs on the page; the position of a run here is its number.
      datasets: all held-out datasets of the panel; the position of one here decides its mark.
    """
    ends = "; ".join(_end_in_words(curve) for curve in panel.curves)
    title = f"{panel.y_words}, over {panel.x_words}: {ends}"
    parts = [
        _grid(scales),
        tag(
            "text",
            panel.x_words,
            x=(_LEFT + _WIDTH - _RIGHT) / 2,
            y=_HEIGHT - 8,
            class_="middle small",
        ),
        *(_curve(curve, runs.index(curve.run), scales) for curve in panel.curves),
        *_interleaved(panel, runs, scales),
        *_marks(panel, runs, datasets, scales),
        tag("g", _labels(panel, runs, scales)),
        tag(
            "line", x1=0, x2=0, y1=_TOP, y2=_HEIGHT - _BOTTOM, class_="cursor", visibility="hidden"
        ),
    ]
    return svg(title, _WIDTH, _HEIGHT, parts, class_="curves", tabindex="0")


def _end_in_words(curve: Curve) -> str:
    if not len(curve.line.y):
        return f"{curve.run} has no finite value"
    return f"{curve.run} ends at {short_number(curve.line.y[-1])}"


def _curve(curve: Curve, run: int, scales: Scales) -> Markup:
    parts = [tag("path", d=scales.path(curve.raw), class_="line raw")] if curve.raw else []
    parts.append(
        tag("path", d=scales.path(curve.line), class_="line", stroke_dasharray=dash_array(run))
    )
    return tag("g", parts, class_=f"{colour_class(run)} run-{run}")


def _interleaved(panel: Panel, runs: list[str], scales: Scales) -> Iterator[Markup]:
    """Solid curves once more as dashes that follow each other, so that none hides another."""
    solid = [curve for curve in panel.curves if not dash_array(runs.index(curve.run))]
    for i, curve in enumerate(solid if len(solid) > 1 else []):
        run, (dash, gap, begin) = runs.index(curve.run), interleaved_dashes(i, len(solid))
        how = {"stroke_dasharray": f"{dash:g} {gap:g}", "stroke_dashoffset": f"{begin:g}"}
        path = tag("path", d=scales.path(curve.line), class_="line piece", **how)
        yield tag("g", path, class_=f"{colour_class(run)} run-{run}")


def _marks(panel: Panel, runs: list[str], datasets: list[str], scales: Scales) -> Iterator[Markup]:
    """A mark for each value on held-out text; those at the same place become rings."""
    marks = [
        (curve.run, name, *mark)
        for curve in panel.curves
        for name, points in curve.validation.items()
        for mark in zip(*scales.positions(points), points.x, points.y, strict=True)
    ]
    sizes = mark_sizes([(across, down) for _, _, across, down, *_ in marks])
    for (run, name, across, down, x, y), size in zip(marks, sizes, strict=True):
        text = f"{run}, validation {name}".rstrip() + f" at {short_number(x)}: {short_number(y)}"
        where = f"translate({across:.1f} {down:.1f})" + (f" scale({size:g})" if size > 1 else "")
        d = MARKS[datasets.index(name) % len(MARKS)][1]
        mark = tag("path", tag("title", text), d=d, class_="dot", transform=where)
        i = runs.index(run)
        yield tag("g", mark, class_=f"{colour_class(i)} run-{i}")


def _labels(panel: Panel, runs: list[str], scales: Scales) -> list[Markup]:
    """The numbers of the runs at the ends of their curves, where none covers another."""
    ends = [
        (*(float(each[-1]) for each in scales.positions(curve.line)), runs.index(curve.run))
        for curve in panel.curves
        if len(curve.line.x)
    ]
    # From top to bottom, a label that would touch one above it moves down.
    numbers: list[int] = []
    taken: list[tuple[float, float]] = []
    for x, y, run in sorted(ends, key=lambda end: end[1]):
        while any(abs(x - x0) < _LABEL_WIDTH and y - y0 < _LABEL_HEIGHT for x0, y0 in taken):
            y = max(y0 for x0, y0 in taken if abs(x - x0) < _LABEL_WIDTH) + _LABEL_HEIGHT
        taken.append((x, y))
        numbers.append(run)
    # From bottom to top, those that have moved below the curves push the others up.
    for i in reversed(range(len(taken))):
        x, y = taken[i]
        below = [y0 for x0, y0 in taken[i + 1 :] if abs(x - x0) < _LABEL_WIDTH]
        taken[i] = (x, min(y, min(below) - _LABEL_HEIGHT if below else _HEIGHT - _BOTTOM))
    return [
        tag("text", str(run + 1), x=x + 7, y=y + 4, class_=f"label {colour_class(run)} run-{run}")
        for run, (x, y) in zip(numbers, taken, strict=True)
    ]


def _grid(scales: Scales) -> Markup:
    left, right, _, bottom, *_ = scales.box
    lines = []
    for value in _ticks(*scales.y):
        _, (y,) = scales.positions(Points(np.zeros(1), np.asarray([value])))
        lines += [
            tag("line", x1=left, x2=right, y1=float(y), y2=float(y), class_="hair"),
            tag("text", short_number(value), x=left - 8, y=float(y) + 4, class_="end small"),
        ]
    for value in _ticks(*scales.x):
        (x,), _ = scales.positions(Points(np.asarray([value]), np.zeros(1)))
        lines += [
            tag("line", x1=float(x), x2=float(x), y1=bottom, y2=bottom + 4, class_="hair"),
            tag("text", short_number(value), x=float(x), y=bottom + 18, class_="middle small"),
        ]
    return tag("g", lines)


def _ticks(low: float, high: float) -> list[float]:
    """About six round values between `low` and `high`."""
    rough = (high - low) / 6
    power = 10.0 ** math.floor(math.log10(rough))
    apart = next(power * each for each in (1, 2, 5, 10) if power * each >= rough)
    first, last = math.ceil(low / apart), math.floor(high / apart)
    return [round(i * apart, 12) for i in range(first, last + 1)]


def dataset_mark(dataset: int) -> Markup:
    """The mark of a held-out dataset, for a legend."""
    d = MARKS[dataset % len(MARKS)][1]
    return tag(
        "svg",
        tag("path", d=d, class_="dot", transform="translate(7 7)"),
        width="14",
        height="14",
        aria_hidden="true",
    )


def colour_class(run: int) -> str:
    """The class of the style sheet that gives the run with this number its colour."""
    return f"a{style(run)[0]}"


def dash_array(run: int) -> str | None:
    """The dashes of the run with this number, as `stroke-dasharray`; None where it is solid."""
    return DASHES[style(run)[1]][1] or None


def short_number(value: float) -> str:
    """A value in at most five digits: `2.3101`, `12.5k`, `3e-05`."""
    value = float(value)
    for least, letter in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e4, "k")):
        if abs(value) >= least and abs(value) < 1e15:
            return f"{value / least * (10 if letter == 'k' else 1):.4g}{letter}"
    return f"{value:.5g}"
