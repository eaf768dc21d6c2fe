"""A ledger as text: what the record did not foresee, then totals, ops, rules and lines."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

from meshdsl.figures import columns, rule_words, time_words
from meshdsl.predict.ledger.report import LedgerEntry, LedgerReport, Total

_SHOWN = 30  # rows of a table
_FEW = 8  # lines of one kind of what was not foreseen
_AROUND = ("loop", "compiler")  # kinds of entries that serve an op
_HEADINGS = {
    "surprise": "collectives that no op of the record asked for",
    "unknown": "code that is no op",
    "compiler": "added by the compiler",
    "changed": "collectives that the compiler changed",
    "absent": "recorded, and not run",
    "estimate": "far from the estimate",
}


def describe(report: LedgerReport) -> str:
    """The whole ledger."""
    sections = (_head, _unforeseen, _entries, _rules, _lines)
    parts = [section(report) for section in sections]
    return "\n\n".join("\n".join(part) for part in parts if part)


def share_words(share: float) -> str:
    """A share that is 100% only if it is whole: `99.99%`."""
    digits = 1 if share <= 0.9995 or share == 1 else 3
    return f"{math.floor(share * 10 ** (digits + 2)) / 10**digits:.{digits}f}%"


def _head(r: LedgerReport) -> list[str]:
    mesh = " ".join(f"{axis}={size}" for axis, size in r.axes.items()) or "one device"
    whole = math.prod(r.axes.values())
    here = f"{len(r.devices)} of " if len(r.devices) < whole else ""
    on = f"{here}{whole} device{'s' * (whole > 1)}{' (those of this process)' if here else ''}"
    busy, idle = statistics.fmean(r.busy), statistics.fmean(r.idle)
    around = math.fsum(e.seconds for e in r.entries if e.kind in _AROUND and e.attributed)
    lines = [
        r.title,
        f"{r.layout}, mesh {mesh}, measured on {on}, {r.calls} call{'s' * (r.calls > 1)}",
        f"a call takes {time_words(r.seconds)}; a device is busy for {time_words(busy)} "
        f"({time_words(min(r.busy))} to {time_words(max(r.busy))}), idle for {time_words(idle)}, "
        f"and waits {time_words(r.waiting)} for others in collectives",
        f"{share_words(r.attributed)} of device time is attributed, "
        f"{share_words(r.attributed_computing)} of what is no collective",
    ]
    if busy and around:
        lines[-1] += (
            f"; {share_words(around / busy)} are slices, copies and sums around ops, which count "
            "with the op that they serve"
        )
    if r.estimate is not None:
        lines.append(
            f"estimated {time_words(r.estimate)} by the figures of {r.target}: "
            f"measured {r.seconds / r.estimate:.2g} times as long"
        )
    return lines


def _unforeseen(r: LedgerReport) -> list[str]:
    if not r.unforeseen:
        return ["the record foresaw everything that ran"]
    lines = ["not foreseen"]
    for kind, heading in _HEADINGS.items():
        found = [one for one in r.unforeseen if one.kind == kind]
        if not found:
            continue
        took = math.fsum(one.seconds for one in found)
        total = f": {time_words(took)}" if kind in ("surprise", "unknown", "compiler") else ""
        lines.append(f"  {heading}{total}")
        shown = found[:_FEW]
        rows = [(time_words(one.seconds) if one.seconds else "", one.text) for one in shown]
        lines += columns(rows, right=(0,), indent=4)
        if rest := found[len(shown) :]:
            lines.append(_more(len(rest), math.fsum(one.seconds for one in rest), indent=4))
    return lines


def _entries(r: LedgerReport) -> list[str]:
    rows = [(*_figures_heading(r), "what", "op", "phase", "line", "rule")]
    for entry in r.entries[:_SHOWN]:
        op = entry.op or ("" if entry.kind == "optimizer" else "no op")
        rule = rule_words(entry.rule, r.layout)
        said = entry.what, op, entry.phase, entry.source, rule
        rows.append((*_figures(r, entry), *said))
    return ["by op", *columns(rows, right=range(len(rows[0]) - 5)), *_rest(r.entries)]


def _figures_heading(r: LedgerReport) -> tuple[str, ...]:
    measured = ("ms", "slowest", "waits")
    return measured if r.estimate is None else (*measured, "estimated", "ratio")


def _figures(r: LedgerReport, entry: LedgerEntry) -> tuple[str, ...]:
    waits = _milliseconds(entry.waiting) if entry.kind == "collective" else ""
    cells = (_milliseconds(entry.seconds), _milliseconds(entry.slowest), waits)
    if r.estimate is None:
        return cells
    ratio = "" if entry.ratio is None else f"{entry.ratio:.2f}"
    estimate = "" if entry.estimate is None else _milliseconds(entry.estimate)
    return (*cells, estimate, ratio)


def _rules(r: LedgerReport) -> list[str]:
    totals = r.by_rule()
    return ["by rule", *_total_rows(r, totals, "rule")] if totals else []


def _lines(r: LedgerReport) -> list[str]:
    return ["by line of the model", *_total_rows(r, r.by_line(), "line")]


def _total_rows(r: LedgerReport, totals: Sequence[Total], name: str) -> list[str]:
    heading = ["ms", "waits", *(["estimated", "ratio"] if r.estimate is not None else []), name]
    rows = [heading]
    for one in totals[:_SHOWN]:
        cells = [_milliseconds(one.seconds), _milliseconds(one.waiting)]
        if r.estimate is not None:
            cells.append("" if one.estimate is None else _milliseconds(one.estimate))
            cells.append(f"{one.estimated / one.estimate:.2f}" if one.estimate else "")
        rows.append([*cells, rule_words(one.name, r.layout)])
    return [*columns(rows, right=range(len(heading) - 1)), *_rest(totals)]


def _rest(rows: Sequence[LedgerEntry] | Sequence[Total]) -> list[str]:
    """A line for the rows that a table leaves out."""
    left = rows[_SHOWN:]
    return [_more(len(left), math.fsum(row.seconds for row in left), indent=2)] if left else []


def _more(count: int, seconds: float, indent: int) -> str:
    return f"{' ' * indent}and {count:,} more, {time_words(seconds)} together"


def _milliseconds(seconds: float) -> str:
    return f"{seconds * 1e3:.3f}"
