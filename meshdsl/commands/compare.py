"""`meshdsl compare`: layouts and meshes side by side on a machine, the best first."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from pathlib import Path

from meshdsl.commands.analysis import Analysis, analysis_of, configured
from meshdsl.compiled.topology import compile_only, target_devices
from meshdsl.errors import MeshDSLError
from meshdsl.machine import find_target
from meshdsl.report.compare import Row, best_first, table
from meshdsl.train.stored_layout import find_layout

NOTHING_FITS = 3  # the exit code


def compare_layouts(arguments: argparse.Namespace) -> int:
    """Print a table with a row for each layout and mesh, the best first.

    A layout that cannot be used for the model or on the mesh has a row that says why.

    Raises:
      MeshDSLError: what is wrong under every layout, such as an unknown model; an unknown layout.
    """
    compile_only()
    for name in arguments.layouts:
        find_layout(name)
    # What is wrong under every layout is one error, not a table of them.
    configured(arguments)
    target = find_target(arguments.target, slices=arguments.slices, hardware=arguments.hardware)
    if arguments.compile:
        # A missing compiler is an error at once, and virtual devices can be made only before JAX
        # computes anything.
        target_devices(target)
    found = list(_rows(arguments))
    rows = best_first(row for row, _ in found)
    if arguments.compile:
        analyses = {id(row): analysis for row, analysis in found if analysis is not None}
        best = [row for row in rows if id(row) in analyses][: arguments.compile]
        rows = best_first(
            [_compiled(row, analyses[id(row)]) if row in best else row for row in rows]
        )
    print(json.dumps([row.to_dict() for row in rows]) if arguments.json else table(rows))
    return 0 if any(row.fits is not False for row in rows) else NOTHING_FITS


def _rows(arguments: argparse.Namespace) -> Iterator[tuple[Row, Analysis | None]]:
    """A row for each layout and mesh, with its analysis; None where they cannot be used."""
    for layout in arguments.layouts:
        for mesh in arguments.mesh or [None]:
            name = Path(layout).stem
            try:
                analysis = analysis_of(arguments, layout, mesh)
                yield Row.of(name, analysis.sizes, analysis.explain()), analysis
            except MeshDSLError as error:
                yield Row(name, mesh or "", error=_one_line(error)), None


def _compiled(row: Row, analysis: Analysis) -> Row:
    """The row as the compiler sees it."""
    try:
        return Row.compiled(row.layout, analysis.sizes, analysis.compile().report)
    except MeshDSLError as error:
        return Row(row.layout, row.mesh, error=_one_line(error))


def _one_line(error: MeshDSLError) -> str:
    return " ".join(str(error).split())
