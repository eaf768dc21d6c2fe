"""How runs stand, as a page: one HTML file that needs nothing else, and has no script."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from html import escape

from meshdsl.tools.page import content_hash, style_sheet

_WIDTH, _HEIGHT = 460, 180  # of a chart, in pixels
_LEFT, _RIGHT, _TOP, _BOTTOM = 84, 12, 10, 24  # of what stands around the curve
_BAR = 24  # the height of the bar
_ROOM = 8.0  # pixels that an axis label keeps from its chart
_DAY = 86400
_CLOCK = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800)  # seconds between two labels
_CLOCK = (*_CLOCK, *(hours * 3600 for hours in (1, 2, 3, 6, 12, 24)))
_STYLE = """
main.runs { max-width: 1034px; margin: 0 auto; padding: 24px 20px; display: block; }
.run { padding-bottom: 30px; }
.run + .run { border-top: 1px solid var(--hair); padding-top: 24px; }
.run h1 { font-size: 24px; }
.run h2 { font-size: 15px; margin: 22px 0 6px; }
.run .facts { display: flex; flex-wrap: wrap; gap: 6px 26px; margin-top: 8px; }
.run .facts dt { color: var(--soft); font-size: 12.5px; }
.run .facts dd { font-size: 17px; }
.charts { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 440px), 1fr));
  gap: 0 24px; }
.charts svg, .bar { width: 100%; height: auto; }
.curve { fill: none; stroke: var(--axis0); stroke-width: 1.5; stroke-linejoin: round; }
.dot { fill: var(--paper); stroke: var(--axis1); stroke-width: 1.6; }
.grid { stroke: var(--hair); }
.at { stroke: var(--hair-strong); stroke-dasharray: 2 3; }
.at.bad, .sort.bad { stroke: var(--bad); fill: var(--bad); }
.at.start, .sort.start { stroke: var(--good); fill: var(--good); }
.sort { fill: var(--hair-strong); stroke: none; }
svg .axis-words { font-size: 11px; fill: var(--soft); }
.part0 { fill: var(--axis0); } .part1 { fill: var(--k-recompute); } .part2 { fill: var(--bad); }
.part3 { fill: var(--axis1); } .part4 { fill: var(--axis2); } .part5 { fill: var(--axis4); }
.part6 { fill: var(--axis3); } .part7 { fill: var(--axis5); } .part8 { fill: var(--k-optimizer); }
.run table { width: 100%; }
.run td { padding: 3px 16px 3px 0; border-top: 1px solid var(--hair); vertical-align: top; }
.run td.figure { text-align: right; white-space: nowrap; width: 1%; }
.run td svg { display: inline-block; }
"""


@dataclass(frozen=True)
class Chart:
    """A metric over the time of a run.

    Attributes:
      title: of the metric.
      lines: pieces of the curve, each of points `(x, y)`; between them no steps were taken.
      words: gives a value of y in words.
      dots: points that are drawn apart, such as the same metric on held-out data.
      unit: what labels of y are round multiples of.
    """

    title: str
    lines: Sequence[Sequence[tuple[float, float]]]
    words: Callable[[float], str]
    dots: Sequence[tuple[float, float]] = ()
    unit: float = 1.0


@dataclass(frozen=True)
class Happened:
    """An event of a run.

    Attributes:
      x: where it is marked in the charts.
      when: in words.
      words: what happened.
      sort: `start`, `bad` or empty, which gives the mark its colour.
    """

    x: float
    when: str
    words: str
    sort: str = ""


@dataclass(frozen=True)
class RunView:
    """What is shown of a run.

    Attributes:
      x_words: gives a value of x in words.
      timed: whether x is in seconds.
      facts: figures with their names.
      parts: what its time went into, in words, with the seconds, and how often that is of all.
      events: in their order.
    """

    name: str
    state: str
    facts: Sequence[tuple[str, str]]
    charts: Sequence[Chart]
    x_words: Callable[[float], str]
    timed: bool
    parts: Sequence[tuple[str, float]] = ()
    parts_title: str = ""
    seconds_words: Callable[[float], str] = str
    events: Sequence[Happened] = field(default_factory=tuple)


def run_page(runs: Sequence[RunView], now: float, every: float | None = None) -> str:
    """One HTML file that shows how runs stand.

    Args:
      now: when that was, in seconds since 1970.
      every: seconds after which a browser loads the page again; None: never.
    """
    style = style_sheet() + _STYLE
    policy = f"default-src 'none'; style-src '{content_hash(style)}'"
    again = f'<meta http-equiv="refresh" content="{every:g}">\n' if every else ""
    when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(now))
    shown = "\n".join(map(_run, runs))
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
{again}<title>{escape(", ".join(run.name for run in runs))}</title>
<style>{style}</style>
</head>
<body>
<main class="runs">
{shown}
<p class="quiet">As of {when}.</p>
</main>
</body>
</html>
"""


def _run(run: RunView) -> str:
    facts = "".join(
        f"<div><dt>{escape(name)}</dt><dd>{escape(value)}</dd></div>" for name, value in run.facts
    )
    charts = "".join(
        f"<figure><h2>{escape(one.title)}</h2>{_chart(one, run)}</figure>" for one in run.charts
    )
    return (
        f'<article class="run"><h1>{escape(run.name)} <span class="quiet">{escape(run.state)}'
        f'</span></h1><dl class="facts">{facts}</dl><div class="charts">{charts}</div>'
        f"{_bar(run)}{_events(run)}</article>"
    )


def _chart(chart: Chart, run: RunView) -> str:
    points = [point for line in chart.lines for point in line] + list(chart.dots)
    low_x, high_x = _range([x for x, _ in points] + [event.x for event in run.events])
    low_y, high_y = _range([y for _, y in points])

    def place(x: float, y: float) -> tuple[float, float]:
        across = (x - low_x) / (high_x - low_x) * (_WIDTH - _LEFT - _RIGHT)
        down = (high_y - y) / (high_y - low_y) * (_HEIGHT - _TOP - _BOTTOM)
        return round(_LEFT + across, 1), round(_TOP + down, 1)

    found = []
    for y in (chart.unit * each for each in _ticks(low_y / chart.unit, high_y / chart.unit, 4)):
        at = place(low_x, y)[1]
        found.append(f'<path class="grid" d="M{_LEFT} {at}H{_WIDTH - _RIGHT}"/>')
        words = escape(chart.words(y))
        found.append(_text(_LEFT - _ROOM, at + 4, words, "end"))
    for x in _ticks(low_x, high_x, 5, run.timed):
        found.append(_text(place(x, low_y)[0], _HEIGHT - 6, escape(run.x_words(x)), "middle"))
    for event in run.events:
        at, title = place(event.x, low_y)[0], escape(f"{event.words}, {event.when}")
        line = f"M{at} {_TOP}V{_HEIGHT - _BOTTOM}"
        found.append(f'<path class="at {event.sort}" d="{line}"><title>{title}</title></path>')
    for line in chart.lines:
        path = " ".join(f"{a} {b}" for a, b in (place(x, y) for x, y in line))
        found.append(f'<path class="curve" d="M{path}"/>')
    for x, y in chart.dots:
        a, b = place(x, y)
        title = escape(f"held-out: {chart.words(y)}")
        found.append(f'<circle class="dot" cx="{a}" cy="{b}" r="3"><title>{title}</title></circle>')
    label = escape(f"{chart.title} over time", quote=True)
    return (
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{label}">'
        f"{''.join(found)}</svg>"
    )


def _text(x: float, y: float, words: str, anchor: str) -> str:
    return f'<text class="axis-words" x="{x}" y="{y}" text-anchor="{anchor}">{words}</text>'


def _bar(run: RunView) -> str:
    """The time of a run as a bar of its parts, and as a table."""
    whole = sum(seconds for _, seconds in run.parts)
    if not whole:
        return ""
    rects, rows, x = [], [], 0.0
    for number, (words, seconds) in enumerate(run.parts):
        width, part = 1000 * seconds / whole, f"part{min(number, 8)}"
        title = f"<title>{escape(words)}</title>"
        rects.append(
            f'<rect class="{part}" x="{x:.2f}" width="{width:.2f}" height="{_BAR}">{title}</rect>'
        )
        swatch = f'<svg width="10" height="10"><rect class="{part}" width="10" height="10"/></svg>'
        rows.append(
            f'<tr><td class="figure">{seconds / whole:.1%}</td>'
            f'<td class="figure">{escape(run.seconds_words(seconds))}</td>'
            f"<td>{swatch} {escape(words)}</td></tr>"
        )
        x += width
    return (
        f'<h2>{escape(run.parts_title)}</h2><svg class="bar" viewBox="0 0 1000 {_BAR}" '
        f'preserveAspectRatio="none" role="img" aria-label="{escape(run.parts_title)}">'
        f"{''.join(rects)}</svg><table>{''.join(rows)}</table>"
    )


def _events(run: RunView) -> str:
    if not run.events:
        return ""
    rows = "".join(
        f'<tr><td class="figure">{escape(event.when)}</td><td><svg width="10" height="10">'
        f'<circle class="sort {event.sort}" cx="5" cy="5" r="4"/></svg> {escape(event.words)}'
        "</td></tr>"
        for event in reversed(run.events)
    )
    return f"<h2>Events</h2><table>{rows}</table>"


def _range(values: Sequence[float]) -> tuple[float, float]:
    """The least and the largest value; two that differ, also where there is but one value."""
    low, high = min(values, default=0.0), max(values, default=1.0)
    if high > low:
        return low, high
    margin = abs(low) / 2 or 0.5
    return low - margin, high + margin


def _ticks(low: float, high: float, most: int, times: bool = False) -> Iterator[float]:
    """Round values between two, at most so many; `times`: they are seconds."""
    rough = (high - low) / most
    size = 10.0 ** math.floor(math.log10(rough))
    step = next(size * n for n in (1, 2, 5, 10) if size * n >= rough * 0.999)
    if times:
        step = next((each for each in _CLOCK if each >= rough), math.ceil(rough / _DAY) * _DAY)
    first = math.ceil(low / step - 1e-9)
    for number in range(first, math.floor(high / step + 1e-9) + 1):
        yield number * step
