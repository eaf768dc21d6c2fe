"""`meshdsl compile`: the real compiler, for a machine that is not at hand."""

from __future__ import annotations

import argparse
import json
import sys

from meshdsl.commands.analysis import analysis_of
from meshdsl.commands.output import check_files, write_file
from meshdsl.predict.compiler.options import parse_options
from meshdsl.predict.compiler.topology import compile_only
from meshdsl.tools.compiled_text import describe
from meshdsl.tools.page import page

DOES_NOT_FIT = 3  # the exit code


def compile_step(arguments: argparse.Namespace) -> int:
    """Compile a step of training for a target, and print what the compiler made of it.

    Raises:
      MeshDSLError: see `analysis_of`; the compiler is not installed, or refuses the step or one of
        the options; or a file cannot be written.
    """
    check_files(arguments.html, arguments.save)
    compile_only()
    analysis = analysis_of(arguments, arguments.layout, arguments.mesh)
    if sys.stderr.isatty():
        print(f"compiling for {analysis.target}; a large model takes minutes", file=sys.stderr)
    compiled = analysis.compile(parse_options(arguments.option))
    report = compiled.report
    if arguments.html:
        write_file(arguments.html, page(compiled.explained_as_compiled()))
    if arguments.save and compiled.executable is not None:
        compiled.subject.save(compiled.executable, arguments.save, report.options)
    print(json.dumps(report.to_dict()) if arguments.json else describe(report))
    return DOES_NOT_FIT if report.fits is False else 0
