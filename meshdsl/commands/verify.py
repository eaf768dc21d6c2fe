"""`meshdsl verify`: a proof that a training step computes what it does on one device."""

from __future__ import annotations

import argparse
import json

from meshdsl.commands.analysis import analysis_of
from meshdsl.predict.compiler.topology import compile_only

NOT_PROVED = 3  # the exit code


def verify_step(arguments: argparse.Namespace) -> int:
    """Print what is proved of a step of training under one layout.

    Raises:
      MeshDSLError: see `analysis_of`.
    """
    compile_only()
    arguments.target, arguments.hardware, arguments.slices = None, None, 1
    analysis = analysis_of(arguments, arguments.layout, arguments.mesh, arguments.devices)
    found = analysis.verify()
    print(json.dumps(found.to_dict()) if arguments.json else found)
    return 0 if found.proved else NOT_PROVED
