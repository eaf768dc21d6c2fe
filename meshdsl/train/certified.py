"""What is proved of the step of a run: sought while the step is compiled, kept beside its results.

The proof compares the step under the layout of the run with the step on one device, see
`docs/verify.md`. Process 0 traces the latter for that, in a thread of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from threading import Thread

from meshdsl import hosts
from meshdsl.errors import MeshDSLError
from meshdsl.mesh import platform_of
from meshdsl.program.program import Program
from meshdsl.proof.certificate import Certificate
from meshdsl.proof.verified import Verified, verified
from meshdsl.train.job import Job

_PATIENCE = 5.0  # seconds that a run waits at its end for a proof that is not found yet


@contextmanager
def certified(
    job: Job, program: Callable[[], Program], path: Path, print_line: Callable[[str], None]
) -> Iterator[None]:
    """A context in whose time the step of a job is proved, if the setting `proof` asks for it.

    A step that is proved already, by a certificate that holds, is not proved again. A run that ends
    before its step is proved goes without.

    Args:
      program: gives the record of the step.
      path: the file of the certificate.
      print_line: prints a line, in one process.

    Raises:
      MeshDSLError: `proof=require`, and the step is not proved.
    """
    asked, thread = job.config.proof if job.mesh.size > 1 else "off", None
    find = partial(_found, job, program, path)
    if asked == "require":
        print_line(hosts.first_does(lambda: _required(find)))
    elif asked == "tell" and hosts.first():
        thread = Thread(target=lambda: print_line(_told(find)), name="proof", daemon=True)
        thread.start()
    try:
        yield
    finally:
        if thread:
            thread.join(_PATIENCE)


def _required(find: Callable[[], Verified]) -> str:
    found = find()
    if not found.proved:
        raise MeshDSLError(f"proof=require: {found}")
    return _line(found)


def _told(find: Callable[[], Verified]) -> str:
    """What is proved, in a line. A run goes on whatever happens here."""
    try:
        return _line(find())
    except Exception as error:
        return f"the step was not compared with that of one device: {type(error).__name__}: {error}"


def _found(job: Job, program: Callable[[], Program], path: Path) -> Verified:
    """What is proved: by the certificate if that holds, and otherwise now."""
    if path.exists():
        certificate = Certificate.read(path)
        if not certificate.changes(job.made_from):
            return certificate.proof
    on = lambda mesh: Job(job.config, job.layout, mesh)
    found = verified(on, program(), platform_of(job.mesh), "the step", numbers=False)
    Certificate.of(job.made_from, found).write(path)
    return found


def _line(found: Verified) -> str:
    """The first line of what `meshdsl verify` prints, and why where something is not proved."""
    first = str(found).splitlines()[1]
    return first if found.proved else f"{first}: {found.why} (see `meshdsl verify`)"
