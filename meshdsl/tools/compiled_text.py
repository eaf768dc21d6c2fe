"""The report on a compiled step as text: what `meshdsl compile` prints.

The verdict comes first, then what could not be read, then surprises, then everything else.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from meshdsl.figures import byte_words, columns, time_words
from meshdsl.predict.compiler.match import AbsentCollective, CompiledCollective
from meshdsl.predict.compiler.report import CompiledReport
from meshdsl.predict.compiler.unread import unread_sentence
from meshdsl.predict.explanation import TensorView
from meshdsl.program.collective import Collective, summary
from meshdsl.proof.verified import Verified
from meshdsl.tools.explanation_text import below_verdict, fused_row, mfu_row, text_of
from meshdsl.tools.pipeline_text import pipeline_section


def describe(report: CompiledReport) -> str:
    """The whole report, with a line for each kind of collective."""
    sections = (
        _head,
        _unread,
        _wide,
        _surprises,
        _memory,
        _time,
        lambda r: pipeline_section(r.pipelines, r.time and r.time.step),
        _collectives,
        _absent,
        _options,
    )
    return text_of((section(report) for section in sections), report.notes)


def proof_text(report: CompiledReport, proof: Verified) -> str:
    """What is proved of the step that was compiled, and whether what runs is what is proved."""
    _, *lines = str(proof).splitlines()
    if proof.proved and (report.surprises or report.unread):
        lines.append(
            "  but the compiled program has collectives that no record explains, see above"
        )
    elif proof.proved and report.collectives:
        lines.append("  compiled: no collectives but those of the program that is proved")
    return "\n".join(lines)


def _head(r: CompiledReport) -> list[str]:
    mesh = " ".join(f"{axis}={size}" for axis, size in r.axes.items()) or "one device"
    return [
        r.title,
        f"{r.layout}, mesh {mesh}, compiled for {r.target} in {r.compile_seconds:.1f} s",
        r.verdict,
        *below_verdict(r, "replayed"),
    ]


def _surprises(r: CompiledReport) -> list[str]:
    if not r.collectives:
        return [] if r.fits is False or r.notes else ["collectives: none"]
    if not r.surprises:
        which = " that was understood" if r.unread else ""
        return [f"no surprises: a record explains every collective of the compiled program{which}"]
    return [
        f"SURPRISES: {len(r.surprises)} kinds of collectives that no record explains",
        *_rows(r.surprises),
    ]


def _wide(r: CompiledReport) -> list[str]:
    if not r.wide:
        return []
    return ["products that were meant to be in few bits", *[f"  {line}" for line in r.wide]]


def _unread(r: CompiledReport) -> list[str]:
    if not r.unread:
        return []
    cells = [(one.kind, f"{one.count:,} x", one.example) for one in r.unread]
    return [unread_sentence(r.unread), *columns(cells, right=(1,))]


def _collectives(r: CompiledReport) -> list[str]:
    known = [row for row in r.collectives if not row.surprise]
    changed, same = [row for row in known if row.how], [row for row in known if not row.how]
    lines = []
    if changed:
        lines += [
            f"collectives that the compiler changed: {sum(row.count for row in changed):,}",
            *_rows(changed),
            "",
        ]
    if same:
        totals = _totals(same)
        lines += [
            f"collectives that run as recorded: {sum(row.count for row in same):,}",
            *totals,
            "",
            *_rows(same),
        ]
    return lines


_SUMMED = ("asynchronous", "seconds", "exposed")  # figures of all executions, None if not known


def _totals(rows: Iterable[CompiledCollective]) -> list[str]:
    """Counts and bytes for each operation over each set of axes."""
    found = summary(
        Collective(row.operation, row.axes, row.count, row.bytes, row.dtype) for row in rows
    )
    cells = [
        (f"{operation}({', '.join(axes)})", f"{count:,} x", byte_words(size))
        for (operation, axes), (count, size) in found.items()
    ]
    return columns(cells, right=(1, 2))


def _alike(rows: Iterable[CompiledCollective]) -> list[CompiledCollective]:
    """Rows that read the same, such as those of q, k and v, as one."""
    found: dict[CompiledCollective, CompiledCollective] = {}
    for row in rows:
        key = replace(row, tag="", count=0, asynchronous=None, seconds=None, exposed=None)
        if (one := found.get(key)) is not None:
            pairs = {name: (getattr(one, name), getattr(row, name)) for name in _SUMMED}
            sums = {name: None if None in pair else sum(pair) for name, pair in pairs.items()}
            row = replace(one, count=one.count + row.count, **sums)
        found[key] = row
    return list(found.values())


def _rows(rows: Iterable[CompiledCollective]) -> list[str]:
    """A line for each, with times where they are known."""
    rows = _alike(rows)
    timed = any(row.seconds is not None for row in rows)
    times = ("async", "on the links", "exposed") if timed else ()
    cells = [("phase", "collective", "count", "bytes", *times, "op", "source", "")]
    cells += [_cells(row, timed) for row in rows]
    return columns(cells, right=range(2, 7 if timed else 4))


def _cells(row: CompiledCollective | AbsentCollective, timed: bool = False) -> tuple[str, ...]:
    times: tuple[str, ...] = ()
    if timed and isinstance(row, CompiledCollective):
        seconds, exposed = time_words(row.seconds or 0.0), time_words(row.exposed or 0.0)
        times = (f"{row.asynchronous or 0:,}", seconds, exposed)
    return (
        row.phase,
        f"{row.operation}({', '.join(row.axes)})",
        f"{row.count:,} x",
        byte_words(row.bytes),
        *times,
        row.op,
        row.source,
        row.how,
    )


def _absent(r: CompiledReport) -> list[str]:
    if not r.absent:
        return []
    return [
        f"recorded and not in the compiled program: {sum(row.count for row in r.absent):,}",
        *columns([_cells(row) for row in r.absent], right=(2, 3)),
    ]


def _memory(r: CompiledReport) -> list[str]:
    m = r.memory
    outputs = None if m.outputs is None or m.aliased is None else m.outputs - m.aliased
    known = (
        ("arguments", m.arguments),
        ("outputs, beside those in the memory of arguments", outputs),
        ("temporaries", m.temporaries),
        ("program", m.code),
        ("needed in all", m.needed),
        ("most that lives at once", m.peak),
        ("of the chip, for programs", m.capacity),
    )
    lines = [
        "memory of one device, by the compiler",
        *columns(
            [(what, byte_words(size)) for what, size in known if size is not None], right=(1,)
        ),
    ]
    if m.largest:
        lines += [
            "  largest arrays, beside the arguments",
            *columns([_array_cells(t) for t in m.largest], indent=4, right=(2,)),
        ]
    return lines


def _array_cells(t: TensorView) -> tuple[str, ...]:
    return (
        t.notation,
        f"{t.dtype}[{','.join(map(str, t.shape))}]" if t.shape else t.dtype,
        byte_words(t.bytes),
        t.source,
    )


def _time(r: CompiledReport) -> list[str]:
    t = r.time
    if t is None:
        return []
    exposed = f"{time_words(t.exposed)} ({t.exposed_share:.1%}) waits for collectives"
    rows = [
        ("compute", time_words(t.compute)),
        *fused_row(t),
        ("collectives, one after the other", time_words(t.communication)),
        ("step", f"{time_words(t.step)}, of which {exposed}"),
        *mfu_row(t),
    ]
    how = "its own cycles and the links' stated bandwidth, not measured on hardware"
    return [f"time of one step, by replaying the compiler's schedule ({how})", *columns(rows)]


def _options(r: CompiledReport) -> list[str]:
    if not r.options:
        return ["compiler options: its own defaults"]
    lines = [
        f"  {key}={value}" + ("  (given)" if key in r.given else "")
        for key, value in sorted(r.options.items())
    ]
    return ["compiler options, which training uses too", *lines]
