"""The pipelines of a program: their schedules, and the memory and the time of their stages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from meshdsl.predict.explanation import OpView, PipelineView, Span, TensorView, TimeView
from meshdsl.predict.kernels.kernels import Graph, Kernel
from meshdsl.program.program import Program
from meshdsl.program.recorder import Op, source_of, tag_in
from meshdsl.splits.pipeline import Schedule


def pipeline_views(
    program: Program,
    graph: Graph,
    at_rest: Sequence[TensorView],
    ops: Sequence[OpView],
    time: TimeView | None,
) -> tuple[PipelineView, ...]:
    """The pipelines of `program`.

    Args:
      graph: the kernels of `program`.
      at_rest: what lies in the memory of a device.
      ops: of `program`.
      time: of one step; without it the views have no times.
    """
    found = tuple(
        _view(op, program, graph, at_rest) for op in program.ops if op.schedule is not None
    )
    return timed(found, ops, time)


def timed(
    pipelines: Sequence[PipelineView], ops: Sequence[OpView], time: TimeView | None
) -> tuple[PipelineView, ...]:
    """`pipelines` with the seconds that their loops of ticks take in the timeline of a step.

    Args:
      ops: of the program, which know the pipeline that they run in.
      time: of one step, estimated or replayed; without it nothing is known.
    """
    if time is None:
        return tuple(replace(one, forward=None, backward=None) for one in pipelines)
    found = []
    for one in pipelines:
        tags = {op.tag for op in ops if op.pipeline == one.tag}
        loops = _loops_of_ticks(one, tags, time.spans)
        if one.early:
            found.append(_timed_early(one, loops))
            continue
        forward, backward = 0.0, 0.0
        for span in loops:
            seconds = (span.end - span.start) * span.repeats
            if span.phase == "forward":
                forward += seconds
            else:
                backward += seconds
        found.append(replace(one, forward=forward, backward=backward))
    return tuple(found)


def _timed_early(one: PipelineView, loops: list[Span]) -> PipelineView:
    """`one` with the seconds of all ticks, from those of the ticks that go one way alone.

    Without these, where two stages leave one such tick, nothing is known.
    """
    if len(loops) != 2:
        return replace(one, forward=None, backward=None)
    ticks = one.ticks / one.schedule.first_back
    forward, backward = (ticks * (loop.end - loop.start) * loop.repeats for loop in loops)
    return replace(one, forward=forward, backward=backward)


def _loops_of_ticks(one: PipelineView, tags: set[str], spans: Sequence[Span]) -> list[Span]:
    """The loops of a timeline whose turns are ticks.

    A loop over the layers alone, for what is the same at all ticks, is none of them. A compiler may
    take a tick out of a loop. Of an early schedule they are the loops that go one way alone.

    Args:
      tags: of the ops in the pipeline.
    """
    found, length = [], one.schedule.first_back if one.early else one.ticks
    for loop in spans:
        if loop.stream != "loops" or loop.repeats != one.count:
            continue
        turns = [
            span.repeats // loop.repeats
            for span in spans
            if span.tag in tags
            and span.repeats > loop.repeats
            and loop.start <= span.start
            and span.end <= loop.end
        ]
        if turns and min(turns) in (length - 1, length):
            found.append(loop)
    return sorted(found, key=lambda loop: loop.start)


def _view(op: Op, program: Program, graph: Graph, at_rest: Sequence[TensorView]) -> PipelineView:
    schedule, (dim,), (axes,) = op.schedule, op.dims, op.axes
    assert schedule is not None
    inside = {one.tag: one for one in program.ops if program.pipeline_of(one) is op}
    depth = len(op.loops) + 1  # of the loop of ticks
    chunks = (loop for one in inside.values() for loop in one.loops[depth : depth + 1])
    held = [
        (t.bytes, next(d for d in t.dims if d.name == dim.name))
        for t in at_rest
        if t.kind == "parameter" and dim.name in {d.name for d in t.dims}
    ]
    whole = -(-dim.size // (schedule.stages * schedule.rounds))
    return PipelineView(
        tag=op.tag,
        dim=dim.name,
        size=dim.size,
        axes=axes,
        stages=schedule.stages,
        microbatches=schedule.microbatches,
        rounds=schedule.rounds,
        ticks=schedule.ticks,
        chunk=next((count for what, count in chunks if what == dim.name), whole),
        loops=op.loops,
        source=source_of(op),
        parameters=sum(size for size, _ in held),
        split=all(set(axes) <= set(view.axes) for _, view in held),
        kept=_kept(graph, schedule, set(inside)),
        early=schedule.early,
    )


def _kept(graph: Graph, schedule: Schedule, tags: set[str]) -> int:
    """Bytes that the forward loops of ticks write, for the backward pass to read.

    Args:
      tags: of the ops in the pipeline.
    """
    if not any(phase == "backward" and tag in tags for tag, phase in graph.flops):
        return 0
    length = schedule.first_back if schedule.early else schedule.ticks
    count = schedule.slots if schedule.early else length
    return sum(
        buffer.bytes
        for kernel, _ in graph.walk()
        if kernel.loop is not None
        and kernel.loop.length == length
        and kernel.phase == "forward"
        and _has_any(kernel.loop.kernels, tags)
        for buffer in kernel.writes
        if buffer.shape[:1] == (count,)
    )


def _has_any(kernels: Sequence[Kernel], tags: set[str]) -> bool:
    """Whether one of `kernels`, or of what they run, belongs to an op with one of the tags."""
    return any(
        tag_in(kernel.scope) in tags
        or (kernel.loop is not None and _has_any(kernel.loop.kernels, tags))
        for kernel in kernels
    )
