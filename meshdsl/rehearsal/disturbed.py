"""A real run on this machine meets a drawn trace of faults, and what it came to is told."""

from __future__ import annotations

import time
from statistics import fmean

from meshdsl.errors import MeshDSLError
from meshdsl.hosts.signals import EXIT_CODES
from meshdsl.rehearsal.faults import Trace
from meshdsl.rehearsal.launched import Launched, kill_one, wait_until
from meshdsl.rehearsal.measured import stepping
from meshdsl.rehearsal.simulate import Outcome
from meshdsl.train.watch.goodput import goodput

# Losses of a rehearsal by the names that the goodput of a run has for them.
_CAUSES = {"start": "start", "down": "down", "lost steps": "lost", "checkpoints": "checkpoint"}
_FINAL = (0, 2, EXIT_CODES["interrupted"])  # codes with which a run is not started again


def disturbed(launched: Launched, steps: int, trace: Trace) -> Outcome:
    """Run `meshdsl train` to its end, while SIGKILL meets its processes as the trace says.

    Args:
      launched: how it is launched, with a new folder.
      steps: of the run.

    Returns: what came of it, from its begin until its last checkpoint was complete, without the
      validation at its end. Its work is what its steps took, each once, the first one of a start
      like all others; its losses are those of its goodput.

    Raises:
      MeshDSLError: the run ends by a mistake that it explains.
    """
    began, faults = time.monotonic(), 0
    events = trace.events(1)
    event = next(events)
    while launched.newest() < steps:
        # A launcher gives up after two starts in a row that came no further; then another begins.
        with launched.started() as process:
            while launched.newest() < steps and process.poll() is None:
                if wait_until(process, began + event.seconds, lambda: launched.newest() >= steps):
                    faults += kill_one(process, event.chance, launched.processes)
                    event = next(events)
            ended = time.monotonic()
            if launched.newest() >= steps:
                process.wait()
        if process.returncode in _FINAL and launched.newest() < steps:
            raise MeshDSLError(f"--real: the run ended too early: {launched.last_line()}")
    # What the first step of a start takes longer than others belongs to the start.
    found, records = goodput(launched.folder.path), launched.metrics()
    others = [stepping(record) for record in records if "startup_seconds" not in record]
    work = fmean(others) * len(records)
    losses = {cause: found.losses[name] for cause, name in _CAUSES.items()}
    losses["start"] -= work - found.good
    return Outcome(ended - began - found.losses["validation"], work, losses, faults)
