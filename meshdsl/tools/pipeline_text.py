"""Pipelines as text: the bubble, what a stage keeps in memory, and who works on what at each tick.

`meshdsl explain` and `meshdsl compile` print it.
"""

from __future__ import annotations

from collections.abc import Sequence

from meshdsl.figures import byte_words, columns, time_words
from meshdsl.predict.explanation import PipelineView
from meshdsl.splits.pipeline import Schedule

_WIDTH = 92  # characters that the drawing of a schedule may take


def pipeline_line(one: PipelineView, step: float | None) -> str:
    """A pipeline in one line, for the head of a report.

    Args:
      step: seconds of a step; None where they are not known.
    """
    return f"pipeline over {_axes(one)}: {_cut(one)}; {bubble_words(one, step)}"


def bubble_words(one: PipelineView, step: float | None) -> str:
    """The bubble: `a stage waits for 3 of 19 ticks (15.8%), 1.2 s (13.6%) of the step`."""
    schedule = one.schedule
    waits = schedule.ticks - schedule.rounds * schedule.microbatches
    said = f"a stage waits for {waits} of {schedule.ticks} ticks ({schedule.bubble:.1%})"
    if one.waiting is None or not step:
        return said
    return f"{said}, {time_words(one.waiting)} ({one.waiting / step:.1%}) of the step"


def layer_words(one: PipelineView) -> str:
    """What lies on the stages: `30 layers, 8 on each stage, of which 2 are padding on the last`."""
    each = one.chunk * one.rounds
    chunks = f" in {one.rounds} chunks of {one.chunk}" if one.rounds > 1 else ""
    padding = f", with padding of {one.padding}" if one.padding else ""
    return f"{one.size} {one.dim}, {each} on each stage{chunks}{padding}"


def tick_words(one: PipelineView) -> str:
    """How long a tick takes; empty where that is not known."""
    if one.forward is None or one.backward is None:
        return ""
    ticks = one.ticks * one.count
    backward = f", {time_words(one.backward / ticks)} backward" if one.backward else ""
    return f"{time_words(one.forward / ticks)} forward{backward}"


def parameter_words(one: PipelineView) -> str:
    """The bytes of the parameters that lie on the stages, and whether a device has them all."""
    size = byte_words(one.parameters)
    if one.split:
        return f"{size} of its stage"
    where = "where they do not divide over the stages, they are not split over them"
    return f"{size} of all {one.size} {one.dim}: {where}"


def kept_words(one: PipelineView) -> str:
    """What is kept for the backward pass; empty where there is none."""
    if not one.kept:
        return ""
    of, count = ("item under way", one.schedule.slots) if one.early else ("tick", one.ticks)
    return f"{byte_words(one.kept)}, {byte_words(one.kept / count)} of each {of}"


def pipeline_section(pipelines: Sequence[PipelineView], step: float | None) -> list[str]:
    """A part of a report for each pipeline, with its schedule; empty where there is none.

    Args:
      step: seconds of a step; None where they are not known.
    """
    lines = []
    for one in pipelines:
        letters = ", with a letter for the round" if one.rounds > 1 else ""
        back = "the backward pass goes from right to left"
        if one.early:
            back = f"the backward pass of microbatch 0 begins at tick {one.schedule.first_back}"
        rows = [
            ("layers", layer_words(one)),
            ("bubble", bubble_words(one, step)),
            ("a tick takes", tick_words(one)),
            ("parameters at rest", parameter_words(one)),
            ("kept for the backward pass", kept_words(one)),
        ]
        lines += [
            *([""] if lines else []),
            f"pipeline over {_axes(one)}: {_cut(one)}, {one.source}",
            *columns([row for row in rows if row[1]]),
            f"  the microbatch on which each stage works{letters}; {back}",
            *_drawn(one.schedule),
        ]
    return lines


def _axes(one: PipelineView) -> str:
    return " x ".join(f"`{axis}`" for axis in one.axes)


def _cut(one: PipelineView) -> str:
    """Into what the work is cut: `4 stages, 16 microbatches, 2 rounds`."""
    rounds = f", {one.rounds} rounds" if one.rounds > 1 else ""
    times = f", run {one.count} times a step" if one.count > 1 else ""
    early = ", early" if one.early else ""
    return f"{one.stages} stages, {one.microbatches} microbatches{rounds}{early}{times}"


def _drawn(schedule: Schedule) -> list[str]:
    """The schedule as a table of stages and ticks, as far as it goes into `_WIDTH`."""
    numbers = [["tick", *map(str, range(schedule.ticks))]]
    for stage in range(schedule.stages):
        cells = (schedule.at(stage, tick) for tick in range(schedule.ticks))
        numbers.append([f"stage {stage}", *(_cell(cell, schedule.rounds) for cell in cells)])
    first, *rest = (max(map(len, column)) for column in zip(*numbers, strict=True))
    widest = max(rest)
    shown = max((_WIDTH - first) // (widest + 1), 1)
    more = " ..." if shown < schedule.ticks else ""
    return [
        f"    {row[0].ljust(first)} "
        + "".join(f" {cell.rjust(widest)}" for cell in row[1 : shown + 1])
        + more
        for row in numbers
    ]


def _cell(cell: tuple[int, int] | None, rounds: int) -> str:
    """A microbatch and, where there are several, its round: `3b`; a dot where a stage waits."""
    if cell is None:
        return "."
    microbatch, in_round = cell
    return f"{microbatch}{_letter(in_round) if rounds > 1 else ''}"


def _letter(number: int) -> str:
    """`a`, `b`, ..., `z`, `aa`, ..."""
    text = ""
    while number >= 0:
        number, last = divmod(number, 26)
        text, number = chr(ord("a") + last) + text, number - 1
    return text
