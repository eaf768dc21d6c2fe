"""What a search found, as plain data: the text, JSON and the layout file all show it.

Times are seconds of one step, sizes are bytes on one device.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, fields, is_dataclass
from typing import Any

from meshdsl.layout import LEVELS, Layout
from meshdsl.layout_search.constraints import words_of
from meshdsl.predict.explanation import AxisView, Estimate
from meshdsl.predict.time.uncertainty import plain_estimate

_LESS = 1e-2  # memory that is less by this share is worth a line of its own


@dataclass(frozen=True)
class Candidate:
    """One way to lay out a step.

    Attributes:
      layout: with the size of every axis of its mesh as a number.
      settings: of the run that the search has chosen, such as `{"model.remat": "full"}`; sorted
        by name.
      shipped: the name of the shipped layout that it is; empty for one that was put together.
    """

    layout: Layout
    settings: tuple[tuple[str, str], ...] = ()
    shipped: str = ""


@dataclass(frozen=True)
class Judged:
    """A candidate, and what a step under it comes to.

    Attributes:
      step: seconds of the step; collectives overlap with what does not need them.
      peak: the most bytes that live at once on one device.
      compute: seconds that the device computes.
      exposed: seconds in which the device waits for a collective.
      axes: of the mesh, with the bytes and the seconds of the collectives over each.
      fits: whether `peak` is within what may be used. By the estimate it is so only with the
        search's margin to spare.
      judge: `estimate`, or `compiler`.
      refused: why the compiler refused the step; empty where it did not, and without a compiler.
      estimate: of the step, also where the compiler judged.
    """

    candidate: Candidate
    step: float
    peak: int
    compute: float
    exposed: float
    axes: tuple[AxisView, ...]
    fits: bool
    judge: str = "estimate"
    refused: str = ""
    estimate: Estimate | None = None


@dataclass(frozen=True)
class Difference:
    """One line in which the best layout differs from another, and what the line is worth.

    Attributes:
      line: as a layout file has it, such as `"length -> context"`, or a setting or an axis's size.
      added: whether the best layout has the line and the other does not; or the other way round.
      seconds: that a step of the best layout would take longer with this difference undone; below
        0 if it would take less. None where it cannot be undone alone: `why` says so.
      bytes: by which the peak would grow with this difference undone.
    """

    line: str
    added: bool
    seconds: float | None
    bytes: int | None = None
    why: str = ""


@dataclass(frozen=True)
class Found:
    """What a search found.

    Attributes:
      title: what was searched, in words.
      target: the machine's name.
      budget: bytes that may be used on one device.
      margin: the share of the budget that must be left free by an estimate.
      best: the fastest that fits; of those that are as fast a shipped one, or the shortest.
      second: the fastest of those that differ from `best` in what they split; None if there is no
        other.
      frontier: the fastest for each amount of memory, the one with the least memory first; each
        next one is faster and takes more.
      shipped: the fastest shipped layout that fits; None if none does.
      differences: between `best` and `shipped`.
      rejected: near to the best and not taken: what is faster and does not fit, then what is
        slower.
      explained: how many were estimated.
      compiled: how many were compiled.
      seconds: that the search took, compilations left out.
      ended: whether it ended by itself; if not, its time was over, or its number of estimates.
      fitting: what fits by the estimate and is not compiled, one of those that come to the same;
        JSON leaves it out.
      close: of these what may well be faster than the best, as far as the estimate can tell, the
        likeliest first.
    """

    title: str
    target: str
    budget: int
    margin: float
    best: Judged
    second: Judged | None
    frontier: tuple[Judged, ...]
    shipped: Judged | None
    differences: tuple[Difference, ...]
    rejected: tuple[Judged, ...]
    explained: int
    compiled: int
    seconds: float
    ended: bool = True
    fitting: tuple[Judged, ...] = ()
    close: tuple[Judged, ...] = ()


def frontier_of(judged: Iterable[Judged]) -> tuple[Judged, ...]:
    """The fastest for each amount of memory, least memory first; of those that are alike one."""
    found: list[Judged] = []
    for one in sorted(judged, key=lambda j: (j.step, j.peak)):
        if not found or one.peak < found[-1].peak * (1 - _LESS):
            found.append(one)
    return tuple(reversed(found))


def as_dict(found: Found) -> dict[str, Any]:
    """Everything as dicts, lists, strings and numbers, with layouts as the tables of a file."""
    return {f.name: _plain(getattr(found, f.name)) for f in fields(Found) if f.name != "fitting"}


def _plain(value: Any) -> Any:
    match value:
        case tuple():
            return [_plain(one) for one in value]
        case Judged(candidate=one):
            figures = [f.name for f in fields(Judged) if f.name not in ("candidate", "estimate")]
            return {
                **_tables(one.layout),
                "settings": dict(one.settings),
                "shipped": one.shipped,
                **{name: _plain(getattr(value, name)) for name in figures},
                **plain_estimate(value.estimate),
            }
    return asdict(value) if is_dataclass(value) and not isinstance(value, type) else value


def _tables(layout: Layout) -> dict[str, Any]:
    """The two tables of a layout file, which `Layout.from_dict` reads as the same layout."""
    lists = {level: list(getattr(layout, level)) for level in LEVELS if getattr(layout, level)}
    return {"mesh": layout.mesh_table, "layout": lists | words_of(layout)}
