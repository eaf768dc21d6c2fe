"""A real run on this machine meets a drawn trace of faults, and what it came to is told."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

from meshdsl.errors import MeshDSLError
from meshdsl.rehearsal.faults import Trace
from meshdsl.rehearsal.launched import Launched, kill_one, wait_until
from meshdsl.rehearsal.measured import stepping
from meshdsl.rehearsal.simulate import Outcome
from meshdsl.train.folder import RunFolder


def disturbed(words: Sequence[str], processes: int, folder: Path, trace: Trace) -> Outcome:
    """Run `meshdsl train` to its end, while SIGKILL meets its processes as the trace says.

    Where the launcher gives up, after two starts in a row that came no further, it is started
    again.

    Args:
      folder: of the run, a new one.

    Returns: what came of it. Its work is what its steps took, each once; of the losses only those
      are told that its metrics have.

    Raises:
      MeshDSLError: the run ends by a mistake that it explains.
    """
    launched = Launched(words, processes, RunFolder(folder))
    events = trace.events(1)
    faults, began = 0, time.monotonic()
    with launched.printed.open("a", encoding="utf-8") as printed:
        process = launched.start(printed)
        for event in events:
            wait_until(process, began + event.seconds)
            if process.poll() not in (None, 0, 2):
                process = launched.start(printed)
            if not kill_one(process, event.chance, processes):
                break
            faults += 1
        process.wait()
    seconds = time.monotonic() - began
    if process.returncode:
        said = launched.printed.read_text(encoding="utf-8").strip().splitlines()
        raise MeshDSLError(f"--real: the run ended with exit code {process.returncode}: {said[-1]}")
    records = launched.metrics()
    saving = sum(record.get("checkpoint_seconds", 0.0) for record in records)
    work = sum(map(stepping, records))
    return Outcome(seconds, work, {"checkpoints": saving}, faults)
