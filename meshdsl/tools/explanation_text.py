"""An explanation as text: what `meshdsl explain` prints.

The verdict comes first, then axes, ops, work that is done more than once, memory, time and notes.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from typing import Any

from meshdsl.figures import byte_words, columns, flop_words, give_or_take, rule_words, time_words
from meshdsl.machine import FUSED_EFFICIENCY
from meshdsl.predict.explanation import PHASES, Explanation, MoveView, OpView, TensorView, TimeView
from meshdsl.predict.time.uncertainty import kind_of
from meshdsl.tools.pipeline_text import pipeline_line, pipeline_section

_SHOWN = 12  # parameters and lines of repeated work that are listed
_SLOWEST = 8  # ops listed by the time that they compute


def describe(explanation: Explanation) -> str:
    """The whole explanation, with a line for each op and each collective."""
    parts = [
        _head(explanation),
        _axes(explanation),
        _ops(explanation),
        _redundant(explanation),
        _memory(explanation),
        _time(explanation),
        pipeline_section(explanation.pipelines, explanation.time and explanation.time.step),
    ]
    return text_of(parts, explanation.notes)


def text_of(parts: Iterable[list[str]], notes: Sequence[str]) -> str:
    """Parts, each a list of lines, and the notes, with an empty line between two parts."""
    last = ["notes", *(f"  {note}" for note in notes)] if notes else []
    return "\n\n".join("\n".join(part) for part in (*parts, last) if part)


def _head(e: Explanation) -> list[str]:
    mesh = " ".join(f"{a.name}={a.size}" for a in e.axes)
    on = f" on {e.target}" if e.target else ""
    lines = [e.title, f"{e.layout}, mesh {mesh}, {e.devices} device{'s' * (e.devices > 1)}{on}"]
    peak, capacity = e.memory.peak, e.memory.capacity
    if capacity is not None:
        over = byte_words(peak - capacity)
        verdict = "fits" if e.memory.fits else f"does NOT fit, by {over}"
        used = f"{byte_words(peak)} of {byte_words(capacity)}"
        lines.append(f"{verdict}: estimated peak {used} per device")
    return [*lines, *below_verdict(e, "estimated")]


def below_verdict(e: Any, how: str) -> list[str]:
    """The lines below the verdict of an explanation or of a compiled report.

    Args:
      how: how the time of a step is known: `estimated`, `replayed`.
    """
    lines = [f"  {remedy}" for remedy in e.remedies]
    if e.time:
        lines.append(f"{how} {step_words(e.time, e.units, e.unit)}")
    lines += [pipeline_line(one, e.time and e.time.step) for one in e.pipelines]
    return [*lines, e.choice] if e.choice else lines


def _axes(e: Explanation) -> list[str]:
    if not e.axes:
        return []
    rows = [("axis", "size", "collectives", "bytes", "alone", "lies")]
    for a in e.axes:
        rows.append(
            (
                a.name,
                str(a.size),
                f"{a.count:,}",
                byte_words(a.bytes),
                time_words(a.seconds) if a.seconds is not None else "",
                a.lies,
            )
        )
    lines = ["axes: collectives of one step on one device", *columns(rows, right=(1, 2, 3, 4))]
    return lines + [
        f"  {a.name}: of these each device sends {byte_words(round(a.between))} to other slices or "
        "nodes"
        for a in e.axes
        if a.between is not None
    ]


# -- ops ---------------------------------------------------------------------------------------


def _ops(e: Explanation) -> list[str]:
    lines = ["ops: FLOPs per device of one execution; under each op its collectives"]
    for loops, ops in groupby(e.ops, key=lambda op: op.loops):
        inside = bool(loops)
        if inside:
            lines.append("  " + " ".join(f"{count} x {what}" for what, count in loops))
        lines += _op_lines(list(ops), e.layout, indent=4 if inside else 2)
    return lines


def _op_lines(ops: Sequence[OpView], layout: str, indent: int) -> Iterator[str]:
    """A line for each op, and under it one for each of its collectives.

    Kernels that cannot serve the op come before these, each with the reason.
    """
    rows = [
        (
            op.notation
            + (f" by {op.kernel}" if op.kernel else "")
            + (f" +{op.waste:.0%} padding" if op.waste else ""),
            "x".join(str(d.local) for d in op.dims),
            _flops(op),
            op.source,
        )
        for op in ops
    ]
    for op, line in zip(ops, columns(rows, indent=indent), strict=True):
        yield line
        yield from (" " * (indent + 4) + f"not by {name}: {why}" for name, why in op.lacks)
        cells = [_move(m, op, layout) for m in op.moves]
        yield from columns(cells, right=(2, 3, 4), indent=indent + 4)


def _flops(op: OpView) -> str:
    """`forward 1.1 TFLOP, backward 2.2 TFLOP`, of one execution, for the phases that have any."""
    parts = [
        f"{phase} {flop_words(op.flops[phase] / op.count)}"
        for phase in PHASES
        if op.flops.get(phase)
    ]
    return ", ".join(parts)


def _move(m: MoveView, op: OpView, layout: str) -> tuple[str, ...]:
    times = m.count // op.count if op.count and m.count % op.count == 0 else m.count
    alone = time_words(m.seconds) if m.seconds is not None else ""
    return (
        m.phase,
        f"{m.operation}({', '.join(m.axes)})",
        f"{times} x" if times > 1 else "",
        byte_words(m.bytes),
        alone,
        rule_words(m.why, layout),
    )


def _redundant(e: Explanation) -> list[str]:
    """The lines of code whose work several devices repeat, those with most FLOPs first.

    Those that are too small to matter are left out.
    """
    found = [one for one in e.repeated if one.matters]
    rows = [
        (
            one.source or "no line",
            ", ".join(one.ops[:3]),
            f"{one.copies} times over {', '.join(one.axes)}",
            f"{flop_words(one.flops)} ({one.share_of_flops:.2%})",
            f"{byte_words(one.bytes)} ({one.share_of_bytes:.2%})",
            f"`{one.advice}` would split it" if one.advice else "",
        )
        for one in found[:_SHOWN]
    ]
    if not rows:
        return []
    more = [f"  and {len(found) - _SHOWN} more lines"] if len(found) > _SHOWN else []
    return [
        "done more than once: FLOPs and bytes of results that each device repeats, of all it has",
        *columns(rows, right=(3, 4)),
        *more,
    ]


# -- memory and time ---------------------------------------------------------------------------


def _memory(e: Explanation) -> list[str]:
    m = e.memory
    rows = [(what, byte_words(m.total(kind))) for what, kind in _KINDS if m.total(kind)]
    rows.append(("arguments of the step", f"{byte_words(m.arguments)}, in whole tiles of the chip"))
    rows.append(
        ("estimated peak", f"{byte_words(m.peak)}{f', at {m.at_peak}' if m.at_peak else ''}")
    )
    lines = [
        "memory of one device",
        *columns(rows),
        "  largest at the peak",
        *columns([_array_cells(t) for t in m.largest], indent=4),
    ]
    parameters = [t for t in m.at_rest if t.kind == "parameter"]
    cells = [_array_cells(t) for t in parameters[:_SHOWN]]
    lines += ["  parameters at rest", *columns(cells, indent=4)]
    if len(parameters) > _SHOWN:
        lines.append(f"    and {len(parameters) - _SHOWN} more")
    return lines


_KINDS = (
    ("parameters", "parameter"),
    ("gradients", "gradient"),
    ("optimizer state", "optimizer"),
    ("batch", "batch"),
)


def _array_cells(t: TensorView) -> tuple[str, ...]:
    return (t.notation, "x".join(map(str, t.shape)), t.dtype, byte_words(t.bytes), t.source)


def step_words(t: TimeView, units: int, unit: str) -> str:
    """The time of a step in a line.

    An example is `step 1.2 s, give or take 98 ms (8.2%), MFU 50.0%, 1,024 tokens/s`.
    """
    full = f" (causal attention counted in full: {t.mfu_full:.1%})" if t.halved else ""
    mfu = f", MFU {t.mfu:.1%}{full}" if t.model_flops else ""
    rate = f", {units / t.step if t.step else 0.0:,.0f} {unit}s/s" if units else ""
    return f"step {time_words(t.step)}{give_or_take(t.step, t.estimate.uncertainty)}{mfu}{rate}"


def mfu_row(t: TimeView) -> list[tuple[str, str]]:
    """The row of a table that says the MFU; none where the FLOPs of the model are not known."""
    half = f" with causal attention counted half, {t.mfu_full:.1%} in full" if t.halved else ""
    return [("MFU", f"{t.mfu:.1%}{half}")] if t.model_flops else []


def fused_row(t: TimeView) -> list[tuple[str, str]]:
    """The row of a table that says how long fused kernels take; none where there is none."""
    if not t.fused:
        return []
    assumed = f"assumed to reach {FUSED_EFFICIENCY:.0%} of the chip's FLOP/s"
    share = t.fused / t.step if t.step else 0.0
    return [
        ("  of it in fused kernels", f"{time_words(t.fused)} ({share:.1%} of the step), {assumed}")
    ]


def _uncertainty_row(t: TimeView) -> list[tuple[str, str]]:
    """The row that says which kinds of work make the step uncertain, the most uncertain first."""
    kinds: dict[str, list[float]] = {}
    for work, deviation in t.deviations.items():
        kinds.setdefault(_UNSURE[kind_of(work)], []).append(deviation)
    found = sorted(((math.hypot(*each), kind) for kind, each in kinds.items()), reverse=True)
    said = (f"{time_words(float(f'{seconds:.2g}'))} by {kind}" for seconds, kind in found)
    return [("may be off, one standard deviation", ", ".join(said))] if found else []


_UNSURE = {
    "product": "products",
    "pass": "passes over memory",
    "fused": "fused kernels",
    "collective": "collectives",
    "step": "what is not foreseen",
    "layout": "what is not foreseen",
}


def _time(e: Explanation) -> list[str]:
    t = e.time
    if t is None:
        return []
    exposed = f"{time_words(t.exposed)} ({t.exposed_share:.0%}) waits for collectives"
    rows = [
        ("compute", time_words(t.compute)),
        *fused_row(t),
        ("collectives, one after the other", time_words(t.communication)),
        ("step, nothing overlapped", time_words(t.serial)),
        ("step, overlapped", f"{time_words(t.step)}, of which {exposed}"),
        *_uncertainty_row(t),
        *mfu_row(t),
    ]
    timed = [(sum(op.seconds.values()), op) for op in e.ops if op.seconds]
    slowest = sorted(timed, key=lambda pair: -pair[0])[:_SLOWEST]
    spent = [
        (op.notation, time_words(seconds), f"{seconds / (t.compute or 1.0):.0%}", op.source)
        for seconds, op in slowest
    ]
    return [
        "estimated time of one step",
        *columns(rows),
        "  ops that compute longest, all passes and layers",
        *columns(spent, right=(1, 2), indent=4),
    ]
