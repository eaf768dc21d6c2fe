"""What a device holds: the arrays at rest by name, and the largest ones at the peak."""

from __future__ import annotations

import math
from collections.abc import Mapping

from meshdsl.estimate.explanation import DimView, MemoryView, TensorView, dim_views
from meshdsl.estimate.kernels import Buffer, Graph
from meshdsl.estimate.memory.peak import argument_bytes, peak
from meshdsl.machine import Target
from meshdsl.record.collective import phase_of
from meshdsl.record.program import Argument, Program
from meshdsl.record.recorder import Op, source_of, tag_in

LARGEST = 5  # arrays named at the peak
_OTHER = ("step", "key")  # of a training state, beside parameters and optimizer


def memory_view(program: Program, graph: Graph, target: Target | None) -> MemoryView:
    """The memory of one device over one step."""
    chip = target.chip if target else None
    arguments = [_argument(a, program) for a in program.arguments]
    differentiated = any(phase == "backward" for _, phase in graph.flops)
    gradients = [
        _gradient(a, program)
        for a in program.arguments
        if differentiated and kind_of(a) == "parameter" and a.dims
    ]
    named = {
        id(buffer): argument
        for buffer, argument in zip(graph.arguments, program.arguments, strict=True)
    }
    reached = peak(graph, chip)
    return MemoryView(
        at_rest=tuple(arguments + gradients),
        arguments=argument_bytes(program, chip),
        peak=reached.bytes,
        largest=tuple(
            _live(buffer, named.get(id(buffer)), program) for buffer in reached.largest[:LARGEST]
        ),
        at_peak=_moment(reached.where, program),
        capacity=chip.hbm if chip else None,
    )


def kind_of(argument: Argument) -> str:
    """What an argument of the program is: `parameter`, `optimizer`, `batch` or `other`."""
    first = argument.name.partition(".")[0]
    if first == "opt_state" or argument.role == "optimizer":
        return "optimizer"
    if argument.role == "parameter":
        return "parameter"
    return "other" if first in _OTHER else "batch"


def _moment(scope: str, program: Program) -> str:
    """The op and the pass that a name stack stands for."""
    op = program.op_tagged(tag_in(scope))
    return f"{phase_of(scope)} of {op}, {source_of(op)}" if op else ""


def _short(path: str) -> str:
    return path.removeprefix("params.").removeprefix("opt_state.")


def _argument(a: Argument, program: Program) -> TensorView:
    sizes = program.axis_sizes
    dims = (
        tuple(
            DimView(d.name, d.size, n, tuple(axes))
            for d, axes, n in zip(a.dims, a.axes, a.shape, strict=True)
        )
        if a.dims
        else ()
    )
    assert all(
        d.local * math.prod(sizes[x] for x in d.axes) == d.size for d in dims
    )  # nothing is padded at rest
    return TensorView(_short(a.name), kind_of(a), dims, a.shape, a.dtype, a.bytes)


def _gradient(a: Argument, program: Program) -> TensorView:
    """The gradient of a parameter: split as optimizer state is."""
    split = program.layout.at_rest(a.dims, program.axis_sizes, "optimizer")
    dims = dim_views(a.dims, [split.get(d, ()) for d in a.dims], program.axis_sizes)
    shape = tuple(d.local for d in dims)
    return TensorView(
        _short(a.name),
        "gradient",
        dims,
        shape,
        a.dtype,
        a.bytes * math.prod(shape) // max(math.prod(a.shape), 1),
    )


def _live(buffer: Buffer, argument: Argument | None, program: Program) -> TensorView:
    """A buffer by its path, or by the op that makes it."""
    if argument is not None:
        return _argument(argument, program)
    op = program.op_tagged(tag_in(buffer.scope))
    if op is None:
        return TensorView("unnamed", "activation", (), buffer.shape, buffer.dtype, buffer.bytes)
    dims = _dims_of(buffer.shape, op, program.axis_sizes)
    return TensorView(
        op.name if dims else str(op),
        "activation",
        dims,
        buffer.shape,
        buffer.dtype,
        buffer.bytes,
        source_of(op),
    )


def _dims_of(shape: tuple[int, ...], op: Op, sizes: Mapping[str, int]) -> tuple[DimView, ...]:
    """The dims that an array of `shape` has, where it can be one of the results of `op`, or those of all turns of the loops around it.

    They are found by their sizes, in the order of the loop nest; empty where that fails (the compiler's order is another, say).
    """
    around = tuple(DimView(name, count, count, ()) for name, count in op.loops)
    left = iter((*around, *dim_views(op.dims, op.axes, sizes)))
    found = []
    for n in shape:
        dim = next((d for d in left if d.local == n), None)
        if dim is None:
            return ()
        found.append(dim)
    return tuple(found)
