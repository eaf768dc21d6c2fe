"""`meshdsl compile`: the real compiler, for a machine that is not at hand."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from meshdsl.commands.flags import add_one_layout, add_planned, write
from meshdsl.errors import MeshDSLError

DOES_NOT_FIT = 3  # the exit code


def add(commands) -> None:
    compile = commands.add_parser(
        "compile",
        help="compile a training step for a machine, and say what the compiler made of it",
        usage="%(prog)s --target MACHINE [--slices N] [--layout FILE|NAME] [--model NAME] [--mesh AXIS=N,...] [--batch N] [--length N] "
        "[--option KEY=VALUE]... [--save FILE] [--html FILE] [--json] [key=value...]",
    )
    add_one_layout(compile)
    add_planned(compile)
    compile.add_argument(
        "--option",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="an option of the compiler; may be given several times",
    )
    compile.add_argument(
        "--save",
        type=Path,
        metavar="FILE",
        help="write the executable, for `meshdsl train --executable FILE`",
    )
    compile.set_defaults(command=_run)


def _run(arguments: argparse.Namespace, settings: list[str]) -> int:
    if arguments.target is None:
        raise MeshDSLError("say for which machine, with --target, for example --target v5p:4x4x4")
    from meshdsl.commands.analysis import resolve
    from meshdsl.compiled.options import parse_options
    from meshdsl.compiled.topology import compile_only
    from meshdsl.report.compiled_text import describe

    compile_only()
    plan = resolve(arguments, settings, arguments.layout, arguments.mesh)
    if sys.stderr.isatty():
        print(f"compiling for {plan.target}; a large model takes minutes", file=sys.stderr)
    report, explanation, job, executable = plan.compile(parse_options(arguments.option))
    if arguments.html:
        from meshdsl.report.page import page

        write(arguments.html, page(report.explained(explanation)))
    if arguments.save and executable is not None:
        job.save(executable, arguments.save, report.options)
    print(json.dumps(report.to_dict()) if arguments.json else describe(report))
    return DOES_NOT_FIT if report.fits is False else 0
