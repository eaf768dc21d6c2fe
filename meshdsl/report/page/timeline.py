"""The timeline: one row for each stream, and what runs on it from left to right.

A loop of 32 layers would leave each layer a few pixels. So its first turn is drawn in full, and the
other turns are squeezed into one hatched block: the clock below jumps there. A bar above shows the
whole step to scale.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from meshdsl.estimate.explanation import Explanation, OpView, Span
from meshdsl.report.page import page_figures
from meshdsl.report.page.axis_styles import AxisStyles
from meshdsl.report.page.markup import Markup, tag

_SQUEEZED = 0.035  # of the width, for the further turns of a loop
_SHORTEST = 1e-9  # seconds; what takes less is not drawn


@dataclass(frozen=True)
class Loop:
    """A loop of the timeline.

    Attributes:
      start, end: of all turns, in seconds.
      first: the end of the first turn.
      turns: how many there are.
      depth: how many loops it is in.
    """

    name: str
    phase: str
    start: float
    first: float
    end: float
    turns: int
    depth: int = 0

    @classmethod
    def of(cls, span: Span, spans: Sequence[Span], ops: Mapping[str, OpView]) -> Loop:
        """The loop of a span on the stream `loops`.

        The spans inside of it show its first turn. What they show is repeated as many times more
        often as the loop has turns.

        Args:
          ops: by tag; they know what the loop is over.
        """
        depth = sum(
            other.stream == "loops"
            and other.repeats < span.repeats
            and other.start <= span.start
            and span.end <= other.end
            for other in spans
        )
        within = [
            other
            for other in spans
            if other is not span and span.start <= other.start and other.end <= span.end
        ]
        # Not what was started before the loop and ends in it.
        inside = [other for other in within if other.repeats > span.repeats]
        turns = min((other.repeats for other in inside), default=span.repeats) // span.repeats
        around = (ops[other.tag].loops for other in inside if other.tag in ops)
        loops = next((loops for loops in around if loops), ())
        return cls(
            name=next(
                (what for what, count in (*loops[depth:], *loops) if count == turns), span.name
            ),
            phase=span.phase,
            start=span.start,
            first=max((other.end for other in inside), default=span.end),
            end=span.end,
            turns=turns,
            depth=depth,
        )


@dataclass(frozen=True)
class Clock:
    """The way from seconds of a step to percents of the width.

    Attributes:
      end: of the step, in seconds.
      rests: the further turns of the loops, which are squeezed: `(start, end, turns)`.
    """

    end: float
    rests: tuple[tuple[float, float, int], ...] = ()

    @classmethod
    def of(cls, loops: Sequence[Loop], end: float) -> Clock:
        """The clock of a step with these loops."""
        long = (loop for loop in loops if loop.turns > 1 and loop.first < loop.end)
        return cls(end, tuple((loop.first, loop.end, loop.turns - 1) for loop in long))

    def at(self, seconds: float) -> float:
        """How far from the left a moment is, in percents."""
        squeezed = sum(end - start for start, end, _ in self.rests)
        per_second = 100 * (1 - _SQUEEZED * len(self.rests)) / max(self.end - squeezed, 1e-12)
        x = seconds * per_second
        for start, end, _ in self.rests:
            inside = min(max(seconds - start, 0.0), end - start)
            x += inside * (100 * _SQUEEZED / (end - start) - per_second)
        return min(100.0, x)

    def css(self, start: float, end: float) -> str:
        """The position and width of what runs from `start` to `end`."""
        left = self.at(start)
        return f"left:{left:.3f}%;width:{max(self.at(end) - left, 0.02):.3f}%"


def timeline(explanation: Explanation, styles: AxisStyles) -> Markup:
    """The timeline of the step, a key to it, and the same as a table."""
    time = explanation.time
    assert time is not None
    ops = {op.tag: op for op in explanation.ops}
    spans = sorted(
        (span for span in time.spans if span.end - span.start >= _SHORTEST),
        key=lambda span: (span.start, span.end),
    )
    loops = [Loop.of(span, spans, ops) for span in spans if span.stream == "loops"]
    clock = Clock.of(loops, max([time.step, *(span.end for span in spans)]))
    rests = [
        tag("span", tag("b", f"{turns:,}\u00a0more"), class_="rest", style=clock.css(start, end))
        for start, end, turns in clock.rests
    ]
    zoomed = tag(
        "div",
        _lanes(spans, loops, clock, ops, styles),
        _scale(clock),
        tag("div", rests, class_="rests", aria_hidden="true"),
        class_="zoomed",
        data_zoom="1",
        style=f"--depth:{_depth(loops)}",
    )
    return tag(
        "div",
        _overview(loops, Clock(clock.end)) if loops else None,
        tag(
            "div",
            zoomed,
            class_="scroll",
            tabindex="0",
            role="region",
            aria_label="timeline of one step",
        ),
        tag(
            "p",
            "Every block says what it is: point at it, or go through them with the arrow keys.",
            class_="said picked",
            aria_live="polite",
        ),
        _key(bool(loops)),
        tag(
            "details", tag("summary", "The timeline as a table"), _table(spans, ops), class_="more"
        ),
        class_="timeline",
    )


def _lanes(
    spans: Sequence[Span],
    loops: Sequence[Loop],
    clock: Clock,
    ops: Mapping[str, OpView],
    styles: AxisStyles,
) -> list[Markup]:
    """A lane for the loops of each depth, if there are any, and one for each stream."""
    blocks: dict[str, list[Markup]] = {"compute": []}
    for span in spans:
        if span.stream != "loops":
            block = _span_block(span, clock, styles, ops.get(span.tag))
            blocks.setdefault(span.stream, []).append(block)
    lanes = []
    for depth in range(_depth(loops)):
        found = [_loop_block(loop, clock) for loop in loops if loop.depth == depth]
        lanes.append(_lane("loops", found, styles))
    return lanes + [_lane(stream, found, styles) for stream, found in blocks.items()]


def _depth(loops: Sequence[Loop]) -> int:
    """How many loops are in one another at most."""
    return max((loop.depth + 1 for loop in loops), default=0)


def _scale(clock: Clock) -> Markup:
    """The clock below the lanes."""
    ticks = [
        tag(
            "span",
            page_figures.time(t),
            style=f"left:{clock.at(t):.2f}%",
            class_="tick" + (" last" if clock.at(t) > 94 else ""),
        )
        for t in _ticks(clock)
    ]
    return tag(
        "div",
        tag("div", class_="stream"),
        tag("div", ticks, class_="track"),
        class_="lane clock",
        aria_hidden="true",
    )


def _overview(loops: Sequence[Loop], clock: Clock) -> Markup:
    """The whole step to scale, loops as blocks; what is in a loop is not drawn."""
    blocks = []
    for loop in (loop for loop in loops if not loop.depth):
        took = page_figures.time(loop.end - loop.start)
        said = f"{loop.turns:,}\u00a0\u00d7 {loop.name}, {loop.phase}, {took}"
        css = f"block compute {loop.phase}"
        style = clock.css(loop.start, loop.end)
        blocks.append(tag("span", tag("span", said), class_=css, style=style))
    label = f"the whole step of {page_figures.time(clock.end)} to scale"
    return tag(
        "div",
        tag("p", f"The whole step, {page_figures.time(clock.end)}, to scale", class_="said"),
        tag("div", blocks, class_="track", role="img", aria_label=label),
        class_="whole",
    )


def _lane(stream: str, blocks: list[Markup], styles: AxisStyles) -> Markup:
    """The row of a stream; that of collectives is named by the axes that they go over."""
    names = [name for name in stream.split(", ") if name in styles.sizes]
    label = styles.chips(names) if names else stream
    return tag(
        "div",
        tag("div", label, class_="stream"),
        tag("div", blocks, class_="track"),
        class_="lane loops" if stream == "loops" else "lane",
    )


def _loop_block(loop: Loop, clock: Clock) -> Markup:
    took = loop.end - loop.start
    each = page_figures.time(took / loop.turns)
    what = f"{loop.turns:,} \u00d7 {loop.name}, {loop.phase}"
    said = f"{what}: {page_figures.time(took)}, {each} each"
    return tag(
        "span",
        tag("span", tag("b", f"{loop.turns:,}\u00a0\u00d7"), f" {loop.name}"),
        class_="block",
        style=clock.css(loop.start, loop.end),
        title=said,
    )


def _span_block(span: Span, clock: Clock, styles: AxisStyles, op: OpView | None) -> Markup:
    names = [name for name in span.stream.split(", ") if name in styles.sizes]
    what = span.name
    if op is not None:
        part = f"{span.name} of " if span.name != op.name else ""
        what = f"{part}{op.name} at {op.source}"
    took, start = page_figures.time(span.end - span.start), page_figures.time(span.start)
    times = f", {span.repeats:,} times" if span.repeats > 1 else ""
    said = f"{what}, {span.phase}, {took} from {start}{times}"
    name = op.name if op and not names else span.name
    link = {"data_op": span.tag, "data_phase": span.phase} if op else {}
    css = styles.css(names) if names else f"compute {span.phase}"
    return tag(
        "span",
        tag("span", name),
        class_=f"block {css}",
        style=clock.css(span.start, span.end),
        title=said,
        **link,
    )


def _ticks(clock: Clock) -> list[float]:
    """The ends of what the clock jumps over, and times evenly between them."""
    marks = sorted(
        {0.0, clock.end, *(edge for start, end, _ in clock.rests for edge in (start, end))}
    )
    ticks = [marks[0]]
    for a, b in pairwise(marks):
        parts = max(int((clock.at(b) - clock.at(a)) // 11), 1)
        ticks += [a + (b - a) * i / parts for i in range(1, parts + 1)]
    kept: list[float] = []
    for t in ticks:
        if not kept or clock.at(t) - clock.at(kept[-1]) > 7:
            kept.append(t)
    return kept


def _key(loops: bool) -> Markup:
    """A key to the shades; with `loops` also to their further turns."""
    items = [
        tag("li", tag("span", class_=f"block compute {phase}"), phase)
        for phase in ("forward", "recompute", "backward", "optimizer")
    ]
    if loops:
        items.append(
            tag("li", tag("span", class_="block rest"), "further turns of a loop, not to scale")
        )
    return tag("ul", items, class_="legend", aria_label="shades of compute")


_COLUMNS = (
    ("stream", ""),
    ("what", ""),
    ("op", ""),
    ("pass", ""),
    ("from", "figure"),
    ("takes", "figure"),
    ("times", "figure"),
)


def _table(spans: Sequence[Span], ops: Mapping[str, OpView]) -> Markup:
    """What the timeline shows, as a table."""
    head = tag("tr", [tag("th", name, scope="col", class_=kind) for name, kind in _COLUMNS])
    rows = [
        tag(
            "tr",
            tag("td", span.stream),
            tag("td", span.name),
            tag("td", f"{ops[span.tag].name} {ops[span.tag].source}" if span.tag in ops else ""),
            tag("td", span.phase),
            tag("td", page_figures.time(span.start), class_="figure"),
            tag("td", page_figures.time(span.end - span.start), class_="figure"),
            tag("td", f"{span.repeats:,}", class_="figure"),
        )
        for span in spans
    ]
    table = tag("table", tag("thead", head), tag("tbody", rows), class_="data")
    return tag(
        "div",
        table,
        class_="scroll",
        tabindex="0",
        role="region",
        aria_label="the timeline as a table",
    )
