"""The memory of one device by name: the arrays at rest, and the largest ones at the peak."""

from __future__ import annotations

import math
from collections.abc import Mapping

from meshdsl.machine import Target
from meshdsl.predict.explanation import DimView, MemoryView, TensorView, dim_views
from meshdsl.predict.kernels.kernels import Buffer, Graph
from meshdsl.predict.memory.peak import argument_bytes, peak
from meshdsl.program.collective import phase_of
from meshdsl.program.program import Argument, Program
from meshdsl.program.recorder import Op, source_of, tag_in

LARGEST = 5  # how many arrays are named at the peak
_OTHER = ("step", "key")  # what a training state has besides parameters and optimizer state


def memory_view(program: Program, graph: Graph, target: Target | None) -> MemoryView:
    """The memory of one device over one step.

    Args:
      graph: the kernels of `program`.
      target: the machine; without one nothing is padded, and there is no capacity.
    """
    chip = target.chip if target else None
    arguments = [_argument(a, program) for a in program.arguments]
    differentiated = any(phase == "backward" for _, phase in graph.flops)
    gradients = [
        _gradient(a, program)
        for a in program.arguments
        if differentiated and kind_of(a) == "parameter" and a.dims and not a.frozen
    ]
    named = {
        id(buffer): argument
        for buffer, argument in zip(graph.arguments, program.arguments, strict=True)
    }
    at_peak = peak(graph, chip)
    return MemoryView(
        at_rest=tuple(arguments + gradients),
        arguments=argument_bytes(program, chip),
        peak=at_peak.bytes,
        largest=tuple(
            _live(buffer, named.get(id(buffer)), program) for buffer in at_peak.largest[:LARGEST]
        ),
        at_peak=_phase_and_op(at_peak.where, program),
        capacity=chip.hbm if chip else None,
    )


def kind_of(argument: Argument) -> str:
    """What an argument of the program is: `parameter`, `optimizer`, `batch` or `other`."""
    first = argument.name.partition(".")[0]
    if first == "opt_state" or argument.role == "optimizer":
        return "optimizer"
    if argument.role == "parameter":
        return "parameter"
    # A counter, or random keys: no data of a batch.
    lone = argument.role == "value" and (not argument.shape or argument.dtype.startswith("key<"))
    return "other" if first in _OTHER or lone else "batch"


def _phase_and_op(scope: str, program: Program) -> str:
    """The phase and the op that a name stack belongs to, in words; empty if it is of no op."""
    op = program.op_tagged(tag_in(scope))
    return f"{phase_of(scope)} of {op}, {source_of(op)}" if op else ""


def _short(path: str) -> str:
    return path.removeprefix("params.").removeprefix("opt_state.")


def _argument(a: Argument, program: Program) -> TensorView:
    dims = dim_views(a.dims, a.axes, program.axis_sizes)
    assert not dims or tuple(d.local for d in dims) == a.shape  # nothing is padded at rest
    return TensorView(_short(a.name), kind_of(a), dims, a.shape, a.dtype, a.bytes)


def _gradient(a: Argument, program: Program) -> TensorView:
    """The gradient of a parameter, which is split as optimizer state is."""
    split = program.layout.at_rest(a.dims, program.axis_sizes, "optimizer")
    dims = dim_views(a.dims, [split.get(d, ()) for d in a.dims], program.axis_sizes)
    shape = tuple(d.local for d in dims)
    size = a.bytes * math.prod(shape) // max(math.prod(a.shape), 1)
    return TensorView(_short(a.name), "gradient", dims, shape, a.dtype, size)


def _live(buffer: Buffer, argument: Argument | None, program: Program) -> TensorView:
    """A buffer under the path of the argument that it is, or the name of the op that makes it."""
    if argument is not None:
        return _argument(argument, program)
    op = program.op_tagged(tag_in(buffer.scope))
    if op is None:
        return TensorView("unnamed", "activation", (), buffer.shape, buffer.dtype, buffer.bytes)
    dims = _dims_of(buffer.shape, op, program.axis_sizes)
    name, source = op.name if dims else str(op), source_of(op)
    return TensorView(name, "activation", dims, buffer.shape, buffer.dtype, buffer.bytes, source)


def _dims_of(shape: tuple[int, ...], op: Op, sizes: Mapping[str, int]) -> tuple[DimView, ...]:
    """The dims of an array of `shape` that `op` makes, maybe stacked over the loops around it.

    They are found by their sizes, in the order of the loop nest. Empty if that fails, because the
    compiler's order is another, say.
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
