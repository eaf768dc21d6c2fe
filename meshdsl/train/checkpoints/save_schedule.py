"""When the next checkpoint is due, the same on all processes."""

from __future__ import annotations

import time

from meshdsl.hosts import first_does
from meshdsl.train.config import Checkpoint


class Clock:
    """Every so many steps, and every so many minutes.

    Clocks of hosts differ, so only that of process 0 counts, and to ask it at each step would make hosts wait for each other.
    Instead, whenever it is asked, it also says at which later step to ask again: from the pace so far, about halfway to the time
    that is left, and never further ahead than the steps that the pace was measured over. A run that goes back to an older step
    begins to measure anew.
    """

    def __init__(self, settings: Checkpoint):
        self._settings = settings
        self._begun = time.monotonic()  # when the last checkpoint was due by time
        self._first: tuple[int, float] | None = None  # the first step that was seen, and when
        self._ask = 0  # the step at which to ask again
        self._before = -1  # the step of the last call

    def due(self, step: int) -> bool:
        """Whether to save after `step`. Every process asks after every step."""
        if step <= self._before:
            self._first, self._ask = None, 0
        self._before = step
        by_steps = bool(self._settings.every) and step % self._settings.every == 0
        return self._by_time(step) or by_steps

    def _by_time(self, step: int) -> bool:
        if not self._settings.minutes or step < self._ask:
            return False
        due, self._ask = first_does(lambda: self._look(step, time.monotonic()))
        return due

    def _look(self, step: int, now: float) -> tuple[bool, int]:
        if self._first is None:
            self._first = (step, now)
            return False, step + 1
        left = self._begun + 60 * self._settings.minutes - now
        if due := left <= 0:
            self._begun, left = now, 60 * self._settings.minutes
        seen, pace = step - self._first[0], (now - self._first[1]) / (step - self._first[0])
        return due, step + max(1, min(seen, int(left / 2 / max(pace, 1e-6))))
