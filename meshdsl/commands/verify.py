"""`meshdsl verify`: a proof that a training step computes what it does on one device."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from meshdsl.commands.analysis import analysis_of
from meshdsl.commands.output import check_files
from meshdsl.predict.compiler.topology import compile_only
from meshdsl.proof.certificate import Certificate
from meshdsl.train.job import Job

NOT_PROVED = 3  # the exit code


def verify_step(arguments: argparse.Namespace) -> int:
    """Print what is proved of a step of training under one layout.

    Raises:
      MeshDSLError: see `analysis_of`; or a file is no certificate, or cannot be written.
    """
    check_files(arguments.write)
    compile_only()
    analysis = analysis_of(arguments, arguments.layout, arguments.mesh, arguments.devices)
    if arguments.certificate:
        return _check(arguments.certificate, analysis.on(analysis.mesh))
    found = analysis.verify()
    if arguments.write:
        made_from = analysis.on(analysis.mesh).made_from
        Certificate.of(made_from, found).write(arguments.write)
        print(f"wrote {arguments.write}", file=sys.stderr)
    print(json.dumps(found.to_dict()) if arguments.json else found)
    return 0 if found.proved else NOT_PROVED


def _check(path: Path, job: Job) -> int:
    """Print whether a certificate holds for the step of a job, and what it says."""
    certificate = Certificate.read(path)
    if changes := certificate.changes(job.made_from):
        print(f"{path} does not hold, because this has changed: {', '.join(changes)}")
        return NOT_PROVED
    print(f"{path} holds\n{certificate.proof}")
    return 0 if certificate.proof.proved else NOT_PROVED
