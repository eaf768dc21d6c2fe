"""What a ledger says, as plain data: the text, the page and JSON all show it.

Everything is of one call of the program (one step of training) and in seconds.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class LedgerEntry:
    """What an op computes in one phase, or one of its collectives there.

    Attributes:
      kind: `op`, `collective`, or what is no op: `loop`, `optimizer`, `compiler`, `unknown`; see
        `owners`.
      what: `compute`, or the collective with its axes: `all_gather(data)`; of what is no op, what
        it is in words.
      tag, op, source: of the op, such as `md.loss.12`, `einsum[batch_data, d_ff]`, `mlp.py:31`.
      phase: one of `predict.explanation.PHASES`; empty where it is not known.
      rule: that caused a collective; empty for anything else.
      how: what the compiler did to a collective, in words; empty where it runs as recorded.
      surprise: whether no record explains it.
      count: how often its instructions ran in one call of the program.
      seconds: that it took of a device, the mean over the devices.
      slowest: the same on the device on which it took longest.
      waiting: the part of `seconds` by which a collective takes longer than on the fastest device:
        there it does not wait for the others.
      running: seconds for which it was under way, beside computing too.
      estimate: seconds, by the figures of the target; None where there are none, and for what the
        estimate does not list.
    """

    kind: str
    what: str
    tag: str
    op: str
    source: str
    phase: str
    rule: str = ""
    how: str = ""
    surprise: bool = False
    count: int = 0
    seconds: float = 0.0
    slowest: float = 0.0
    waiting: float = 0.0
    running: float = 0.0
    estimate: float | None = None

    @property
    def attributed(self) -> bool:
        """Whether it is known what it belongs to: an op of the record, or the optimizer."""
        return not self.surprise and (bool(self.tag) or self.kind == "optimizer")

    @property
    def ratio(self) -> float | None:
        """Measured time over estimate, for a collective while it is under way."""
        took = self.running if self.kind == "collective" else self.seconds
        return took / self.estimate if self.estimate else None


@dataclass(frozen=True)
class Unforeseen:
    """Something that the record, or the estimate, did not foresee.

    Attributes:
      kind: `surprise`: a collective that no record explains; `compiler`: what the compiler added;
        `unknown`: code that belongs to no op; `changed`: a collective that runs otherwise than it
        was recorded; `absent`: one that was recorded and does not run; `estimate`: the measured
        time is far from the estimate.
      text: it in one line.
      seconds: that it took of a device; of `estimate` the difference, of `absent` 0.
    """

    kind: str
    text: str
    seconds: float


@dataclass(frozen=True)
class Total:
    """Entries with something in common, added up.

    Attributes:
      name: what they have in common: a rule, or lines of the model.
      seconds, slowest: as in `LedgerEntry`, the slowest for each entry by itself.
      waiting, running: as in `LedgerEntry`.
      estimate: of those entries that have one; None where none has.
      estimated: the measured seconds of these entries.
    """

    name: str
    seconds: float
    waiting: float
    running: float
    estimate: float | None
    estimated: float


@dataclass(frozen=True)
class LedgerReport:
    """Measured time of one call of a program beside its estimate.

    Attributes:
      title, layout: of what ran, in words.
      target: whose figures the estimate is made of; empty without one.
      axes: the mesh, `{axis: size}`.
      devices: names of those that were measured.
      calls: how many were traced.
      seconds: of a call, from the first device's beginning to the last one's end; the median.
      busy, idle: for each device the seconds of a call in which it ran any instruction, and the
        rest; the medians. Those of single instructions are medians too, so they add up to about
        `busy`.
      entries: most time first.
      unforeseen: what the record did not foresee, first of all.
      estimate: seconds of a call; None without figures.
    """

    title: str
    layout: str
    target: str
    axes: Mapping[str, int]
    devices: tuple[str, ...]
    calls: int
    seconds: float
    busy: tuple[float, ...]
    idle: tuple[float, ...]
    entries: tuple[LedgerEntry, ...]
    unforeseen: tuple[Unforeseen, ...] = ()
    estimate: float | None = None

    @property
    def attributed(self) -> float:
        """The share of the time of the devices of which the op, or the optimizer, is known."""
        return _share(self.entries, lambda entry: entry.attributed)

    @property
    def attributed_computing(self) -> float:
        """The same share of what is no collective, which may be mostly waiting."""
        computing = [entry for entry in self.entries if entry.kind != "collective"]
        return _share(computing, lambda entry: entry.attributed)

    @property
    def waiting(self) -> float:
        """Seconds of a call in which a device waits for others in collectives; the mean."""
        return math.fsum(entry.waiting for entry in self.entries)

    def by_rule(self) -> tuple[Total, ...]:
        """The collectives by the rule that caused them, most time first."""
        moves = (entry for entry in self.entries if entry.kind == "collective")
        return _totals(moves, lambda entry: entry.rule or "no rule")

    def by_line(self) -> tuple[Total, ...]:
        """All entries by the lines of the model, most time first."""
        return _totals(self.entries, lambda entry: entry.source or _no_line(entry))

    def to_dict(self) -> dict[str, Any]:
        """Everything as dicts, lists, strings and numbers, with derived figures."""
        return asdict(self) | {
            "entries": [
                asdict(one) | {"attributed": one.attributed, "ratio": one.ratio}
                for one in self.entries
            ],
            "attributed": self.attributed,
            "attributed_computing": self.attributed_computing,
            "waiting": self.waiting,
            "by_rule": [asdict(one) for one in self.by_rule()],
            "by_line": [asdict(one) for one in self.by_line()],
        }


def _share(entries: Sequence[LedgerEntry], wanted: Callable[[LedgerEntry], bool]) -> float:
    total = math.fsum(entry.seconds for entry in entries)
    part = math.fsum(entry.seconds for entry in entries if wanted(entry))
    return part / total if total else 1.0


def _no_line(entry: LedgerEntry) -> str:
    named = {"compiler": "made by the compiler", "optimizer": "optimizer"}
    return entry.op or named.get(entry.kind, "no op")


def _totals(entries: Iterable[LedgerEntry], key: Callable[[LedgerEntry], str]) -> tuple[Total, ...]:
    found: dict[str, list[LedgerEntry]] = defaultdict(list)
    for entry in entries:
        found[key(entry)].append(entry)
    totals = []
    for name, each in found.items():
        with_estimate = [entry for entry in each if entry.estimate is not None]
        totals.append(
            Total(
                name,
                math.fsum(entry.seconds for entry in each),
                math.fsum(entry.waiting for entry in each),
                math.fsum(entry.running for entry in each),
                math.fsum(entry.estimate or 0.0 for entry in with_estimate)
                if with_estimate
                else None,
                math.fsum(entry.seconds for entry in with_estimate),
            )
        )
    return tuple(sorted(totals, key=lambda total: -total.seconds))
