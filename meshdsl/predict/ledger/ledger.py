"""Measured time of a program beside its estimate.

The collectives of the compiled program are led back to the record by `compiler.match`, which the
report of a compiler uses too. All other instructions are led back by their names (`owners`).

Each instruction took the median over the calls that were traced, on each device. An entry is the
sum over the instructions that belong to it; its figure is the mean over the devices.
"""

from __future__ import annotations

import math
import statistics
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from meshdsl.errors import MeshDSLError
from meshdsl.figures import time_words
from meshdsl.machine.timeline import Ran
from meshdsl.predict.compiler.collectives import collectives_of
from meshdsl.predict.compiler.hlo_text import Module
from meshdsl.predict.compiler.match import AbsentCollective, CompiledCollective, match
from meshdsl.predict.compiler.parts import collective_inside
from meshdsl.predict.explain import shown_phase
from meshdsl.predict.explanation import Explanation, MoveView
from meshdsl.predict.ledger.owners import Owner, Owners
from meshdsl.predict.ledger.report import LedgerEntry, LedgerReport, Unforeseen
from meshdsl.predict.ledger.self_time import AROUND, Measured, Took, measured
from meshdsl.predict.ledger.trace import read_calls
from meshdsl.program.collective import Collective
from meshdsl.program.program import Program
from meshdsl.program.recorder import source_of

_FAR_OFF = 2.0  # measured time is far from the estimate from this ratio on
_MATTERS = 0.01  # of the time of a device: the least difference that is told


def from_trace(
    what: str, folder: Path, text: str | None, program: Program, explanation: Explanation
) -> LedgerReport:
    """The ledger of the calls of a program that a trace has.

    Args:
      what: who asks, for errors.
      folder: that the trace was written into.
      text: of the compiled program, `compiled.as_text()`; None where it has none.
      program: the record.
      explanation: the estimate.

    Raises:
      MeshDSLError: there is no trace, or it has no whole call of the program; or the program has
        no text.
    """
    module = Module(text or "")
    if not module.entry:
        raise MeshDSLError(f"{what}: the compiled program has no text, so its ops are not known")
    calls = [measured(call, module) for call in read_calls(what, folder, module)]
    return make_ledger(program, module, calls, explanation)


def make_ledger(
    program: Program, module: Module, calls: Sequence[Measured], explanation: Explanation
) -> LedgerReport:
    """The ledger of a program.

    Args:
      program: the record.
      module: the compiled program.
      calls: what was measured, one for each call.
      explanation: the estimate of the same program.
    """
    devices = sorted(calls[0].took, key=lambda name: (len(name), name))
    times = _Times(calls, devices)
    moving, absent = _collectives(program, module, times, explanation)
    moved = {n for n in times.names if _parts(program, module, n, times)}
    rest = _everything_else(program, module, times, explanation, moved)
    entries = tuple(sorted((*moving, *rest), key=lambda entry: -entry.seconds))
    busy = [[_busy(call, device) for call in calls] for device in devices]
    idle = [[c.seconds - b for c, b in zip(calls, each, strict=True)] for each in busy]
    report = LedgerReport(
        title=explanation.title,
        layout=explanation.layout,
        target=explanation.target,
        axes=dict(program.axis_sizes),
        devices=tuple(devices),
        calls=len(calls),
        seconds=statistics.median(call.seconds for call in calls),
        busy=tuple(map(statistics.median, busy)),
        idle=tuple(map(statistics.median, idle)),
        entries=entries,
        estimate=explanation.time.step if explanation.time else None,
    )
    return replace(report, unforeseen=tuple(_unforeseen(report, absent)))


def _busy(call: Measured, device: str) -> float:
    """The seconds in which a device runs any instruction in one call."""
    return math.fsum(took.own for took in call.took[device].values()) * 1e-9


class _Times:
    """For each instruction and device the medians over the calls, in seconds."""

    def __init__(self, calls: Sequence[Measured], devices: Sequence[str]):
        self.names = list(dict.fromkeys(n for c in calls for d in devices for n in c.took[d]))
        nothing = Took()
        self._took = {
            name: [[call.took[d].get(name, nothing) for call in calls] for d in devices]
            for name in self.names
        }

    def own(self, name: str) -> list[float]:
        return self._median(name, lambda took: took.own * 1e-9)

    def running(self, name: str) -> list[float]:
        return self._median(name, lambda took: took.running * 1e-9)

    def waiting(self, name: str) -> list[float]:
        return self._median(name, lambda took: took.waiting * 1e-9)

    def count(self, name: str) -> int:
        return int(max(self._median(name, lambda took: took.count)))

    def _median(self, name: str, of: Callable[[Took], float]) -> list[float]:
        return [statistics.median(map(of, each)) for each in self._took[name]]


def _collectives(
    program: Program, module: Module, times: _Times, explanation: Explanation
) -> tuple[list[LedgerEntry], tuple[AbsentCollective, ...]]:
    """The entries of the collectives, led back to the record, and what of the record is absent."""
    parts = {n: found for n in times.names if (found := _parts(program, module, n, times))}
    ran = (
        Ran(max(found, key=lambda part: part.bytes), found, False, 0.0, 0.0, name)
        for name, found in parts.items()
    )
    rows, absent = match(program, ran)
    estimates = _Estimates(program, explanation)
    together: dict[LedgerEntry, list[CompiledCollective]] = defaultdict(list)
    for row in rows:
        move = estimates.move(row)
        key = LedgerEntry(
            kind="collective",
            what=f"{row.operation}({', '.join(row.axes)})",
            tag=row.tag,
            op=row.op,
            source=row.source,
            phase=estimates.phase(row),
            rule=move.why if move else "",
            how=row.how,
            surprise=row.surprise,
        )
        together[key].append(row)
    return [_moving(key, each, times, estimates) for key, each in together.items()], absent


def _parts(program: Program, module: Module, name: str, times: _Times) -> tuple[Collective, ...]:
    """The collectives that an instruction runs, with how often; none where it runs none."""
    i = module.instructions[name]
    if i.opcode in AROUND:
        return ()
    nothing = (i.computation, None)
    holder, found = module.read(i, partial(collective_inside, module, i.computation, i), nothing)
    if found is None:
        return ()
    parts = collectives_of(module, holder, found, program.axis_sizes, times.count(name))
    return tuple(part if part.scope else replace(part, scope=i.scope) for part in parts)


def _moving(
    key: LedgerEntry, rows: list[CompiledCollective], times: _Times, estimates: _Estimates
) -> LedgerEntry:
    """The entry of collectives that are alike."""
    shares = [share for row in rows for share in row.instructions]
    estimate = [
        move.seconds * row.count
        for row in rows
        if (move := estimates.move(row)) is not None and move.seconds is not None
    ]
    return replace(
        _timed(key, shares, times),
        count=sum(row.count for row in rows),
        estimate=math.fsum(estimate) if estimate else None,
    )


def _everything_else(
    program: Program, module: Module, times: _Times, explanation: Explanation, moved: set[str]
) -> list[LedgerEntry]:
    """The entries of what is no collective.

    Args:
      moved: the names of the instructions that are.
    """
    updates = any(argument.role == "optimizer" for argument in program.arguments)
    owners = Owners(module, updates)
    estimates = _Estimates(program, explanation)
    together: dict[LedgerEntry, list[str]] = defaultdict(list)
    for name in times.names:
        if name not in moved:
            owner = owners.of(name)
            op = program.op_tagged(owner.tag)
            key = LedgerEntry(
                kind=owner.kind if op or owner.kind != "op" else "unknown",
                what=_what(owner),
                tag=op.tag if op else "",
                op=str(op) if op else "",
                source=source_of(op) if op else "",
                phase=owner.phase,
            )
            together[key].append(name)
    entries = []
    for key, names in together.items():
        entry = _timed(key, [(name, 1.0) for name in names], times)
        count = sum(times.count(name) for name in names)
        entries.append(replace(entry, count=count, estimate=estimates.computing(key)))
    return entries


def _what(owner: Owner) -> str:
    """What an entry is that is no collective, in words."""
    said = {"op": "compute", "loop": "loop around it", "optimizer": "optimizer"}
    added = f"{owner.words} by the compiler" if owner.kind == "compiler" else owner.words
    return said.get(owner.kind, added)


def _timed(key: LedgerEntry, shares: Sequence[tuple[str, float]], times: _Times) -> LedgerEntry:
    """`key` with the times of instructions, of each a share."""

    def by_device(of: Callable[[str], list[float]]) -> list[float]:
        each = [[share * seconds for seconds in of(name)] for name, share in shares]
        return [math.fsum(device) for device in zip(*each, strict=True)]

    own = by_device(times.own)
    waiting = min(statistics.fmean(by_device(times.waiting)), statistics.fmean(own))
    return replace(
        key,
        seconds=statistics.fmean(own),
        slowest=max(own),
        waiting=waiting,
        running=statistics.fmean(by_device(times.running)),
    )


class _Estimates:
    """What the estimate says of the entries."""

    def __init__(self, program: Program, explanation: Explanation):
        self._program = program
        self._ops = {op.tag: op for op in explanation.ops if op.tag}
        outside = (op for op in explanation.ops if op.name == "optimizer" and not op.tag)
        self._optimizer = next(outside, None)

    def phase(self, row: CompiledCollective) -> str:
        """The phase of a collective, as `explain` tells it."""
        return shown_phase(row.phase, self._program.op_tagged(row.tag))

    def move(self, row: CompiledCollective) -> MoveView | None:
        """The estimated collective that one of the compiled program is, or is made of."""
        op = self._ops.get(row.tag)
        if op is None or row.surprise:
            return None
        phase = self.phase(row)
        nearness = {
            move: (
                move.operation == row.operation,
                set(move.axes) == set(row.axes),
                move.phase == phase,
                -abs(move.bytes - row.bytes),
            )
            for move in op.moves
            if set(move.axes) & set(row.axes)
        }
        return max(nearness, key=nearness.__getitem__, default=None)

    def computing(self, entry: LedgerEntry) -> float | None:
        """The estimated seconds of what is no collective."""
        if entry.kind == "optimizer":
            return self._optimizer.seconds.get("optimizer") if self._optimizer else None
        op = self._ops.get(entry.tag) if entry.kind == "op" else None
        return op.seconds.get(entry.phase) if op else None


# -- what was not foreseen -----------------------------------------------------------------------


def _unforeseen(report: LedgerReport, absent: Iterable[AbsentCollective]) -> Iterator[Unforeseen]:
    """What the record did not foresee, then what it did and does not run so."""
    for kind, wanted in _KINDS.items():
        for entry in report.entries:
            if wanted(entry):
                yield Unforeseen(kind, _line(entry), entry.seconds)
    missing: Counter[str] = Counter()
    for row in absent:
        missing[f"{row.operation}({', '.join(row.axes)}), {row.phase}: {row.how}"] += row.count
    for text, count in missing.most_common():
        yield Unforeseen("absent", f"{count:,} x {text}", 0.0)
    least = _MATTERS * statistics.fmean(report.busy)
    off = []
    for entry in report.entries:
        if entry.estimate is None or entry.ratio is None:
            continue
        difference = abs(entry.ratio * entry.estimate - entry.estimate)
        if difference > least and not 1 / _FAR_OFF < entry.ratio < _FAR_OFF:
            took = f"{time_words(entry.ratio * entry.estimate)}, "
            took += f"estimated {time_words(entry.estimate)}: {entry.ratio:.2g} times as long"
            off.append(Unforeseen("estimate", f"{_line(entry)}: {took}", difference))
    yield from sorted(off, key=lambda one: -one.seconds)


_KINDS: dict[str, Callable[[LedgerEntry], bool]] = {
    "surprise": lambda entry: entry.surprise,
    "unknown": lambda entry: entry.kind == "unknown",
    "compiler": lambda entry: entry.kind == "compiler",
    "changed": lambda entry: bool(entry.how) and not entry.surprise,
}


def _line(entry: LedgerEntry) -> str:
    """An entry in one line."""
    of = f"{entry.op} {f'({entry.source})' if entry.source else ''}".strip() or "no recorded op"
    near = "of" if entry.kind in ("op", "collective") or not entry.op else "for"
    phase = f", {entry.phase}" if entry.phase else ""
    how = f": {entry.how}" if entry.how else ""
    return f"{entry.count:,} x {entry.what}{phase}, {near} {of}{how}"
