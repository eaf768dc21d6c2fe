"""Curves as one HTML file that needs nothing else: pictures and a table of what they show, and a script that only adds reading off values."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from importlib.resources import files

import numpy as np

from meshdsl.report.page.assets import asset
from meshdsl.report.page.markup import Markup, svg, tag
from meshdsl.train.watch.curves import Curve, Panel, Points
from meshdsl.train.watch.style import DASHES, MARKS, mark_sizes, pieces, style

_WIDE, _HIGH = 920, 400
_LEFT, _RIGHT, _TOP, _BOTTOM = 64, 34, 14, 44
_APART = 15  # between two labels at the ends of curves


def page(panels: Sequence[Panel]) -> str:
    """The panels, one below the other, with one legend that shows and hides runs."""
    runs = list(dict.fromkeys(curve.run for panel in panels for curve in panel.curves))
    *others, last = (panel.metric.replace("_", " ") for panel in panels)
    title = f"{', '.join(others)}{' and ' * bool(others)}{last} of {runs[0] if len(runs) == 1 else f'{len(runs)} runs'}"
    own = files("meshdsl.train.watch")
    hide = "".join(
        f"body:has(#run-{i}:not(:checked)) .run-{i} {{ display: none; }}\n"
        for i in range(len(runs))
    )
    head = [
        tag("meta", charset="utf-8"),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="color-scheme", content="light dark"),
        tag("title", title),
        tag("style", Markup(asset("base.css") + (own / "page.css").read_text("utf-8") + hide)),
    ]
    body = [
        tag("h1", title[0].upper() + title[1:]),
        _legend(runs),
        [_section(panel, runs) for panel in panels],
    ]
    script = tag("script", Markup((own / "page.js").read_text("utf-8")))
    return f"<!doctype html>\n{tag('html', tag('head', head), tag('body', tag('main', body), script, class_='mdsl'), lang='en')}\n"


def _legend(runs: list[str]) -> Markup:
    items = [
        tag(
            "label",
            tag("input", type="checkbox", id=f"run-{i}", checked=True),
            tag(
                "svg",
                tag("path", d="M0 8H34", class_="line", stroke_dasharray=_dashes(i)),
                class_=_colour(i),
                width="34",
                height="16",
                aria_hidden="true",
            ),
            tag("b", str(i + 1)),
            " ",
            run,
        )
        for i, run in enumerate(runs)
    ]
    return tag("fieldset", tag("legend", "Runs"), items, class_="runs")


def _section(panel: Panel, runs: list[str]) -> Markup:
    drawn = _Scales.of(panel)
    datasets = list(dict.fromkeys(name for curve in panel.curves for name in curve.validation))
    marks = [
        tag(
            "span",
            svg_mark(MARKS[i % len(MARKS)][1]),
            f"validation {name}".strip(),
            class_="mark-of",
        )
        for i, name in enumerate(datasets)
    ]
    values = [
        {"run": runs.index(c.run), "x": _short(c.line.x), "y": _short(c.line.y)}
        for c in panel.curves
    ]
    return tag(
        "section",
        tag("h2", panel.y_words),
        tag("p", marks, class_="marks") if marks else None,
        tag("div", _picture(panel, runs, datasets, drawn), class_="scroll"),
        tag("output", class_="read", hidden=True),
        tag(
            "script",
            Markup(
                json.dumps({"box": drawn.box, "x": panel.x_words, "curves": values}).replace(
                    "<", "\\u003c"
                )
            ),
            type="application/json",
        ),
        _table(panel, runs),
    )


def svg_mark(d: str) -> Markup:
    return tag(
        "svg",
        tag("path", d=d, class_="dot", transform="translate(7 7)"),
        width="14",
        height="14",
        aria_hidden="true",
    )


class _Scales:
    """From values to places in a picture."""

    def __init__(self, x: tuple[float, float], y: tuple[float, float]):
        self.x, self.y = x, y
        self.box = [_LEFT, _WIDE - _RIGHT, _TOP, _HIGH - _BOTTOM, *x, *y]

    @classmethod
    def of(cls, panel: Panel) -> _Scales:
        drawn = [
            points
            for c in panel.curves
            for points in (c.line, c.raw, *c.validation.values())
            if points is not None and len(points.x)
        ]
        x, y = (
            np.concatenate([getattr(points, name) for points in drawn]) if drawn else np.zeros(1)
            for name in "xy"
        )
        return cls(_range(min(0.0, x.min()), x.max()), _range(y.min(), y.max(), 0.04))

    def path(self, points: Points) -> str:
        across, down = self.places(points)
        return (
            "M"
            + "L".join(f"{a:.1f} {b:.1f}" for a, b in zip(across, down, strict=True))
            + "h0" * (len(across) == 1)
            if len(across)
            else ""
        )

    def places(self, points: Points) -> tuple[np.ndarray, np.ndarray]:
        left, right, top, bottom, x0, x1, y0, y1 = self.box
        return left + (points.x - x0) / (x1 - x0) * (right - left), bottom - (points.y - y0) / (
            y1 - y0
        ) * (bottom - top)


def _range(low: float, high: float, around: float = 0.0) -> tuple[float, float]:
    wide = high - low or abs(high) or 1.0
    return float(low - around * wide), float((high if high > low else low + wide) + around * wide)


def _picture(panel: Panel, runs: list[str], datasets: list[str], scales: _Scales) -> Markup:
    title = f"{panel.y_words}, over {panel.x_words}: {'; '.join(_said(curve) for curve in panel.curves)}"
    parts = [
        _grid(scales),
        tag(
            "text",
            panel.x_words,
            x=(_LEFT + _WIDE - _RIGHT) / 2,
            y=_HIGH - 8,
            class_="middle small",
        ),
    ]
    for curve in panel.curves:
        parts.append(_drawn(curve, runs.index(curve.run), scales))
    parts += [*_pieces(panel, runs, scales), *_marks(panel, runs, datasets, scales)]
    parts.append(tag("g", _labels(panel, runs, scales)))
    parts.append(
        tag("line", x1=0, x2=0, y1=_TOP, y2=_HIGH - _BOTTOM, class_="cursor", visibility="hidden")
    )
    return svg(title, _WIDE, _HIGH, parts, class_="curves", tabindex="0")


def _said(curve: Curve) -> str:
    return (
        f"{curve.run} ends at {_number(curve.line.y[-1])}"
        if len(curve.line.y)
        else f"{curve.run} has no finite value"
    )


def _drawn(curve: Curve, run: int, scales: _Scales) -> Markup:
    parts = [tag("path", d=scales.path(curve.raw), class_="line raw")] if curve.raw else []
    parts.append(
        tag("path", d=scales.path(curve.line), class_="line", stroke_dasharray=_dashes(run))
    )
    return tag("g", parts, class_=f"{_colour(run)} run-{run}")


def _pieces(panel: Panel, runs: list[str], scales: _Scales) -> Iterator[Markup]:
    """Pieces of the curves that are not dashed anyway, so that none hides another."""
    solid = [curve for curve in panel.curves if not _dashes(runs.index(curve.run))]
    for place, curve in enumerate(solid if len(solid) > 1 else []):
        run, (dash, gap, begin) = runs.index(curve.run), pieces(place, len(solid))
        how = {"stroke_dasharray": f"{dash:g} {gap:g}", "stroke_dashoffset": f"{begin:g}"}
        path = tag("path", d=scales.path(curve.line), class_="line piece", **how)
        yield tag("g", path, class_=f"{_colour(run)} run-{run}")


def _marks(panel: Panel, runs: list[str], datasets: list[str], scales: _Scales) -> Iterator[Markup]:
    """A mark for each value on held-out text; of marks that coincide the earlier ones are rings."""
    drawn = [
        (curve.run, name, *place)
        for curve in panel.curves
        for name, points in curve.validation.items()
        for place in zip(*scales.places(points), points.x, points.y, strict=True)
    ]
    sizes = mark_sizes([(x, y) for _, _, x, y, *_ in drawn])
    for (run, name, x, y, at, value), size in zip(drawn, sizes, strict=True):
        text = f"{run}, validation {name}".rstrip() + f" at {_number(at)}: {_number(value)}"
        where = f"translate({x:.1f} {y:.1f})" + (f" scale({size:g})" if size > 1 else "")
        d = MARKS[datasets.index(name) % len(MARKS)][1]
        mark = tag("path", tag("title", text), d=d, class_="dot", transform=where)
        i = runs.index(run)
        yield tag("g", mark, class_=f"{_colour(i)} run-{i}")


def _labels(panel: Panel, runs: list[str], scales: _Scales) -> list[Markup]:
    """The numbers of the runs at the ends of their curves, none over another."""
    ends = [
        (*(float(each[-1]) for each in scales.places(c.line)), runs.index(c.run))
        for c in panel.curves
        if len(c.line.x)
    ]
    names, taken = [], []
    for x, y, run in sorted(ends, key=lambda end: end[1]):
        while any(abs(x - x0) < 24 and y - y0 < _APART for x0, y0 in taken):
            y = max(y0 for x0, y0 in taken if abs(x - x0) < 24) + _APART
        taken.append((x, y))
        names.append(run)
    floor = _HIGH - _BOTTOM
    for i in reversed(range(len(taken))):  # those that were moved too far down push the others up
        x, y = taken[i]
        below = [y0 for x0, y0 in taken[i + 1 :] if abs(x - x0) < 24]
        taken[i] = (x, min(y, min(below) - _APART if below else floor))
    return [
        tag("text", str(run + 1), x=x + 7, y=y + 4, class_=f"label {_colour(run)} run-{run}")
        for run, (x, y) in zip(names, taken, strict=True)
    ]


def _grid(scales: _Scales) -> Markup:
    left, right, _, bottom, *_ = scales.box
    lines = []
    for value in _ticks(*scales.y):
        _, (y,) = scales.places(Points(np.zeros(1), np.asarray([value])))
        lines += [
            tag("line", x1=left, x2=right, y1=float(y), y2=float(y), class_="hair"),
            tag("text", _number(value), x=left - 8, y=float(y) + 4, class_="end small"),
        ]
    for value in _ticks(*scales.x):
        (x,), _ = scales.places(Points(np.asarray([value]), np.zeros(1)))
        lines += [
            tag("line", x1=float(x), x2=float(x), y1=bottom, y2=bottom + 4, class_="hair"),
            tag("text", _number(value), x=float(x), y=bottom + 18, class_="middle small"),
        ]
    return tag("g", lines)


def _ticks(low: float, high: float) -> list[float]:
    """About six round values between `low` and `high`."""
    rough = (high - low) / 6
    size = 10.0 ** math.floor(math.log10(rough))
    step = next(size * each for each in (1, 2, 5, 10) if size * each >= rough)
    return [round(i * step, 12) for i in range(math.ceil(low / step), math.floor(high / step) + 1)]


def _table(panel: Panel, runs: list[str]) -> Markup:
    datasets = list(dict.fromkeys(name for curve in panel.curves for name in curve.validation))
    heads = [
        "",
        "run",
        "last",
        "least",
        "greatest",
        *(f"validation {name}".strip() + ", last" for name in datasets),
    ]
    rows = []
    for curve in panel.curves:
        run, y = runs.index(curve.run), curve.line.y
        cells = (
            [_number(value) for value in (y[-1], y.min(), y.max())]
            if len(y)
            else ["not finite", "", ""]
        )
        cells += [
            _number(points.y[-1])
            if (points := curve.validation.get(name)) and len(points.y)
            else ""
            for name in datasets
        ]
        row = [
            tag("td", tag("b", str(run + 1), class_="label")),
            tag("th", curve.run, scope="row"),
            [tag("td", cell) for cell in cells],
        ]
        rows.append(tag("tr", row, class_=f"{_colour(run)} run-{run}"))
    return tag(
        "div",
        tag(
            "table",
            tag("thead", tag("tr", [tag("th", each, scope="col") for each in heads])),
            tag("tbody", rows),
        ),
        class_="scroll",
    )


def _colour(run: int) -> str:
    return f"a{style(run)[0]}"


def _dashes(run: int) -> str | None:
    return DASHES[style(run)[1]][1] or None


def _number(value: float) -> str:
    """A value in at most five digits: `2.3101`, `12.5k`, `3e-05`."""
    value = float(value)
    for least, letter in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e4, "k")):
        if abs(value) >= least and abs(value) < 1e15:
            return f"{value / least * (10 if letter == 'k' else 1):.4g}{letter}"
    return f"{value:.5g}"


def _short(values: np.ndarray) -> list[float]:
    return [float(f"{value:.6g}") for value in values]
