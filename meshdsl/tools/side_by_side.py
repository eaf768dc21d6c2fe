"""Layouts and meshes side by side: each is analysed, and the best of them compiled if asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

from meshdsl.errors import MeshDSLError
from meshdsl.tools.analysis import Analysis
from meshdsl.tools.compare import Row, best_first


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
      compiled: how many of the best to compile too.
    """
    found = [_estimated(case) for case in cases]
    rows = best_first(row for row, _ in found)
    analyses = {id(row): analysis for row, analysis in found if analysis is not None}
    best = [id(row) for row in rows if id(row) in analyses][:compiled]
    return best_first(_compiled(row, analyses[id(row)]) if id(row) in best else row for row in rows)


def _estimated(case: Case) -> tuple[Row, Analysis | None]:
    try:
        analysis = case.analyse()
        return Row.of(case.layout, analysis.sizes, analysis.explain()), analysis
    except MeshDSLError as error:
        return Row(case.layout, case.mesh, error=_one_line(error)), None


def _compiled(row: Row, analysis: Analysis) -> Row:
    """The row as the compiler sees it."""
    try:
        return Row.compiled(row.layout, analysis.sizes, analysis.compile().report)
    except MeshDSLError as error:
        return Row(row.layout, row.mesh, error=_one_line(error))


def _one_line(error: MeshDSLError) -> str:
    return " ".join(str(error).split())
