"""`meshdsl explain`, `compile` and `compare`: what layouts do, before anything runs."""

from __future__ import annotations

import argparse
import json
import sys
from functools import partial
from pathlib import Path

from meshdsl.commands.analysis import analyses_of, analysis_of, configured, target_of
from meshdsl.commands.output import check_files, print_phases, write_file
from meshdsl.predict.compiler.options import parse_options
from meshdsl.predict.compiler.report import CompiledReport
from meshdsl.predict.compiler.topology import compile_only, target_devices
from meshdsl.proof.certificate import Certificate
from meshdsl.proof.verified import Verified
from meshdsl.tools import compiled_text, explanation_text
from meshdsl.tools.analysis import Analysis
from meshdsl.tools.compare import Case, side_by_side, table
from meshdsl.tools.page import page
from meshdsl.train.stored_layout import find_layout

NOTHING_FITS = 3  # the exit code


def explain_step(arguments: argparse.Namespace) -> int:
    """Print every op, collective and byte of a step of training, or of that of each phase of a run.

    Raises:
      MeshDSLError: see `analyses_of`; or the page cannot be written.
    """
    check_files(arguments.html)
    compile_only()
    analyses = analyses_of(arguments, arguments.devices, one=["--html"])
    found = {phase: analysis.explain() for phase, analysis in analyses.items()}
    if arguments.html:
        write_file(arguments.html, page(next(iter(found.values()))))
    print_phases(found, explanation_text.describe, lambda each: each.to_dict(), arguments.json)
    return 0


def compile_step(arguments: argparse.Namespace) -> int:
    """Compile a step of training for a target, or that of each phase, and print what came of it.

    Raises:
      MeshDSLError: see `analyses_of`; the compiler is not installed, or refuses the step or one of
        the options; or a file cannot be written.
    """
    save = arguments.save
    check_files(arguments.html, save, save and _certificate_beside(save))
    compile_only()
    analyses = analyses_of(arguments, one=["--html", "--save"])
    if sys.stderr.isatty():
        target = next(iter(analyses.values())).target
        print(f"compiling for {target}; a large model takes minutes", file=sys.stderr)
    found = {phase: _compiled(arguments, each) for phase, each in analyses.items()}
    print_phases(
        found,
        lambda each: f"{compiled_text.describe(each[0])}\n\n{compiled_text.proof_text(*each)}",
        lambda each: {**each[0].to_dict(), "proof": each[1].to_dict()},
        arguments.json,
    )
    return NOTHING_FITS if any(report.fits is False for report, _ in found.values()) else 0


def _compiled(arguments: argparse.Namespace, analysis: Analysis) -> tuple[CompiledReport, Verified]:
    """What the compiler made of a step, which is written to the files that are asked for."""
    compiled = analysis.compile(parse_options(arguments.option))
    report, save = compiled.report, arguments.save
    if arguments.html:
        write_file(arguments.html, page(compiled.explained_as_compiled()))
    proof = analysis.verify(numbers=False)
    if save and compiled.executable is not None:
        compiled.subject.save(compiled.executable, save, report.options)
        Certificate.of(compiled.subject.made_from, proof).write(_certificate_beside(save))
    return report, proof


def _certificate_beside(save: Path) -> Path:
    return save.with_name(f"{save.name}.proof.json")


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
    cases = (
        Case(Path(layout).stem, mesh or "", partial(analysis_of, arguments, layout, mesh))
        for layout in arguments.layouts
        for mesh in arguments.mesh or [None]
    )
    rows = side_by_side(cases, arguments.compile or 0)
    print(json.dumps([row.to_dict() for row in rows]) if arguments.json else table(rows))
    return 0 if any(row.fits is not False for row in rows) else NOTHING_FITS
