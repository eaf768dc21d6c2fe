"""`meshdsl explain`: what a layout does, before anything runs."""

from __future__ import annotations

import argparse
import json

from meshdsl.commands.flags import add_one_layout, add_planned, count, write


def add(commands) -> None:
    explain = commands.add_parser(
        "explain",
        help="every op, collective and byte of a training step, without devices",
        usage="%(prog)s [--layout FILE|NAME] [--model NAME] [--target MACHINE] [--mesh AXIS=N,...] [--batch N] [--length N] [--html FILE] [--json] [key=value...]",
    )
    add_one_layout(explain)
    add_planned(explain)
    explain.add_argument("--devices", type=count, help="so many devices, where there is no target")
    explain.set_defaults(command=_run)


def _run(arguments: argparse.Namespace, settings: list[str]) -> int:
    from meshdsl.commands.analysis import resolve
    from meshdsl.compiled.topology import compile_only
    from meshdsl.report.explanation_text import describe

    compile_only()
    explanation = resolve(
        arguments, settings, arguments.layout, arguments.mesh, arguments.devices
    ).explain()
    if arguments.html:
        from meshdsl.report.page import page

        write(arguments.html, page(explanation))
    print(json.dumps(explanation.to_dict()) if arguments.json else describe(explanation))
    return 0
