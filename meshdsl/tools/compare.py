"""Layouts side by side, a row for each and the best first: what `meshdsl compare` prints."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from meshdsl.figures import byte_words, columns, time_words
from meshdsl.predict.compiler.report import CompiledReport
from meshdsl.predict.explanation import Explanation, PipelineView, TimeView


@dataclass(frozen=True)
class Row:
    """What one layout on one mesh comes to, on one device and for one step.

    Attributes:
      mesh: the mesh in words, `data=16 model=4`.
      fits: whether the peak is below the chip's memory; None where that is not known.
      peak: bytes that live at once; of what the compiler refuses, and of GPUs, all that it needs.
      capacity: bytes.
      step: seconds; None where the machine has no figures.
      mfu: the share of the machine's FLOPs that the model uses.
      exposed: the share of the step that waits for collectives.
      moved: the bytes of collectives by axis.
      by: who judged: `estimate`, or `compiler`.
      unread: instructions of the compiled program that are not understood; the step lacks them.
      bubble: the share of the step, or without times of the ticks, for which a stage of a pipeline
        waits; None without a pipeline.
      error: why the layout cannot be used; then there is nothing else.
      remat: what `model.remat=auto` has chosen; empty without it.
    """

    layout: str
    mesh: str
    fits: bool | None = False
    peak: int = 0
    capacity: int | None = None
    step: float | None = None
    mfu: float | None = None
    exposed: float | None = None
    moved: tuple[tuple[str, int], ...] = ()
    by: str = "estimate"
    unread: int = 0
    error: str = ""
    remat: str = ""
    bubble: float | None = None

    @classmethod
    def of(cls, layout: str, sizes: Mapping[str, int], e: Explanation, by: str = "estimate") -> Row:
        """The row of an explanation, for a mesh of these `sizes`."""
        return cls(
            layout=layout,
            mesh=_mesh(sizes),
            fits=e.memory.fits,
            peak=e.memory.peak,
            capacity=e.memory.capacity,
            step=e.time.step if e.time else None,
            mfu=e.time.mfu if e.time else None,
            exposed=e.time.exposed_share if e.time else None,
            moved=tuple((a.name, a.bytes) for a in e.axes),
            by=by,
            remat=e.remat,
            bubble=_bubble(e.pipelines, e.time),
        )

    @classmethod
    def compiled(cls, layout: str, sizes: Mapping[str, int], report: CompiledReport) -> Row:
        """The row of what the compiler made of the same step."""
        moved = dict.fromkeys(sizes, 0)
        for row in report.collectives:
            for axis in row.axes:
                moved[axis] += row.count * row.bytes
        time, memory = report.time, report.memory
        return cls(
            layout=layout,
            mesh=_mesh(sizes),
            fits=report.fits,
            peak=memory.needed if memory.peak is None else memory.peak,
            capacity=memory.capacity,
            step=time.step if time else None,
            mfu=time.mfu if time else None,
            exposed=time.exposed_share if time else None,
            moved=tuple(moved.items()),
            by="compiler",
            unread=sum(kind.count for kind in report.unread),
            remat=report.remat,
            bubble=_bubble(report.pipelines, time),
        )

    def to_dict(self) -> dict[str, Any]:
        """Everything as dicts, lists, strings and numbers: what `--json` prints."""
        return asdict(self) | {"moved": dict(self.moved)}


def _bubble(pipelines: Sequence[PipelineView], time: TimeView | None) -> float | None:
    """The share of a step for which a stage waits; without times, the largest share of ticks."""
    if not pipelines:
        return None
    if time is None or not time.step:
        return max(one.schedule.bubble for one in pipelines)
    return math.fsum(one.waiting or 0.0 for one in pipelines) / time.step


def _mesh(sizes: Mapping[str, int]) -> str:
    return " ".join(f"{axis}={size}" for axis, size in sizes.items())


def best_first(rows: Iterable[Row]) -> list[Row]:
    """The rows, the best first.

    What fits is ordered by its step time, then comes what does not fit by its peak, then what
    cannot be used at all. What the compiler judged comes before what is estimated.
    """

    def rank(row: Row):
        step = row.step if row.fits is not False and row.step is not None else math.inf
        return (bool(row.error), row.fits is False, row.by != "compiler", step, row.peak)

    return sorted(rows, key=rank)


_HEAD = ("layout", "mesh", "fits", "peak", "step", "MFU", "exposed", "collectives by axis", "by")
_BUBBLE = 7  # the column of the bubble, where a layout has a pipeline


def table(rows: Sequence[Row]) -> str:
    """The rows as text. Of a layout that cannot be used it says why."""
    piped = any(row.bubble is not None for row in rows)
    head = (*_HEAD[:_BUBBLE], "bubble", *_HEAD[_BUBBLE:]) if piped else _HEAD
    cells = [head, *(_cells(row, piped) for row in rows)]
    return "\n".join(columns(cells, right=range(3, _BUBBLE + piped), indent=0))


def _cells(r: Row, piped: bool) -> tuple[str, ...]:
    """The cells of a row; with `piped` there is one for the bubble."""
    if r.error:
        return (r.layout, r.mesh, "-", *[""] * (5 + piped), r.error)
    bubble = "none" if r.bubble is None else f"{r.bubble:.0%}"
    fits = "?" if r.fits is None else "yes"
    if r.fits is False:
        fits = f"no, by {byte_words(r.peak - (r.capacity or 0))}"
    by = f"{r.by}, remat {r.remat}" if r.remat else r.by
    return (
        r.layout,
        r.mesh,
        fits,
        byte_words(r.peak),
        time_words(r.step) if r.step is not None else "",
        f"{r.mfu:.1%}" if r.mfu is not None else "",
        f"{r.exposed:.0%}" if r.exposed is not None else "",
        *([bubble] if piped else []),
        ", ".join(f"{axis} {byte_words(size)}" for axis, size in r.moved if size) or "none",
        f"{by}, {r.unread:,} instructions not understood" if r.unread else by,
    )
