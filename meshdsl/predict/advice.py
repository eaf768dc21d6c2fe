"""What a layout could do better: rules that use idle axes, and rules that make a program fit."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping

from meshdsl.figures import byte_words
from meshdsl.layout import Layout, Rule
from meshdsl.predict.explanation import MemoryView, OpView, TensorView
from meshdsl.program.program import Program
from meshdsl.program.recorder import Op

_WORTHWHILE = 0.01  # the share of the chip's memory that a rule must save to be named
_AT_REST = ("parameter", "gradient", "optimizer")


def idle_axes(op: Op, program: Program) -> tuple[str, ...]:
    """The axes larger than 1 over which `op` is not split: all devices along them do the same.

    In a pipeline the devices along its axes do the same on other layers, so these are not idle.
    """
    pipeline = program.pipeline_of(op)
    split = (*op.axes, *(pipeline.axes if pipeline else ()))
    used = op.spent.union(a for axes in split for a in axes)
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


def remedies(
    memory: MemoryView, ops: tuple[OpView, ...], sizes: Mapping[str, int]
) -> tuple[str, ...]:
    """Sentences that say how to make a program fit, the one that saves the most first.

    What is at rest can be split over every axis that does not split it yet. The largest array that
    lives at the peak can be split over an axis that its op leaves unused. There are none if the
    program fits, or if no machine is known.

    Args:
      sizes: of the mesh axes.
    """
    if memory.fits is not False:
        return ()
    rest = [t for t in memory.at_rest if t.kind in _AT_REST]
    capacity = memory.capacity or 0
    rules = (_rule(axis, size, rest) for axis, size in sizes.items() if size > 1)
    found = sorted(
        (rule for rule in rules if rule and rule[0] > _WORTHWHILE * capacity), reverse=True
    )
    lines = [
        f'`parameters = ["{dim} -> {axis}"]` would save {byte_words(saved)} '
        "of parameters, gradients and optimizer state"
        for saved, dim, axis in found
    ]
    saved = sum(rule[0] for rule in found)
    if sum(t.bytes for t in rest) - saved > capacity:
        what = "then" if found else "and every axis splits them"
        left = byte_words(sum(t.bytes for t in rest) - saved)
        lines.append(
            f"parameters, gradients and optimizer state alone are {left} {what}: "
            "it takes more devices"
        )
    activations = [t for t in memory.largest if t.kind == "activation"]
    if activations and memory.peak - saved > capacity:
        lines.append(_for_activations(activations[0], ops))
    return tuple(lines)


def _rule(axis: str, size: int, tensors: list[TensorView]) -> tuple[int, str, str] | None:
    """The rule that splits `tensors` over `axis` and saves the most, as (bytes saved, dim, axis).

    None if it can split none of them.
    """
    by_dim: Counter[str] = Counter()
    for t in tensors:
        if any(axis in d.axes for d in t.dims):
            continue
        for d in t.dims:
            if d.local % size == 0:
                by_dim[d.name] += t.bytes - t.bytes // size
    if not by_dim:
        return None
    dim, saved = by_dim.most_common(1)[0]
    return saved, dim, axis


def _for_activations(largest: TensorView, ops: tuple[OpView, ...]) -> str:
    """What there is to say of the largest array at the peak, with the advice for its op if any."""
    advice = (
        f": `{op.advice}` would split it"
        for op in ops
        if op.source == largest.source and largest.name.startswith(op.name) and op.advice
    )
    size = byte_words(largest.bytes)
    return f"the largest array at the peak is {largest.notation}, {size}{next(advice, '')}"
