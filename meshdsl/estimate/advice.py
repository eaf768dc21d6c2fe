"""Work that devices repeat: ops that leave a mesh axis unused, and the rule that would use it."""

from __future__ import annotations

import math

from meshdsl.layout import Layout, Rule
from meshdsl.record.program import Program
from meshdsl.record.recorder import Op


def idle_axes(op: Op, program: Program) -> tuple[str, ...]:
    """The axes larger than 1 over which `op` is not split: all devices along them do the same.

    In a pipeline the devices along its axes do the same on other layers, so these are not idle.
    """
    pipeline = program.pipeline_of(op)
    split = (*op.axes, *(pipeline.axes if pipeline else ()))
    used = {a for axes in split for a in axes}
    return tuple(a for a, size in program.axis_sizes.items() if size > 1 and a not in used)


def advice(op: Op, idle: tuple[str, ...], program: Program) -> str:
    """A rule such as `length -> model` that would use the largest of the `idle` axes.

    Its dim is one of the op's loop nest that divides over the axis and that the op does not need
    whole, and of those the one of which a device has most elements. Dims that no parameter has
    (batch, length) come first: splitting another one splits what is multiplied with parameters too.
    Empty where no dim will do.
    """
    if not idle:
        return ""
    sizes = program.axis_sizes
    axis = max(idle, key=lambda a: sizes[a])
    known = {r.dim for r in program.layout.parsed if r.axis == axis}
    parameters = (a for a in program.arguments if a.role == "parameter")
    of_parameters = {d.name for argument in parameters for d in argument.dims}
    fitting = []
    for dim, axes in zip(op.dims, op.axes, strict=True):
        parts = math.prod(sizes[a] for a in axes)
        divides = dim.size % (parts * sizes[axis]) == 0
        may_be_split = dim.name not in known and dim.name not in op.unsplit
        if divides and dim.size // parts > 1 and may_be_split:
            fitting.append((dim.name not in of_parameters, dim.size // parts, dim.name))
    return f"{max(fitting)[2]} -> {axis}" if fitting else ""


def unused(program: Program) -> tuple[str, ...]:
    """What the layout says and the program has no use for, a sentence each.

    These are axes that split nothing, and optional rules whose dim no tensor has.
    """
    split = [*(op.axes for op in program.ops), *(a.axes for a in program.arguments)]
    used = {axis for one in split for axes in one for axis in axes}
    notes = [
        f"axis `{axis}`={size} splits nothing: all {size} devices along it do the same work"
        for axis, size in program.axis_sizes.items()
        if size > 1 and axis not in used
    ]
    dims = [*(op.dims for op in program.ops), *(a.dims for a in program.arguments)]
    known = {d.name for one in dims for d in one}
    for rule in program.layout.parsed:
        if rule.optional and rule.dim not in known and not _has_other(rule, program.layout, known):
            notes.append(f"{rule}: this model has no dim `{rule.dim}`")
    return tuple(dict.fromkeys(notes))


def _has_other(rule: Rule, layout: Layout, known: set[str]) -> bool:
    """Whether the rule's line names another `known` dim, as `heads?, kv_heads? -> model`."""
    return any(other.where == rule.where and other.dim in known for other in layout.parsed)
