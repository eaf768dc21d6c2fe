"""A pipeline as a schedule: a row for each stage, time from left to right, microbatches in colour.

The backward pass mirrors the forward pass: what ran last is differentiated first. Widths are to
scale where times are known.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from meshdsl.estimate.explanation import PipelineView
from meshdsl.report import pipeline_text
from meshdsl.report.page import page_figures
from meshdsl.report.page.axis_styles import AxisStyles
from meshdsl.report.page.markup import Markup, number, svg, tag

_WIDTH, _LABEL, _ROW, _TOP = 820.0, 64.0, 26.0, 24.0  # pixels
_LEAST, _MOST = 3.0, 44.0  # the width of a tick of the forward pass
_NUMBERED = 17.0  # the width from which on a number goes into a tick
_STAGES, _TICKS = 16, 400  # how many are drawn
_UNTIMED = 2.0  # the backward pass over the forward pass, where times are not known
_PALEST = 0.35  # the opacity of the last of several rounds


def pipeline(one: PipelineView, step: float | None, styles: AxisStyles) -> Markup:
    """A pipeline's figures and its schedule.

    Args:
      step: seconds of a step; None where they are not known.
    """
    facts = [
        ("stages", [f"{one.stages} along ", styles.chips(one.axes)]),
        ("layers", pipeline_text.layer_words(one)),
        ("microbatches", _microbatches(one)),
        ("bubble", pipeline_text.bubble_words(one, step)),
        ("a tick takes", pipeline_text.tick_words(one)),
        ("parameters at rest", pipeline_text.parameter_words(one)),
        ("kept for the backward pass", pipeline_text.kept_words(one)),
        ("from", tag("span", one.source, class_="source")),
    ]
    return tag(
        "div",
        _picture(one, styles) if one.ticks <= _TICKS else None,
        tag(
            "dl",
            [[tag("dt", name), tag("dd", said)] for name, said in facts if said],
            class_="facts",
        ),
        class_="pipeline",
    )


def _microbatches(one: PipelineView) -> str:
    rounds = f", each {one.rounds} times round the stages" if one.rounds > 1 else ""
    times = f"; the pipeline runs {one.count} times a step" if one.count > 1 else ""
    return f"{one.microbatches}{rounds}{times}"


def _picture(one: PipelineView, styles: AxisStyles) -> Markup:
    """The schedule, and a key to it."""
    backward = one.backward is None or one.backward > 0
    ratio = one.backward / one.forward if one.forward and one.backward else _UNTIMED
    tick = min(max(_WIDTH / (one.ticks * (1 + ratio * backward)), _LEAST), _MOST)
    stages = min(one.stages, _STAGES)
    passes = [("forward", tick, _LABEL, one.forward)]
    if backward:
        start = _LABEL + one.ticks * tick + 8
        passes.append(("backward", tick * ratio, start, one.backward))
    high, hatch = _TOP + stages * _ROW, f"{styles.prefix}-waits-{one.tag.replace('.', '-')}"
    wide = passes[-1][2] + one.ticks * passes[-1][1] + 1
    labels = [
        tag("text", f"stage {stage}", x=0, y=_TOP + stage * _ROW + 16, class_="stage")
        for stage in range(stages)
    ]
    drawn = [
        [_heading(name, start, seconds), _pass(one, stages, name, width, start, hatch)]
        for name, width, start, seconds in passes
    ]
    title = f"schedule of {one.stages} stages and {one.microbatches} microbatches"
    pattern = tag(
        "pattern",
        tag("path", d="M-2 2 2-2M0 8 8 0M6 10 10 6", class_="stroke"),
        id=hatch,
        width="8",
        height="8",
        patternUnits="userSpaceOnUse",
    )
    picture = svg(title, wide, high, tag("defs", pattern), labels, drawn, class_="schedule")
    return tag(
        "div",
        tag(
            "div",
            picture,
            class_="scroll",
            tabindex="0",
            role="region",
            aria_label="the schedule of the pipeline",
        ),
        tag("p", _key(one), class_="said"),
    )


def _heading(name: str, x: float, seconds: float | None) -> Markup:
    took = f", {page_figures.time(seconds)}" if seconds is not None else ""
    return tag("text", f"{name}{took}", x=x, y=14.0, class_="pass")


def _pass(
    one: PipelineView, stages: int, name: str, width: float, start: float, hatch: str
) -> Iterator[Markup]:
    """All ticks of a pass: what waits is hatched, and each microbatch of a round is one path."""
    schedule = one.schedule
    cells: dict[tuple[int, int] | None, list[tuple[float, float]]] = {}
    for stage in range(stages):
        y = _TOP + stage * _ROW
        for tick in range(one.ticks):
            place = tick if name == "forward" else one.ticks - 1 - tick
            cells.setdefault(schedule.at(stage, tick), []).append((start + place * width, y))
    waits = _boxes(cells.pop(None, []), width)
    yield tag("path", tag("title", f"waits, {name}"), d=waits, fill=f"url(#{hatch})")
    gap = 1.0 if width > 2 * _LEAST else 0.0
    for work, places in cells.items():
        assert work is not None  # these are popped above
        microbatch, in_round = work
        said = f"microbatch {microbatch}, {name}"
        said += f", round {in_round}" if one.rounds > 1 else ""
        hue = 360 * microbatch / one.microbatches
        pale = 1 - (1 - _PALEST) * in_round / max(one.rounds - 1, 1)
        style = f"--h:{hue:.0f};--o:{pale:.2f}"
        yield tag(
            "path", tag("title", said), d=_boxes(places, width - gap), style=style, class_="work"
        )
        if width >= _NUMBERED:
            for x, y in places:
                yield tag("text", microbatch, x=x + width / 2, y=y + 15.5, class_="number")


def _boxes(places: Sequence[tuple[float, float]], width: float) -> str:
    """The path around boxes of a tick, whose upper left corners are given."""
    box = f"h{number(width)}v{number(_ROW - 3)}h-{number(width)}z"
    return "".join(f"M{number(x)} {number(y)}{box}" for x, y in places)


def _key(one: PipelineView) -> list[Markup | str]:
    """What the colours, the numbers and the hatches say, in words."""
    said: list[Markup | str] = ["A colour and a number are a microbatch"]
    if one.rounds > 1:
        said.append(", paler in later rounds")
    said.append("; hatched, the stage waits: it works on what is dropped.")
    if one.forward is None:
        said.append(" A tick of the backward pass is drawn twice as wide as one forward.")
    if one.stages > _STAGES:
        said.append(f" The first {_STAGES} of {one.stages} stages are drawn.")
    return said
