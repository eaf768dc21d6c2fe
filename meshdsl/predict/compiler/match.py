"""The collectives of a compiled program led back to the ops that were recorded for them.

Compilers may do some things to a collective that was asked for (`rewrites`). These are tried in
turn, the plainest first, and each uses up what was recorded, so that nothing is explained twice.
What is left over of the compiled program at the end is a surprise: no record explains it, and
somebody should look at it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import product

from meshdsl.machine.timeline import Ran
from meshdsl.predict.compiler.rewrites import (
    FULL_SIZE,
    GATHERS,
    MORE_BYTES,
    SAME_BYTES,
    Rule,
    inside_slice,
    same,
)
from meshdsl.program.collective import Collective
from meshdsl.program.program import Program
from meshdsl.program.recorder import Op, source_of, tag_in

_SEAM = 0.25  # a permute that repairs a seam moves less than this part of what it belongs to


@dataclass(frozen=True)
class CompiledCollective:
    """Equal collectives of the compiled program that one op explains for one reason.

    Attributes:
      operation, axes, count, bytes, dtype: as in `Collective`, of what runs.
      phase: `forward`, `recompute` or `backward`; that of the record where the compiler lost it.
      tag, op, source: of the recorded op, such as `md.loss.12`, `einsum[batch_data, d_ff]` and
        `mlp.py:31`; empty for a surprise.
      how: what the compiler did to it, in words; empty where it runs as recorded.
      surprise: whether no record explains it.
      asynchronous: so many of `count` run while the device computes; None where that is not known.
      seconds: of all executions, alone on the links; None where the machine has no figures.
      exposed: the part of `seconds` in which computing waits.
      instructions: of the compiled program, each with the share of it that this is: an instruction
        may run what several ops asked for. Empty where only its text was read.
    """

    operation: str
    axes: tuple[str, ...]
    count: int
    bytes: int
    dtype: str
    phase: str
    tag: str = ""
    op: str = ""
    source: str = ""
    how: str = ""
    surprise: bool = False
    asynchronous: int | None = None
    seconds: float | None = None
    exposed: float | None = None
    instructions: tuple[tuple[str, float], ...] = ()


@dataclass(frozen=True)
class AbsentCollective:
    """A recorded collective that the compiled program does without, or runs less often.

    Attributes:
      count: how many executions are missing.
      how: why, in words.
    """

    operation: str
    axes: tuple[str, ...]
    count: int
    bytes: int
    phase: str
    op: str
    source: str
    how: str


@dataclass
class _Unmatched:
    """A collective, compiled or recorded, and how many of its executions are not matched yet.

    Attributes:
      left: that number.
      ran: the instruction with its times, where they are known.
      share: of that instruction, which may have several operands.
      combined: whether it may be one of several that the compiler combined into one instruction.
    """

    collective: Collective
    left: int
    ran: Ran | None = None
    share: float = 1.0
    combined: bool = False

    @property
    def tag(self) -> str | None:
        return tag_in(self.collective.scope)


def match(
    program: Program, compiled: Iterable[Collective | Ran], between: Collection[str] = ()
) -> tuple[tuple[CompiledCollective, ...], tuple[AbsentCollective, ...]]:
    """The collectives of the compiled program with what explains each, and those that are absent.

    Of the first, surprises come first, then what the compiler changed, then what runs as recorded.

    Args:
      program: the record.
      compiled: what `replay` or, where there are no times, `from_hlo` found in the program's text.
      between: the axes of the mesh that go from slice to slice. The program of a TPU moves nothing
        along them: it hands that to the host, with its names lost.
    """
    recorded = [_Unmatched(c, c.count) for c in program.collectives]
    found = [one for c in compiled for one in _unmatched(c)]
    table = _Table(program)
    _explain(SAME_BYTES, table, found, recorded)
    _explain(FULL_SIZE, table, found, recorded)
    _explain_joined(table, found, recorded)
    _explain(MORE_BYTES, table, found, recorded)
    if between:  # the rest of these goes over the hosts, so the record is not used up
        copies = [_Unmatched(r.collective, r.left) for r in recorded]
        _explain((partial(inside_slice, between),), table, found, copies)
    rings = _explain_permutes(table, found, recorded)
    for one in found:
        if one.left:
            table.add(one, one.left, None, "")
    missing = [r for r in recorded if not _may_be_ring(r, rings)]
    rows = sorted(table.rows.values(), key=lambda row: (not row.surprise, not row.how))
    return tuple(rows), tuple(_absent(program, missing, found, between))


def _unmatched(one: Collective | Ran) -> list[_Unmatched]:
    if isinstance(one, Collective):
        return [_Unmatched(one, one.count, combined=True)]  # its text does not tell
    # An instruction with several operands waits for all of them at once: its times are shared out
    # by bytes.
    total = sum(part.bytes for part in one.parts) or 1
    several = len(one.parts) > 1
    return [_Unmatched(p, p.count, one, p.bytes / total, several) for p in one.parts]


# -- from the compiled program to the record ---------------------------------------------------


def _explain(
    rules: Sequence[Rule], table: _Table, found: list[_Unmatched], recorded: list[_Unmatched]
) -> None:
    """Match what one of `rules` explains, with records of the nearest kind that there are."""
    for near, rule, one in product(_NEARNESS, rules, found):
        for record in recorded if one.left else ():
            times = min(one.left, record.left)
            if not times or not near(one, record) or not one.collective.whole:
                continue
            if (how := rule(one.collective, record.collective)) is not None:
                table.add(one, times, record, how or _scope_words(one, record))
                one.left -= times
                record.left -= times


def _same_op(one: _Unmatched, record: _Unmatched) -> bool:
    return one.tag is not None and one.tag == record.tag


def _same_pass(one: _Unmatched, record: _Unmatched) -> bool:
    return one.collective.phase == record.collective.phase


# How near a record is. A collective that the compiler made or moved has no scope, and of several
# that it combined all have the first one's: that of another op, but of the same pass.
_NEARNESS: tuple[Callable[[_Unmatched, _Unmatched], bool], ...] = (
    lambda one, record: _same_op(one, record) and _same_pass(one, record),
    lambda one, record: _same_op(one, record),
    lambda one, record: one.combined and one.tag is not None and _same_pass(one, record),
    lambda one, record: one.combined or one.tag is None,
)


def _scope_words(one: _Unmatched, record: _Unmatched) -> str:
    """What became of the scope of a collective that runs as recorded; empty where it is there."""
    if _same_op(one, record):
        return ""
    return "without its scope" if one.tag is None else "combined with others into one"


def _explain_joined(table: _Table, found: list[_Unmatched], recorded: list[_Unmatched]) -> None:
    """Match sums whose operand is that of several recorded sums, laid end to end."""
    for one in found:
        if one.left and one.collective.whole and (records := _joined(one, recorded)):
            table.add(one, one.left, records[0], f"{len(records)} of them in one array")
            for record in records:
                record.left -= one.left
            one.left = 0


def _joined(one: _Unmatched, recorded: list[_Unmatched]) -> list[_Unmatched]:
    """The recorded sums over the same axes that `one` may be; empty where their bytes don't fit."""
    c, taken, size = one.collective, [], 0
    for record in recorded:
        r = record.collective
        alike = r.operation == c.operation == "psum" and r.axes == c.axes and r.dtype == c.dtype
        if record.left >= one.left and alike and size + r.bytes <= c.bytes:
            taken.append(record)
            size += r.bytes
    return taken if size == c.bytes and len(taken) > 1 else []


def _explain_permutes(
    table: _Table, found: list[_Unmatched], recorded: list[_Unmatched]
) -> set[tuple[str, ...]]:
    """Match permutes that stand for a part of a gather or scatter; returns the axes of the rings.

    A permute moves a piece, so it is not counted against what was recorded.
    """
    rings = set()
    for one in found:
        if not one.left or one.collective.operation != "ppermute":
            continue
        if (record := _ring(one, recorded)) is not None:
            rings.add(record.collective.axes)
            operation = record.collective.operation
            how = f"a step of a ring beside its product, instead of {operation}"
        elif (record := _seam(one, recorded)) is not None:
            how = f"repairs the seams of a padded {record.collective.operation}"
        else:
            continue
        table.add(one, one.left, record, how)
        one.left = 0
    return rings


def _ring(one: _Unmatched, recorded: list[_Unmatched]) -> _Unmatched | None:
    """The gather or scatter that a permute is a part of, written as a ring.

    It is one over the same axes that the program lacks, of the permute's own op if there is one.
    """
    lacking = [r for r in recorded if _may_be_ring(r, {one.collective.axes})]
    same_op = [r for r in lacking if _same_op(one, r)]
    return (same_op or lacking or [None])[0]


def _may_be_ring(record: _Unmatched, rings: Collection[tuple[str, ...]]) -> bool:
    """Whether a ring over one of `rings`, which are axes, may stand for it."""
    c = record.collective
    return bool(record.left) and c.operation in GATHERS and c.axes in rings


def _seam(one: _Unmatched, recorded: list[_Unmatched]) -> _Unmatched | None:
    """The padded gather or scatter whose parts a small permute without a scope puts in place.

    The compiler makes such where the dim is no multiple of the tile.
    """
    c = one.collective
    if one.tag is not None:
        return None
    for record in recorded:
        r = record.collective
        if r.axes == c.axes and c.bytes <= _SEAM * r.bytes and r.operation in GATHERS:
            return record
    return None


# -- what is told of it ------------------------------------------------------------------------


class _Table:
    """The rows for what was explained, equal ones counted together."""

    def __init__(self, program: Program):
        self.program = program
        self.rows: dict[CompiledCollective, CompiledCollective] = {}

    def add(self, one: _Unmatched, times: int, record: _Unmatched | None, how: str) -> None:
        """Count `times` executions of `one`, which `record` explains; None makes it a surprise."""
        c, ran = one.collective, one.ran
        op = self.program.op_of(record.collective if record is not None else c)
        op_words, source = _words(op)
        key = CompiledCollective(
            operation=c.operation,
            axes=c.axes,
            count=0,
            bytes=c.bytes,
            dtype=c.dtype,
            phase=record.collective.phase if record is not None and one.tag is None else c.phase,
            tag=op.tag if op else "",
            op=op_words,
            source=source,
            how=how,
            surprise=record is None,
        )
        row = self.rows.get(key, key)
        if ran is not None:
            share = one.share * times / c.count
            row = replace(
                row,
                instructions=(*row.instructions, (ran.name, share)),
                asynchronous=(row.asynchronous or 0) + times * ran.asynchronous,
                seconds=(row.seconds or 0.0) + ran.seconds * share,
                exposed=(row.exposed or 0.0) + ran.exposed * share,
            )
        self.rows[key] = replace(row, count=row.count + times)


def _absent(
    program: Program,
    recorded: list[_Unmatched],
    found: list[_Unmatched],
    between: Collection[str],
) -> Iterable[AbsentCollective]:
    """The recorded collectives of which executions are left, each with a reason."""
    for record in recorded:
        if not record.left:
            continue
        c = record.collective
        op, source = _words(program.op_of(c))
        if set(c.axes) & set(between):
            how = "between slices: the hosts exchange it"
        elif any(same(one.collective, c) for one in found):
            how = "the same as one that runs: merged with it, or moved out of a loop"
        else:
            how = "left out by the compiler"
        yield AbsentCollective(
            operation=c.operation,
            axes=c.axes,
            count=record.left,
            bytes=c.bytes,
            phase=c.phase,
            op=op,
            source=source,
            how=how,
        )


def _words(op: Op | None) -> tuple[str, str]:
    """The op of a row and its lines, in words; empty without one."""
    return (str(op), source_of(op)) if op else ("", "")
