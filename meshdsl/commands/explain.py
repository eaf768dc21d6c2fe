"""`meshdsl explain`, `compile` and `compare`: what layouts do, before anything runs."""

from __future__ import annotations

import argparse
import json
import sys
from functools import partial
from pathlib import Path

from meshdsl.commands.analysis import analysis_of, configured, target_of
from meshdsl.commands.output import check_files, write_file
from meshdsl.predict.compiler.options import parse_options
from meshdsl.predict.compiler.topology import compile_only, target_devices
from meshdsl.proof.certificate import Certificate
from meshdsl.tools import compiled_text, explanation_text
from meshdsl.tools.compare import Case, side_by_side, table
from meshdsl.tools.page import page
from meshdsl.train.stored_layout import find_layout

NOTHING_FITS = 3  # the exit code


def explain_step(arguments: argparse.Namespace) -> int:
    """Print every op, collective and byte of a step of training under one layout.

    Raises:
      MeshDSLError: see `analysis_of`; or the page cannot be written.
    """
    check_files(arguments.html)
    compile_only()
    analysis = analysis_of(arguments, arguments.layout, arguments.mesh, arguments.devices)
    found = analysis.explain()
    if arguments.html:
        write_file(arguments.html, page(found))
    print(json.dumps(found.to_dict()) if arguments.json else explanation_text.describe(found))
    return 0


def compile_step(arguments: argparse.Namespace) -> int:
    """Compile a step of training for a target, and print what the compiler made of it.

    Raises:
      MeshDSLError: see `analysis_of`; the compiler is not installed, or refuses the step or one of
        the options; or a file cannot be written.
    """
    save = arguments.save
    certificate = save and save.with_name(f"{save.name}.proof.json")
    check_files(arguments.html, save, certificate)
    compile_only()
    analysis = analysis_of(arguments, arguments.layout, arguments.mesh)
    if sys.stderr.isatty():
        print(f"compiling for {analysis.target}; a large model takes minutes", file=sys.stderr)
    compiled = analysis.compile(parse_options(arguments.option))
    found = compiled.report
    if arguments.html:
        write_file(arguments.html, page(compiled.explained_as_compiled()))
    proof = analysis.verify(numbers=False)
    if save and compiled.executable is not None:
        compiled.subject.save(compiled.executable, save, found.options)
        Certificate.of(compiled.subject.made_from, proof).write(certificate)
    if arguments.json:
        print(json.dumps({**found.to_dict(), "proof": proof.to_dict()}))
    else:
        print(f"{compiled_text.describe(found)}\n\n{compiled_text.proof_text(found, proof)}")
    return NOTHING_FITS if found.fits is False else 0


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
