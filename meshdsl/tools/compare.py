"""Layouts side by side, a row for each and the best first: `md.compare` and `meshdsl compare`."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from html import escape
from typing import Any, NamedTuple

from jax.sharding import AbstractMesh, Mesh

from meshdsl.dims import Dim
from meshdsl.errors import MeshDSLError, quote, whole_number
from meshdsl.figures import byte_words, columns, time_words
from meshdsl.layout import Layout
from meshdsl.lowering.lower import Lowered
from meshdsl.machine import Target
from meshdsl.predict.compiler.report import CompiledReport
from meshdsl.predict.compiler.topology import target_devices
from meshdsl.predict.explanation import Estimate, Explanation, PipelineView, TimeView
from meshdsl.predict.time.uncertainty import close, plain_estimate
from meshdsl.tools.analysis import Analysis
from meshdsl.tools.function import MeshLike, analysis_of, chosen_target, how_to_lower


@dataclass(frozen=True, repr=False)
class Comparison:
    """Layouts side by side, a row for each and the best first; it prints itself as a table.

    Attributes:
      rows: those that fit by their step time, then those that don't, then those that cannot be
        used, each of which says why.
    """

    rows: tuple[Row, ...]

    def __repr__(self) -> str:
        return table(self.rows)

    def _repr_html_(self) -> str:
        return f"<pre>{escape(table(self.rows))}</pre>"

    def to_dict(self) -> list[dict[str, Any]]:
        """The rows as dicts, as `meshdsl compare --json` prints them."""
        return [row.to_dict() for row in self.rows]


def compare(
    fn: Callable,
    *args,
    layouts: Sequence[Layout] | Mapping[str, Layout],
    target: Target | str,
    meshes: Sequence[MeshLike] = (),
    compiled: int = 0,
    tokens: int = 0,
    flops: float | None = None,
    dims: Iterable[Dim | str] = (),
    optimizer_argnums: int | Iterable[int] = (),
    donate_argnums: int | Iterable[int] = (),
) -> Comparison:
    """Layouts and meshes side by side for `fn(*args)` on one machine, the best first.

    It prints the table of `meshdsl compare`. A layout that cannot be used for the function, or on
    the machine, has a row that says why.

    Args:
      fn: as in `md.explain`, and so are all arguments that are not listed here; not lowered.
      layouts: a list of them, or a dict by the names that they have in the table.
      meshes: to try with each layout, instead of the layout's own.
      compiled: how many to compile too: the best, then those that may well be faster by the
        estimate, the likeliest first, then the next best.

    Raises:
      MeshDSLError: what is wrong under every layout, such as an unknown target.
    """
    chosen = chosen_target("compare", target)
    if isinstance(fn, Lowered):
        raise MeshDSLError(
            f"compare: `{fn.name}` is lowered already, by {fn.layout.name}; give the function "
            "itself, which is lowered by each layout"
        )
    how = how_to_lower(dims, optimizer_argnums, donate_argnums)
    compiled = whole_number("compare: `compiled`", compiled, 0)
    if compiled and chosen is not None:
        target_devices(chosen)

    def case(name: str, layout: Layout, mesh: MeshLike | None) -> Case:
        asked = ("compare", fn, args, layout, chosen, mesh)
        analyse = partial(analysis_of, *asked, tokens=tokens, flops=flops, how=how)
        return Case(name, _mesh_words(mesh), analyse)

    named = _named(layouts)
    rows = side_by_side(
        [case(name, layout, mesh) for name, layout in named for mesh in meshes or (None,)],
        compiled,
    )
    errors = {row.error for row in rows}
    if len(errors) == 1 and (error := errors.pop()):
        # What is wrong under every layout is one error, not a table of them.
        raise MeshDSLError(error)
    return Comparison(tuple(rows))


def _named(layouts: Sequence[Layout] | Mapping[str, Layout]) -> list[tuple[str, Layout]]:
    """The layouts with the names that they have in the table."""
    if isinstance(layouts, Mapping):
        found = [(str(name), layout) for name, layout in layouts.items()]
    else:
        names = [_short_name(layout) for layout in layouts]
        found = [
            (f"{name} {i}" if names.count(name) > 1 else name, layout)
            for i, (name, layout) in enumerate(zip(names, layouts, strict=True), 1)
        ]
    if not found:
        raise MeshDSLError("compare: `layouts` has no layout in it")
    for _, layout in found:
        if not isinstance(layout, Layout):
            raise MeshDSLError(
                f"compare: each of `layouts` is a Layout, not {quote(layout)}; read one with "
                "md.Layout.load(file)"
            )
    return found


def _short_name(layout: Layout) -> str:
    """`fsdp` for the layout in `fsdp.toml`."""
    return str(getattr(layout, "name", "")).removeprefix("layout ").removesuffix(".toml")


def _mesh_words(mesh: MeshLike | None) -> str:
    if mesh is None:
        return ""
    sizes = mesh.shape if isinstance(mesh, (Mesh, AbstractMesh)) else mesh
    if not isinstance(sizes, Mapping):
        return ""  # no mesh at all, as the row will say
    return _mesh(sizes)


class Case(NamedTuple):
    """A row to be.

    Attributes:
      layout: its name.
      mesh: in words, where the analysis cannot say it.
      analyse: makes the analysis, or raises a MeshDSLError that says why there is none.
    """

    layout: str
    mesh: str
    analyse: Callable[[], Analysis]


def side_by_side(cases: Iterable[Case], compiled: int = 0) -> list[Row]:
    """A row for each case, the best first.

    A case that cannot be used has a row that says why.

    Args:
      compiled: how many to compile too, as in `compare`.
    """
    found = [_estimated(case) for case in cases]
    rows = best_first(row for row, _ in found)
    analyses = {id(row): analysis for row, analysis in found if analysis is not None}
    waiting = [row for row in rows if id(row) in analyses]
    judged: list[Row] = []
    while waiting and len(judged) < compiled:
        known, doubtful = undecided([*judged, *waiting])
        asked = doubtful if known and known[0].by == "compiler" else []
        row = (asked or waiting)[0]
        waiting = [one for one in waiting if one is not row]
        judged.append(_compiled(row, analyses[id(row)]))
    return best_first([*judged, *waiting, *(row for row in rows if id(row) not in analyses)])


def _estimated(case: Case) -> tuple[Row, Analysis | None]:
    try:
        analysis = case.analyse()
        return Row.of(case.layout, analysis.sizes, analysis.explain()), analysis
    except MeshDSLError as error:
        return Row(case.layout, case.mesh, error=_one_line(error)), None


def _compiled(row: Row, analysis: Analysis) -> Row:
    """The row as the compiler sees it."""
    try:
        found = Row.compiled(row.layout, analysis.sizes, analysis.compile().report)
        return replace(found, estimate=row.estimate)
    except MeshDSLError as error:
        return Row(row.layout, row.mesh, error=_one_line(error))


def _one_line(error: MeshDSLError) -> str:
    return " ".join(str(error).split())


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
      estimate: of the step, also where the compiler judged; None as `step`.
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
    estimate: Estimate | None = None

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
            estimate=e.time.estimate if e.time else None,
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
        found = asdict(self) | {"moved": dict(self.moved)}
        del found["estimate"]
        return found | plain_estimate(self.estimate)


def _bubble(pipelines: Sequence[PipelineView], time: TimeView | None) -> float | None:
    """The share of a step for which a stage waits; without times, the largest share of ticks."""
    if not pipelines:
        return None
    if time is None or not time.step:
        return max(one.schedule.bubble for one in pipelines)
    return math.fsum(one.waiting or 0.0 for one in pipelines) / time.step


def _mesh(sizes: Mapping[str, int | str]) -> str:
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


def undecided(rows: Sequence[Row]) -> tuple[list[Row], list[Row]]:
    """What is known to be fastest, and those of which the estimate cannot say whether they are.

    Args:
      rows: the best first.

    Returns:
      What the compiler judged, or the best by the estimate; and what is not compiled and may well
      be faster, the likeliest first.
    """
    timed = [row for row in rows if row.fits is not False and row.step and row.estimate]
    known = [row for row in timed if row.by == "compiler"] or timed[:1]
    return known, close([row for row in timed if row not in known], known) if known else []


def _advice(rows: Sequence[Row]) -> list[str]:
    """Which rows the compiler should judge; nothing where the estimate tells them apart."""
    known, doubtful = undecided(rows)
    if not doubtful:
        return []
    judged = known[0].by == "compiler"
    some = doubtful if judged else [*known, *doubtful]
    meshes = len({row.layout for row in some}) < len(some)
    names = ", ".join(f"{row.layout} {row.mesh}" if meshes else row.layout for row in some)
    count = len(some) + sum(row.by == "compiler" for row in rows)
    said = "Not compiled, and perhaps faster" if judged else f"The order of these {len(some)} is"
    ask = f"Compile them: --compile {count} (in Python compiled={count})"
    return [f"{said} within what the estimate is good for: {names}. {ask}"]


_HEAD = ("layout", "mesh", "fits", "peak", "step", "MFU", "exposed", "collectives by axis", "by")
_BUBBLE = 7  # the column of the bubble, where a layout has a pipeline


def table(rows: Sequence[Row]) -> str:
    """The rows as text. Of a layout that cannot be used it says why.

    Below stands which of them the compiler should judge, if the estimate cannot say.
    """
    piped = any(row.bubble is not None for row in rows)
    head = (*_HEAD[:_BUBBLE], "bubble", *_HEAD[_BUBBLE:]) if piped else _HEAD
    cells = [head, *(_cells(row, piped) for row in rows)]
    return "\n".join([*columns(cells, right=range(3, _BUBBLE + piped), indent=0), *_advice(rows)])


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
