"""Work done more than once: ops whose loop nest leaves a mesh axis unused, and the rule that would use it."""

from __future__ import annotations

import math
from collections.abc import Mapping

from meshdsl.layout import Layout
from meshdsl.record.program import Program
from meshdsl.record.recorder import Op


def idle_axes(op: Op, sizes: Mapping[str, int]) -> tuple[str, ...]:
    """The axes larger than 1 over which the loop nest of `op` is not split: all devices along them do the same."""
    used = {a for axes in op.axes for a in axes}
    return tuple(a for a, size in sizes.items() if size > 1 and a not in used)


def advice(op: Op, idle: tuple[str, ...], program: Program) -> str:
    """A rule that would use the largest of the `idle` axes: its dim is in the loop, divides, and has the most elements left.

    Dims that no parameter has (batch, length) come first: splitting another one splits what is multiplied with parameters too. Empty where no dim of the
    loop divides over the axis.
    """
    if not idle:
        return ""
    sizes = program.axis_sizes
    axis = max(idle, key=lambda a: sizes[a])
    known = {r.dim for r in program.layout.parsed if r.axis == axis}
    of_parameters = {
        d.name
        for argument in program.arguments
        if argument.role == "parameter"
        for d in argument.dims
    }
    fitting = []
    for dim, axes in zip(op.dims, op.axes, strict=True):
        local = dim.size // math.prod(sizes[a] for a in axes)
        if (
            dim.size % math.prod(sizes[a] for a in (*axes, axis)) == 0
            and local > 1
            and dim.name not in known
        ):
            fitting.append((dim.name not in of_parameters, local, dim.name))
    return f"{max(fitting)[2]} -> {axis}" if fitting else ""


def unused(program: Program) -> tuple[str, ...]:
    """What the layout says and the program has no use for: axes that split nothing, and optional rules without their dim."""
    used = {a for op in program.ops for axes in op.axes for a in axes} | {
        a for argument in program.arguments for axes in argument.axes for a in axes
    }
    notes = [
        f"axis `{axis}`={size} splits nothing: all {size} devices along it do the same work"
        for axis, size in program.axis_sizes.items()
        if size > 1 and axis not in used
    ]
    known = {d.name for op in program.ops for d in op.dims} | {
        d.name for argument in program.arguments for d in argument.dims
    }
    for rule in program.layout.parsed:
        if rule.optional and rule.dim not in known and not _spoken_for(rule, program.layout, known):
            notes.append(f"{rule}: this model has no dim `{rule.dim}`")
    return tuple(dict.fromkeys(notes))


def _spoken_for(rule, layout: Layout, known: set[str]) -> bool:
    """Whether the same line splits another dim of the model: `heads?, kv_heads? -> model` names alternatives."""
    return any(other.where == rule.where and other.dim in known for other in layout.parsed)
