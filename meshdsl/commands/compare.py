"""`meshdsl compare`: layouts and meshes side by side on a machine, the best first."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from meshdsl.commands.flags import add_planned, count
from meshdsl.commands.lookup import find_layout
from meshdsl.errors import MeshDSLError

if TYPE_CHECKING:
    from meshdsl.commands.analysis import Plan
    from meshdsl.report.compare import Row

NOTHING_FITS = 3  # the exit code


def add(commands) -> None:
    compare = commands.add_parser(
        "compare",
        help="layouts side by side on a machine, the best first",
        usage="%(prog)s LAYOUT... --target MACHINE [--model NAME] [--mesh AXIS=N,...]... [--batch N] [--length N] [--compile K] [--json] [key=value...]",
    )
    compare.add_argument(
        "layouts", nargs="+", metavar="LAYOUT", help="layout files, or names of shipped ones"
    )
    compare.add_argument(
        "--mesh",
        action="append",
        metavar="AXIS=N,...",
        help="a mesh to try with each layout; may be given several times",
    )
    compare.add_argument(
        "--compile", type=count, metavar="K", help="let the compiler judge the K best"
    )
    add_planned(compare)
    compare.set_defaults(command=_run)


def _run(arguments: argparse.Namespace, settings: list[str]) -> int:
    if arguments.target is None:
        raise MeshDSLError("say for which machine, with --target, for example --target v5p:4x4x4")
    from meshdsl.commands.analysis import configured
    from meshdsl.compiled.topology import compile_only, target_devices
    from meshdsl.machine import find_target
    from meshdsl.report.compare import best_first, table

    compile_only()
    for name in arguments.layouts:
        find_layout(name)
    configured(
        arguments, settings
    )  # what is wrong under every layout is one error, not a table of them
    target = find_target(arguments.target, slices=arguments.slices, hardware=arguments.hardware)
    if arguments.compile:
        target_devices(
            target
        )  # a missing compiler is an error at once, and virtual devices can only be made now
    found = list(_rows(arguments, settings))
    rows = best_first(row for row, _ in found)
    if arguments.compile:
        plans = {id(row): plan for row, plan in found if plan is not None}
        judged = [row for row in rows if id(row) in plans][: arguments.compile]
        rows = best_first([_judged(row, plans[id(row)]) if row in judged else row for row in rows])
    print(json.dumps([row.to_dict() for row in rows]) if arguments.json else table(rows))
    return 0 if any(row.fits is not False for row in rows) else NOTHING_FITS


def _rows(arguments: argparse.Namespace, settings: list[str]) -> Iterator[tuple[Row, Plan | None]]:
    """A row for each layout and mesh, with the plan behind it; one that cannot be used has none."""
    from meshdsl.commands.analysis import resolve
    from meshdsl.report.compare import Row

    for layout in arguments.layouts:
        for mesh in arguments.mesh or [None]:
            name = Path(layout).stem
            try:
                plan = resolve(arguments, settings, layout, mesh)
                yield Row.of(name, plan.sizes, plan.explain()), plan
            except MeshDSLError as error:
                yield Row(name, mesh or "", error=_one_line(error)), None


def _judged(row: Row, plan: Plan) -> Row:
    """The row as the compiler sees it."""
    from meshdsl.report.compare import Row

    try:
        return Row.compiled(row.layout, plan.sizes, plan.compile()[0])
    except MeshDSLError as error:
        return Row(row.layout, row.mesh, error=_one_line(error))


def _one_line(error: MeshDSLError) -> str:
    return " ".join(str(error).split())
