"""`meshdsl verify`: a proof that a training step computes what it does on one device."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from meshdsl.commands.analysis import analyses_of
from meshdsl.commands.output import check_files, print_phases, write_file
from meshdsl.predict.compiler.topology import compile_only
from meshdsl.proof.certificate import Certificate
from meshdsl.train.job import Job

NOT_PROVED = 3  # the exit code


def verify_step(arguments: argparse.Namespace) -> int:
    """Print what is proved of a step of training under one layout.

    Raises:
      MeshDSLError: see `analyses_of`; or a file is no certificate, or cannot be written.
    """
    check_files(arguments.write)
    compile_only()
    analyses = analyses_of(arguments, arguments.devices, one=["--write", "--certificate"])
    if arguments.certificate:
        (analysis,) = analyses.values()
        return _check(arguments.certificate, analysis.on(analysis.mesh), arguments.json)
    found = {phase: analysis.verify() for phase, analysis in analyses.items()}
    if arguments.write:
        ((phase, analysis),) = analyses.items()
        made_from = analysis.on(analysis.mesh).made_from
        write_file(arguments.write, Certificate.of(made_from, found[phase]).text)
    print_phases(found, str, lambda each: each.to_dict(), arguments.json)
    return 0 if all(each.proved for each in found.values()) else NOT_PROVED


def _check(path: Path, job: Job, as_json: bool) -> int:
    """Print whether a certificate holds for the step of a job, and what it says."""
    certificate = Certificate.read(path)
    changes, proof = certificate.changes(job.made_from), certificate.proof
    if as_json:
        print(json.dumps({"changes": changes, "proof": proof.to_dict()}))
    elif changes:
        print(f"{path} does not hold, because this has changed: {', '.join(changes)}")
    else:
        print(f"{path} holds\n{proof}")
    return 0 if proof.proved and not changes else NOT_PROVED
