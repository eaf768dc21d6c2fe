"""Measures where the time of each step goes."""

from __future__ import annotations

import time

# What counts as training, for tokens per second: reading a batch, and the step itself. The rest,
# such as a checkpoint, is done between steps.
TRAINING = ("input", "step")


class StepTimer:
    """Measures the seconds from one lap to the next, and what the host spent them on.

    timer = StepTimer()
    with timer.spent("input"):
        batch = next(batches)
    step(batch)
    timer.lap()  # {"seconds": 3.0, "step_seconds": 2.0, "input_seconds": 1.0}
    """

    def __init__(self) -> None:
        self._spans: dict[str, _Span] = {}
        self._lap_began = time.perf_counter()

    def spent(self, what: str) -> _Span:
        """A context manager: the seconds inside it count as `what`."""
        if what not in self._spans:
            self._spans[what] = _Span()
        return self._spans[what]

    def lap(self) -> dict[str, float]:
        """End a lap and begin the next.

        Returns:
          `seconds`: of the lap; `WHAT_seconds`: of each context, 0 where it was not entered in this
          lap; `step_seconds`: outside of all contexts.
        """
        now = time.perf_counter()
        seconds, self._lap_began = now - self._lap_began, now
        spent = {f"{what}_seconds": span.take() for what, span in self._spans.items()}
        return {
            "seconds": seconds,
            "step_seconds": max(0.0, seconds - sum(spent.values())),
            **spent,
        }


class _Span:
    """A context manager that adds up the seconds inside it."""

    __slots__ = ("_began", "_seconds")

    def __init__(self) -> None:
        self._seconds = 0.0

    def take(self) -> float:
        """The seconds since the last call."""
        seconds, self._seconds = self._seconds, 0.0
        return seconds

    def __enter__(self) -> None:
        self._began = time.perf_counter()

    def __exit__(self, *error: object) -> None:
        self._seconds += time.perf_counter() - self._began
