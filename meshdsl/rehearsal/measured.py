"""What a run on this machine takes, from a short one that nothing disturbs."""

from __future__ import annotations

import signal
import time
from collections.abc import Sequence
from statistics import fmean, median
from typing import NamedTuple

from meshdsl.errors import MeshDSLError
from meshdsl.rehearsal.launched import Launched, children
from meshdsl.rehearsal.run import Restart, Run, Stretch
from meshdsl.train.watch.metrics_file import StepMetrics
from meshdsl.train.watch.step_timer import TRAINING

_LEAST = 12  # steps of each of the two starts
_SAVES = 3  # of each
_NOTICED = 0.15  # seconds until a launcher has seen that a process has died, and ended the others


def measured_run(launched: Launched, steps: int, every: int) -> Run:
    """The run that these words of `meshdsl train` are, its times measured by a short one.

    It is started, told to end after a few steps, started once more and told to end again.

    Args:
      launched: how it is launched, with a new folder for the short run.
      steps: of the run.
      every: steps between two of its checkpoints.

    Raises:
      MeshDSLError: it has too few steps for that, or does not end well.
    """
    each = max(_LEAST, _SAVES * every) // every * every
    if steps < 4 * each:
        raise MeshDSLError(
            f"steps={steps}: to measure what steps and saves take, --real needs {4 * each} at least"
        )
    first = _started(launched, each)
    second = _started(launched, launched.newest() + each)
    records = launched.metrics()
    again = [i for i, record in enumerate(records) if "startup_seconds" in record][-1]
    begun, resumed = records[:again], records[again:]
    # The first step of a start, and the one that begins while all is new, tell nothing of others.
    step = fmean(stepping(record) for record in (*begun[2:], *resumed[2:]))
    (first_one, *ones), (first_other, *others) = map(_saves, (begun, resumed))
    handover = fmean([*ones, *others])
    start = resumed[0]
    return Run(
        stretches=(Stretch(steps, step),),
        handover=handover,
        write=median([*first.writings, *second.writings]),
        restore=start.get("startup_restore_seconds", 0.0),
        restart=Restart(
            detect=_NOTICED,
            replace=0.0,
            start=_starting(start),
            compile=start.get("startup_compile_seconds", 0.0)
            + start["startup_first_step_seconds"]
            - step,
            first=first.launching + begun[0]["startup_seconds"] - step,
        ),
        new=max(0.0, (first_one + first_other) / 2 - handover),
        hosts=launched.processes,
    )


def stepping(record: StepMetrics) -> float:
    """Seconds of a step alone, without its checkpoint say."""
    return sum(record.get(f"{what}_seconds", 0.0) for what in TRAINING)


def _saves(records: Sequence[StepMetrics]) -> list[float]:
    """Seconds of each save of a start, but for that of its last step."""
    return list(filter(None, (record.get("checkpoint_seconds", 0.0) for record in records)))


def _starting(record: StepMetrics) -> float:
    """Seconds of a start until it reads the state."""
    parts = ("import", "join", "prepare", "data")
    return sum(record.get(f"startup_{part}_seconds", 0.0) for part in parts)


class _Start(NamedTuple):
    """A start that was told to end.

    Attributes:
      launching: seconds until its processes were there.
      writings: seconds that each checkpoint was being written.
    """

    launching: float
    writings: list[float]


def _started(launched: Launched, until: int) -> _Start:
    """Start a run, and tell it to end as soon as the checkpoint of step `until` is complete."""
    began, launching, told = time.monotonic(), 0.0, False
    writings: list[float] = []
    since = None
    with launched.started() as process:
        while process.poll() is None:
            if not launching and children(process):
                launching = time.monotonic() - began
            if launched.writes():
                since = since or time.monotonic()
            elif since:
                writings.append(time.monotonic() - since)
                since = None
            if not told and launched.newest() >= until:
                process.send_signal(signal.SIGTERM)
                told = True
            time.sleep(0.01)
    if not told or not writings:
        raise MeshDSLError(f"--real: the run ended too early: {launched.last_line()}")
    return _Start(launching, writings)
