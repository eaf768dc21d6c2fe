"""The FLOPs of a model, counted in the program of one device."""

from __future__ import annotations

import math
from collections import defaultdict

from meshdsl.predict.kernels.kernels import Graph
from meshdsl.program.program import Program
from meshdsl.program.recorder import Op, tag_in


def counted_flops(graph: Graph, program: Program) -> float:
    """The FLOPs of the products of one call that the model needs, on one device.

    Like the 6 N D convention it leaves out what is no product and what is recomputed in the
    backward pass. Work that several devices do alike counts for one of them, and work on padding
    not at all, nor what an op computes and does not need, such as the masked half of causal
    attention, nor what a stage of a pipeline computes while it waits. So times the number of
    devices it is the same under every layout.

    Args:
      graph: the kernels of `program`.
    """
    once = {op.tag: op.needed / _repeated(op, program) for op in program.ops}
    counts: dict[str, dict[str, float]] = defaultdict(lambda: defaultdict(float))
    for kernel, times in graph.walk():
        if kernel.dots and kernel.phase != "recompute":
            counts[tag_in(kernel.scope) or ""][kernel.phase] += float(times * kernel.flops)
    return math.fsum(
        once.get(tag, 1.0) * _without_repeats(phases) for tag, phases in counts.items()
    )


def _without_repeats(phases: dict[str, float]) -> float:
    """The FLOPs of an op by phase, together, but for what its own backward pass computes again.

    The derivatives of a product are two products of its size. Fused attention has more in its
    backward pass: the scores once more.
    """
    total, forward = sum(phases.values()), phases.get("forward", 0.0)
    backward = phases.get("backward", 0.0)
    return total - max(backward - 2 * forward, 0.0) if forward else total


def _repeated(op: Op, program: Program) -> float:
    """How often the elements of an op are computed, on all devices together."""
    used = {axis for axes in op.axes for axis in axes}
    pipeline = program.pipeline_of(op)
    if pipeline is not None:
        used.update(axis for axes in pipeline.axes for axis in axes)
    copies = math.prod(n for axis, n in program.axis_sizes.items() if axis not in used)
    return copies * (1 + op.waste) * (_in_vain(op, pipeline) if pipeline is not None else 1.0)


def _in_vain(op: Op, pipeline: Op) -> float:
    """How often an op of a pipeline runs for each time that counts.

    It runs at every tick, though each stage waits for some of them, and for padding of the layers.
    """
    schedule, (dim,) = pipeline.schedule, pipeline.dims
    assert schedule is not None
    what, chunk = (*op.loops[len(pipeline.loops) + 1 :], ("", 0))[0]
    padding = chunk * schedule.rounds * schedule.stages / dim.size if what == dim.name else 1.0
    return padding / (1 - schedule.bubble)
