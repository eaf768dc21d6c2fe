"""`meshdsl explain`: what a layout does, before anything runs."""

from __future__ import annotations

import argparse
import json

from meshdsl.commands.analysis import analysis_of
from meshdsl.commands.output import check_files, write_file
from meshdsl.predict.compiler.topology import compile_only
from meshdsl.tools.explanation_text import describe
from meshdsl.tools.page import page


def explain_step(arguments: argparse.Namespace) -> int:
    """Print every op, collective and byte of a step of training under one layout.

    Raises:
      MeshDSLError: see `analysis_of`; or the page cannot be written.
    """
    check_files(arguments.html)
    compile_only()
    explanation = analysis_of(
        arguments, arguments.layout, arguments.mesh, arguments.devices
    ).explain()
    if arguments.html:
        write_file(arguments.html, page(explanation))
    print(json.dumps(explanation.to_dict()) if arguments.json else describe(explanation))
    return 0
