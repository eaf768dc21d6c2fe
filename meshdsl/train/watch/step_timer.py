"""Measures where the time of each step goes."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

# What counts as training, for tokens per second: reading a batch, and the step itself. The rest,
# such as a checkpoint, is done between steps.
TRAINING = ("input", "step")
# A host that waits for the devices for less than this part of a step comes so late with the next
# one that they have nothing to do.
IDLE = 0.01
# What is done between steps.
BESIDE = ("checkpoint", "copy", "validation", "phase", "profile", "repeat")
_METRICS = tuple((what, f"{what}_seconds") for what in (*TRAINING, *BESIDE))


class StepTimer:
    """Measures the seconds from one lap to the next, and what the host spent them on.

    timer = StepTimer()
    with timer.spent("input"):
        batch = next(batches)
    step(batch)
    timer.lap()  # {"seconds": 3.0, "step_seconds": 2.0, "input_seconds": 1.0}
    """

    def __init__(self) -> None:
        self._spent: dict[str, float] = {}
        self._lap_began = time.perf_counter()

    @contextmanager
    def spent(self, what: str) -> Iterator[None]:
        """A context manager: the seconds inside it count as `what`."""
        began = time.perf_counter()
        try:
            yield
        finally:
            seconds = time.perf_counter() - began
            self._spent[what] = self._spent.get(what, 0.0) + seconds

    def lap(self) -> dict[str, float]:
        """End a lap and begin the next.

        Returns:
          `seconds`: of the lap; `WHAT_seconds`: of each context, 0 where it was not entered in this
          lap; `step_seconds`: outside of all contexts.
        """
        now = time.perf_counter()
        seconds, self._lap_began = now - self._lap_began, now
        spent, self._spent = self._spent, dict.fromkeys(self._spent, 0.0)
        return {
            "seconds": seconds,
            "step_seconds": max(0.0, seconds - sum(spent.values())),
            **{f"{what}_seconds": each for what, each in spent.items()},
        }


def parts(metrics: Mapping[str, float]) -> dict[str, float]:
    """The seconds of a lap by what they went into: of TRAINING, and of BESIDE.

    The first step of a start has none: all of its time belongs to the start.
    """
    if "startup_seconds" in metrics:
        return {}
    every = ((what, metrics.get(name)) for what, name in _METRICS)
    return {what: seconds for what, seconds in every if seconds and seconds > 0}
