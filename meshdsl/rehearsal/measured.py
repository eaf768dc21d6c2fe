"""What a run on this machine takes, from a short one that nothing disturbs."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean, median

from meshdsl.errors import MeshDSLError
from meshdsl.rehearsal.launched import Launched
from meshdsl.rehearsal.leg import Leg
from meshdsl.rehearsal.run import Restart, Run, Stretch
from meshdsl.train.folder import RunFolder
from meshdsl.train.watch.metrics_file import StepMetrics
from meshdsl.train.watch.step_timer import TRAINING

_LEAST = 12  # steps of each of the two starts
_SAVES = 3  # of each that its metrics have
_NOTICED = 0.15  # seconds until a launcher has seen that a process has died, and ended the others


def measured_run(words: Sequence[str], processes: int, folder: Path, steps: int, every: int) -> Run:
    """The run that `meshdsl train` with these words is, its times measured by a short one.

    It is started, ends after a few steps, is started once more and ends again.

    Args:
      folder: a new one, for the short run.
      steps: of the run.
      every: steps between two of its checkpoints.

    Raises:
      MeshDSLError: it does not end well; the error has what it said last.
    """
    launched = Launched(words, processes, RunFolder(folder))
    each = max(_LEAST, _SAVES * every + 2)
    first, writing = _ended(launched, each)
    begun = launched.metrics()
    _ended(launched, 2 * each)
    resumed = launched.metrics()[each:]
    # The first step of a start, and the one that begins while all is new, tell nothing of others.
    steady = [*begun[2:], *resumed[2:]]
    step = fmean(stepping(record) for record in steady)
    (first_one, *ones), (first_other, *others) = map(_saves, (begun, resumed))
    handover = fmean([*ones, *others])
    new = max(0.0, (first_one + first_other) / 2 - handover)
    alone = Leg(0, each, step, every, handover, writing, new=new)
    first_step = resumed[0]["startup_first_step_seconds"] - step
    return Run(
        stretches=(Stretch(steps, step),),
        handover=handover,
        write=writing,
        restore=resumed[0].get("startup_restore_seconds", 0.0),
        restart=Restart(
            detect=_NOTICED,
            replace=0.0,
            start=_starting(resumed[0]),
            compile=resumed[0].get("startup_compile_seconds", 0.0) + first_step,
            first=first - alone.seconds,
        ),
        new=new,
        hosts=processes,
    )


def _saves(records: Sequence[StepMetrics]) -> list[float]:
    """Seconds of each save of a start, but for that of its last step."""
    return list(filter(None, (record.get("checkpoint_seconds", 0.0) for record in records)))


def stepping(record: StepMetrics) -> float:
    """Seconds of a step alone, without its checkpoint say."""
    return sum(record.get(f"{what}_seconds", 0.0) for what in TRAINING)


def _starting(record: StepMetrics) -> float:
    """Seconds of a start until it reads the state."""
    parts = ("import", "join", "prepare", "data")
    return sum(record.get(f"startup_{part}_seconds", 0.0) for part in parts)


def _ended(launched: Launched, steps: int) -> tuple[float, float]:
    """Run until so many steps are done.

    Returns: how many seconds that took, and how many a checkpoint took to be written.
    """
    began, writings, since = time.monotonic(), [], None
    with launched.printed.open("a", encoding="utf-8") as printed:
        process = launched.start(printed, f"steps={steps}")
        while process.poll() is None:
            if launched.writes():
                since = since or time.monotonic()
            elif since:
                writings.append(time.monotonic() - since)
                since = None
            time.sleep(0.01)
    if process.returncode:
        said = launched.printed.read_text(encoding="utf-8").strip().splitlines()
        raise MeshDSLError(f"--real: the run ended with exit code {process.returncode}: {said[-1]}")
    return time.monotonic() - began, median(writings) if writings else 0.0
