"""`meshdsl compare`: layouts and meshes side by side on a machine, the best first."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from meshdsl.commands.flags import add_planned, count
from meshdsl.errors import MeshDSLError

if TYPE_CHECKING:
    from meshdsl.commands.planned import Plan
    from meshdsl.plan.compare import Row

NOTHING_FITS = 3  # the exit code


def add(commands) -> None:
    compare = commands.add_parser(
        "compare",
        help="layouts side by side on a machine, the best first",
        usage="%(prog)s LAYOUT... --target MACHINE [--model NAME] [--mesh AXIS=N,...]... [--batch N] [--length N] [--compile K] [--json] [key=value...]",
    )
    compare.add_argument("layouts", nargs="+", metavar="LAYOUT", help="layout files, or names of shipped ones")
    compare.add_argument("--mesh", action="append", metavar="AXIS=N,...", help="a mesh to try with each layout; may be given several times")
    compare.add_argument("--compile", type=count, metavar="K", help="let the compiler judge the K best")
    add_planned(compare)
    compare.set_defaults(command=_run)


def _run(arguments: argparse.Namespace, settings: list[str]) -> int:
    if arguments.target is None:
        raise MeshDSLError("say for which machine, with --target, for example --target v5p:4x4x4")
    from meshdsl.plan.compare import best_first, table

    if arguments.compile:
        from meshdsl.plan.compiled import compile_only, target_devices
        from meshdsl.plan.hardware import find_target

        compile_only()
        # A compiler that is missing is an error before anything is explained, and virtual devices can only be made now.
        target_devices(find_target(arguments.target, slices=arguments.slices, hardware=arguments.hardware))
    plans: dict[Row, Plan] = {}
    rows = best_first(_rows(arguments, settings, plans))
    if arguments.compile:
        best = [row for row in rows if row in plans][: arguments.compile]
        rows = best_first([_judged(row, plans[row]) if row in best else row for row in rows])
    print(json.dumps([row.to_dict() for row in rows]) if arguments.json else table(rows))
    return 0 if any(row.fits for row in rows) else NOTHING_FITS


def _rows(arguments: argparse.Namespace, settings: list[str], plans: dict[Row, Plan]) -> Iterator[Row]:
    """A row for each layout and mesh; `plans` gets the plan behind each that can be used."""
    from meshdsl.commands.planned import resolve
    from meshdsl.plan.compare import Row

    for layout in arguments.layouts:
        for mesh in arguments.mesh or [None]:
            name = Path(layout).stem
            try:
                plan = resolve(arguments, settings, layout, mesh)
                row = Row.of(name, plan.sizes, plan.explain())
            except MeshDSLError as error:
                row = Row(name, mesh or "", error=" ".join(str(error).split()))
            else:
                plans[row] = plan
            yield row


def _judged(row: Row, plan: Plan) -> Row:
    """The row as the compiler sees it."""
    from meshdsl.plan.compare import Row

    return Row.compiled(row.layout, plan.sizes, plan.compile()[0])
