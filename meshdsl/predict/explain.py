"""`explain`: from a recorded program to everything that one step of it will do on one device.

Nothing is run or compiled. The collectives are those of the jaxpr, so they are exact; FLOPs and
bytes of what is at rest are exact too. The peak of memory and all times are estimates, see
`meshdsl.predict.memory` and `meshdsl.predict.time`.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace

from meshdsl.machine import Network, Target, find_target, fit_mesh
from meshdsl.predict.advice import advice, idle_axes, remedies, unused
from meshdsl.predict.explanation import (
    AxisView,
    Explanation,
    MoveView,
    OpView,
    TimeView,
    dim_views,
)
from meshdsl.predict.kernels.kernel_graph import kernel_graph
from meshdsl.predict.kernels.kernels import Graph
from meshdsl.predict.memory.memory_view import memory_view
from meshdsl.predict.pipelines import pipeline_views
from meshdsl.predict.repeated_work import RepeatedView, repeated_work
from meshdsl.predict.time.model_flops import counted_flops
from meshdsl.predict.time.step_time import seconds_by_tag, step_time
from meshdsl.program.collective import Collective
from meshdsl.program.program import Program
from meshdsl.program.recorder import Op, source_of

# The phases of ops that stand for a part of the step.
_PHASES = {"gradient": "gradient", "gather_updated": "optimizer"}


def explain(
    program: Program,
    *,
    title: str = "",
    target: Target | str | None = None,
    units: int = 0,
    unit: str = "token",
    model_flops: tuple[float, float] | None = None,
    count_flops: bool = False,
) -> Explanation:
    """What one call of `program` does on one device.

    Args:
      title: what is explained, in words.
      target: the machine, or its name; without one there are no times.
      units: how many tokens, images or whatever else one call works on, on all devices.
      unit: what these are, in the singular.
      model_flops: of the model per device, causal attention counted half, and in full; without them
        there is no MFU.
      count_flops: where `model_flops` are not given, count them in the program.

    Raises:
      MeshDSLError: the program's mesh does not fit the target.
    """
    sizes = program.axis_sizes
    target = find_target(target) if isinstance(target, str) else target
    if target is not None:
        fit_mesh(target, sizes, program.layout.name)
    network = Network(target, sizes) if target is not None and target.chip.timed else None
    graph = kernel_graph(program, kind=target.chip.kind if target is not None else "")
    time = None
    if model_flops is None and count_flops:
        counted = counted_flops(graph, program)
        model_flops = counted, counted
    memory = memory_view(program, graph, target)
    if target is not None and network is not None:
        flops = model_flops or (0.0, 0.0)
        time = step_time(graph, target, network, *flops, memory.peak - memory.arguments)
    ops = _ops(program, graph, network, time)
    return Explanation(
        title=title,
        layout=program.layout.name,
        target=target.name if target else "",
        axes=_axes(program, ops, network),
        ops=ops,
        memory=memory,
        time=time,
        units=units,
        unit=unit,
        notes=unused(program),
        remedies=remedies(memory, ops, _free_axes(program)),
        pipelines=pipeline_views(program, graph, memory.at_rest, ops, time),
        repeated=tuple(_advised(one, program) for one in repeated_work(program)),
    )


def _free_axes(program: Program) -> dict[str, int]:
    """The axes along which no part of the program is mapped, with their sizes."""
    spent = {axis for op in program.ops for axis in op.spent}
    return {axis: size for axis, size in program.axis_sizes.items() if axis not in spent}


def _advised(repeated: RepeatedView, program: Program) -> RepeatedView:
    """Repeated work with the rule that would split most of it."""
    op = program.op_tagged(repeated.tag)
    if op is None:
        return repeated
    idle = tuple(axis for axis in repeated.axes if axis in idle_axes(op, program))
    return replace(repeated, advice=advice(op, idle, program))


def shown_phase(phase: str, op: Op | None) -> str:
    """The phase of a collective of `op` as it is told: `phase`, or that for which the op stands."""
    return _PHASES.get(op.name if op else "", phase)


def _ops(
    program: Program, graph: Graph, network: Network | None, time: TimeView | None
) -> tuple[OpView, ...]:
    """The ops of the program, then the optimizer and what no op asked for."""
    moves: dict[str, list[MoveView]] = defaultdict(list)
    for c in program.collectives:
        op = program.op_of(c)
        moves[op.tag if op else ""].append(_move(c, op, network))
    flops: dict[str, dict[str, float]] = defaultdict(dict)
    for (tag, phase), count in graph.flops.items():
        flops[tag or ""][phase] = count
    seconds: dict[str, dict[str, float]] = defaultdict(dict)
    for (tag, phase), took in (seconds_by_tag(time) if time else {}).items():
        seconds[tag][phase] = took
    found = []
    for op in program.ops:
        pipeline = program.pipeline_of(op)
        idle = idle_axes(op, program) if op.dims and flops[op.tag] else ()
        found.append(
            OpView(
                tag=op.tag,
                name=op.name,
                dims=dim_views(op.dims, op.axes, program.axis_sizes),
                count=op.count,
                loops=op.loops,
                source=source_of(op),
                flops=dict(flops[op.tag]),
                moves=_together(moves[op.tag]),
                seconds=dict(seconds[op.tag]),
                idle=idle,
                advice=advice(op, idle, program),
                waste=op.waste,
                kernel=op.kernel,
                lacks=op.lacks,
                pipeline=pipeline.tag if pipeline else "",
            )
        )
    # What an optimizer computes for each element is no recorded op: it runs outside of the lowered
    # function, or on arrays that optax takes out of Tensors.
    phases = ("optimizer", "forward") if _updates(program) else ("optimizer",)
    if work := sum(flops[""].get(phase, 0) for phase in phases):
        times = [seconds[""][phase] for phase in phases if phase in seconds[""]]
        took = {"optimizer": sum(times)} if times else {}
        found.append(_outside("optimizer", flops={"optimizer": work}, seconds=took))
    if moves[""]:  # asked for by JAX code of the user's own, in `md.local` say
        found.append(_outside("not recorded", moves=_together(moves[""])))
    return tuple(found)


def _updates(program: Program) -> bool:
    """Whether the program has an optimizer: it is called with the state of one."""
    return any(argument.role == "optimizer" for argument in program.arguments)


def _outside(
    name: str,
    flops: dict[str, float] | None = None,
    moves: tuple[MoveView, ...] = (),
    seconds: dict[str, float] | None = None,
) -> OpView:
    """Work that belongs to no recorded op."""
    return OpView("", name, (), 1, (), "", flops or {}, moves, seconds=seconds or {})


def _move(c: Collective, op: Op | None, network: Network | None) -> MoveView:
    phase = shown_phase(c.phase, op)
    return MoveView(
        operation=c.operation,
        axes=c.axes,
        phase=phase,
        count=c.count,
        bytes=c.bytes,
        dtype=c.dtype,
        why=_why(c, op, phase),
        seconds=network.seconds(c.operation, c.axes, c.bytes) if network else None,
    )


def _why(c: Collective, op: Op | None, phase: str) -> str:
    """The rule behind a collective, by the recorded move that it is or whose transpose it is."""
    if op is None:
        return ""
    backward = phase == "backward"
    same = [
        m
        for m in op.moves
        if (m.backward if backward else m.operation) == c.operation and set(m.axes) == set(c.axes)
    ]
    alike = same or [m for m in op.moves if set(m.axes) & set(c.axes)]
    return alike[0].why if alike else ""


def _together(moves: list[MoveView]) -> tuple[MoveView, ...]:
    """Equal collectives counted together, in the order in which the first of each runs."""
    counts: dict[MoveView, int] = {}
    for move in moves:
        key = replace(move, count=0)
        counts[key] = counts.get(key, 0) + move.count
    return tuple(replace(key, count=count) for key, count in counts.items())


def _axes(
    program: Program, ops: tuple[OpView, ...], network: Network | None
) -> tuple[AxisView, ...]:
    views = []
    used = {a for op in program.ops for split in op.axes for a in split}
    for axis, size in program.axis_sizes.items():
        over = [c for c in program.collectives if axis in c.axes]
        seconds = between = None
        if network is not None:
            if any(level.kind == "scale-out" for level in network.axis(axis).levels):
                between = sum(
                    c.count * network.sent_between(c.operation, c.axes, c.bytes) for c in over
                )
            seconds = sum(c.count * network.seconds(c.operation, c.axes, c.bytes) for c in over)
        views.append(
            AxisView(
                name=axis,
                size=size,
                count=sum(c.count for c in over),
                bytes=sum(c.total_bytes for c in over),
                lies=network.describe(axis) if network else "",
                seconds=seconds,
                idle=size > 1 and axis not in used,
                between=between,
            )
        )
    return tuple(views)
