"""`meshdsl compare`: layouts and meshes side by side on a machine, the best first."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from meshdsl.commands.analysis import analysis_of, configured, target_of
from meshdsl.predict.compiler.topology import compile_only, target_devices
from meshdsl.tools.compare import Case, side_by_side, table
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
    target = target_of(arguments)
    if arguments.compile:
        # A missing compiler is an error at once, and virtual devices can be made only before JAX
        # computes anything.
        target_devices(target)
    rows = side_by_side(_cases(arguments), arguments.compile or 0)
    print(json.dumps([row.to_dict() for row in rows]) if arguments.json else table(rows))
    return 0 if any(row.fits is not False for row in rows) else NOTHING_FITS


def _cases(arguments: argparse.Namespace) -> Iterator[Case]:
    """A row to be for each layout and mesh."""
    for layout in arguments.layouts:
        for mesh in arguments.mesh or [None]:
            analyse = partial(analysis_of, arguments, layout, mesh)
            yield Case(Path(layout).stem, mesh or "", analyse)
