"""Every collective of a compiled program led back to the op that was recorded for it; what no record explains is a surprise.

Compilers may do some things to a collective that was asked for, and each is told in words (`meshdsl.compiled.collectives` says which were
seen). They are tried in turn, the plainest first, and each uses up what was recorded, so that nothing is explained twice. What is left over of
the compiled program at the end has no reason that we know: somebody should look at it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import jax.numpy as jnp

from meshdsl.compiled.replay import Ran
from meshdsl.record.collective import Collective
from meshdsl.record.program import Program
from meshdsl.record.recorder import source_of, tag_in

_GATHERS = ("all_gather", "psum_scatter")
_PADDED = 2  # padding to whole tiles makes nothing larger than this
_TILE = 4096  # bytes, to which a scalar may be padded
_SEAM = 0.25  # a permute that repairs a seam moves less than this part of the collective that it belongs to


@dataclass(frozen=True)
class Compiled:
    """Equal collectives of the compiled program that one op explains for one reason.

    Attributes:
      operation, axes, count, bytes, dtype: as in `Collective`; they are what runs.
      phase: `forward`, `recompute` or `backward`; that of the record where the compiler lost it.
      tag, op, source: of the recorded op, such as `md.loss.12`, `einsum[batch_data, d_ff]` and `mlp.py:31`; empty for a surprise.
      how: what the compiler did to it, in words; empty where it runs as recorded.
      surprise: no record explains it.
      asynchronous: so many of `count` run while the device computes; None where nothing is known of that.
      seconds: of all executions, alone on the links. exposed: of them, in which computing waits. None without times.
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


@dataclass(frozen=True)
class Absent:
    """A recorded collective that the compiled program does without, or runs less often."""

    operation: str
    axes: tuple[str, ...]
    count: int
    bytes: int
    phase: str
    op: str
    source: str
    how: str


@dataclass
class _Item:
    """A collective with as many of its executions as are not explained yet."""

    collective: Collective
    left: int
    ran: Ran | None = None
    together: bool = (
        False  # it may be one of several that the compiler combined into one instruction
    )

    @property
    def tag(self) -> str | None:
        return tag_in(self.collective.scope)


def match(
    program: Program, compiled: Iterable[Collective | Ran], between: Collection[str] = ()
) -> tuple[tuple[Compiled, ...], tuple[Absent, ...]]:
    """The collectives of the compiled program, surprises first, then what the compiler changed, then what runs as recorded; and what is absent.

    Args:
      compiled: what `replay` or, where there are no times, `from_hlo` found in the text of the program.
      between: axes of the mesh that go from slice to slice. The program of a TPU moves nothing along them: it hands it to the host, with its names lost.
    """
    recorded = [_Item(c, c.count) for c in program.collectives]
    found = [item for one in compiled for item in _items(one)]
    rows: dict[Compiled, Compiled] = {}
    _apply(_SAME_BYTES, rows, program, found, recorded)
    _apply(_SAME_WHOLE, rows, program, found, recorded)
    for item in (item for item in found if item.left):
        if records := _joined(item, recorded):
            _add(rows, program, item, item.left, records[0], f"{len(records)} of them in one array")
            for record in records:
                record.left -= item.left
            item.left = 0
    _apply(_OTHER_BYTES, rows, program, found, recorded)
    if between:
        _apply(
            (partial(_inside_slice, between),),
            rows,
            program,
            found,
            [_Item(r.collective, r.left) for r in recorded],
        )
    ringed = set()
    for item in (
        item for item in found if item.left
    ):  # a permute moves a piece, so it is not counted against what was recorded
        if (record := _ring(item, recorded)) is not None:
            ringed.add(record.collective.axes)
            _add(
                rows,
                program,
                item,
                item.left,
                record,
                f"a step of a ring beside its product, instead of {record.collective.operation}",
            )
        elif (record := _seam(item, recorded)) is not None:
            _add(
                rows,
                program,
                item,
                item.left,
                record,
                f"repairs the seams of a padded {record.collective.operation}",
            )
        else:
            _add(rows, program, item, item.left, None, "")
    ordered = sorted(rows.values(), key=lambda row: (not row.surprise, not row.how))
    return tuple(ordered), tuple(
        _absences(program, [r for r in recorded if not _ring_stands_for(r, ringed)], found, between)
    )


def _apply(
    rules: Sequence[_Rule],
    rows: dict[Compiled, Compiled],
    program: Program,
    found: list[_Item],
    recorded: list[_Item],
) -> None:
    """Explain what one of `rules` can."""
    for near in _NEARNESS:
        for rule in rules:
            for item in found:
                for record in recorded:
                    if not item.left:
                        break
                    if (
                        record.left
                        and near(item, record)
                        and (how := rule(item.collective, record.collective)) is not None
                    ):
                        times = min(item.left, record.left)
                        _add(rows, program, item, times, record, how or _apart(item, record))
                        item.left -= times
                        record.left -= times


def _items(one: Collective | Ran) -> list[_Item]:
    if isinstance(one, Collective):
        return [_Item(one, one.count, together=True)]  # it may be
    # An instruction with several operands waits for all of them at once: its times are shared out by bytes.
    total = sum(part.bytes for part in one.parts) or 1
    shares = [
        replace(
            one, seconds=one.seconds * part.bytes / total, exposed=one.exposed * part.bytes / total
        )
        for part in one.parts
    ]
    return [
        _Item(part, part.count, share, len(one.parts) > 1)
        for part, share in zip(one.parts, shares, strict=True)
    ]


# -- what compilers do -------------------------------------------------------------------------------------------
# Each rule says how the compiled `a` comes from the recorded `b`, in words that are empty where nothing was changed; None where it doesn't.


def _as_recorded(a: Collective, b: Collective) -> str | None:
    return "" if _same(a, b) else None


def _wider(a: Collective, b: Collective) -> str | None:
    same = (
        a.operation == b.operation
        and a.axes == b.axes
        and a.dtype != b.dtype
        and _width(b) * a.bytes == _width(a) * b.bytes
    )
    return f"in {a.dtype}, not {b.dtype}: {_factor(a, b)}" if same else None


def _padded(a: Collective, b: Collective) -> str | None:
    same = a.operation == b.operation and a.axes == b.axes and a.dtype == b.dtype
    return (
        f"{a.bytes:,} bytes instead of {b.bytes:,}: padded"
        if same and b.bytes < a.bytes <= _PADDED * b.bytes
        else None
    )


def _reduced_whole(a: Collective, b: Collective, *, padded: int = 1) -> str | None:
    whole = a.operation == "psum" and b.operation in (*_GATHERS, "all_to_all") and a.axes == b.axes
    same = whole and a.dtype == b.dtype and b.bytes <= a.bytes <= padded * b.bytes
    return f"an all-reduce of the whole instead of {b.operation}" if same else None


def _inside_slice(between: Collection[str], a: Collective, b: Collective) -> str | None:
    inside = tuple(axis for axis in b.axes if axis not in between)
    part = (
        a.operation == b.operation
        and a.axes == inside != b.axes
        and a.bytes <= max(_PADDED * b.bytes, _TILE)
    )
    return f"the part inside a slice of {b.operation}({', '.join(b.axes)})" if part else None


_Rule = Callable[[Collective, Collective], str | None]
_SAME_BYTES: tuple[_Rule, ...] = (_as_recorded, _wider)
_SAME_WHOLE: tuple[_Rule, ...] = (_reduced_whole,)
_OTHER_BYTES: tuple[_Rule, ...] = (_padded, partial(_reduced_whole, padded=_PADDED))

# A collective that the compiler made or moved has no scope, and of several that it combined all
# have the first one's: that of another op, but of the same pass.
_NEARNESS: tuple[Callable[[_Item, _Item], bool], ...] = (
    lambda item, record: _at_home(item, record) and _same_pass(item, record),
    lambda item, record: _at_home(item, record),
    lambda item, record: item.together and item.tag is not None and _same_pass(item, record),
    lambda item, record: item.together or item.tag is None,
)


def _at_home(item: _Item, record: _Item) -> bool:
    return item.tag is not None and item.tag == record.tag


def _same_pass(item: _Item, record: _Item) -> bool:
    return item.collective.phase == record.collective.phase


def _apart(item: _Item, record: _Item) -> str:
    if _at_home(item, record):
        return ""
    return "without its scope" if item.tag is None else "combined with others into one"


def _same(a: Collective, b: Collective) -> bool:
    return (a.operation, a.axes, a.bytes, a.dtype) == (b.operation, b.axes, b.bytes, b.dtype)


def _width(c: Collective) -> int:
    """Bytes of an element."""
    return jnp.dtype(c.dtype).itemsize


def _factor(a: Collective, b: Collective) -> str:
    ratio = a.bytes / b.bytes
    return f"{ratio:g} times the bytes" if ratio > 1 else f"1/{1 / ratio:g} of the bytes"


def _joined(item: _Item, recorded: list[_Item]) -> list[_Item]:
    """The sums over the same axes that are one, their operands laid end to end; empty where it isn't that."""
    c, taken, size = item.collective, [], 0
    for record in recorded:
        r = record.collective
        if (
            record.left >= item.left
            and r.operation == c.operation == "psum"
            and r.axes == c.axes
            and r.dtype == c.dtype
            and size + r.bytes <= c.bytes
        ):
            taken.append(record)
            size += r.bytes
    return taken if size == c.bytes and len(taken) > 1 else []


def _ring(item: _Item, recorded: list[_Item]) -> _Item | None:
    """The gather or scatter that a permute is a step of: one over the same axes that the program lacks, of its own op if it can be."""
    if item.collective.operation != "ppermute":
        return None
    lacking = [r for r in recorded if _ring_stands_for(r, {item.collective.axes})]
    own = [r for r in lacking if _at_home(item, r)]
    return (own or lacking or [None])[0]


def _ring_stands_for(record: _Item, axes: Collection[tuple[str, ...]]) -> bool:
    """Whether a ring over any of `axes` may stand for it."""
    return (
        bool(record.left)
        and record.collective.operation in _GATHERS
        and record.collective.axes in axes
    )


def _seam(item: _Item, recorded: list[_Item]) -> _Item | None:
    """The collective whose dim is no multiple of the tile, of which a small permute without a scope puts the parts in place."""
    c = item.collective
    if c.operation != "ppermute" or item.tag is not None:
        return None
    larger = (
        r for r in recorded if r.collective.axes == c.axes and c.bytes <= _SEAM * r.collective.bytes
    )
    return next((r for r in larger if r.collective.operation in _GATHERS), None)


# -- rows --------------------------------------------------------------------------------------------------------


def _add(
    rows: dict[Compiled, Compiled],
    program: Program,
    item: _Item,
    times: int,
    record: _Item | None,
    how: str,
) -> None:
    """Count `times` executions of `item` to the row that they belong to."""
    c, ran = item.collective, item.ran
    op = program.op_of(record.collective if record is not None else c)
    key = Compiled(
        operation=c.operation,
        axes=c.axes,
        count=0,
        bytes=c.bytes,
        dtype=c.dtype,
        phase=record.collective.phase if record is not None and item.tag is None else c.phase,
        tag=op.tag if op else "",
        op=str(op) if op else "",
        source=source_of(op) if op else "",
        how=how,
        surprise=record is None,
    )
    row = rows.get(key, key)
    if ran is not None:
        share = times / c.count
        row = replace(
            row,
            asynchronous=(row.asynchronous or 0) + times * ran.asynchronous,
            seconds=(row.seconds or 0.0) + ran.seconds * share,
            exposed=(row.exposed or 0.0) + ran.exposed * share,
        )
    rows[key] = replace(row, count=row.count + times)


def _absences(
    program: Program, recorded: list[_Item], found: list[_Item], between: Collection[str]
) -> Iterable[Absent]:
    for record in recorded:
        if not record.left:
            continue
        c, op = record.collective, program.op_of(record.collective)
        if set(c.axes) & set(between):
            how = "between slices: the hosts exchange it"
        elif any(_same(item.collective, c) for item in found):
            how = "the same as one that runs: merged with it, or moved out of a loop"
        else:
            how = "left out by the compiler"
        yield Absent(
            c.operation,
            c.axes,
            record.left,
            c.bytes,
            c.phase,
            str(op) if op else "",
            source_of(op) if op else "",
            how,
        )
