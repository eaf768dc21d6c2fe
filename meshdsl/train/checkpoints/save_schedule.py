"""When the next checkpoint is due, the same on all processes."""

from __future__ import annotations

import time

from meshdsl.hosts import first_does


class SaveSchedule:
    """Says after which steps to save: every so many steps, and every so many minutes.

    The clocks of hosts differ, so only that of process 0 counts. To ask it at each step would make
    hosts wait for each other. Instead, whenever it is asked, it also says at which later step to
    ask it again: from the pace so far, about halfway to the time that is left, and never further
    ahead than the number of steps that the pace was measured over. A run that goes back to an older
    step measures its pace anew.

    Args:
      every: steps between two checkpoints; 0: none by steps.
      minutes: between two checkpoints; 0: none by time.
    """

    def __init__(self, every: int = 0, minutes: float = 0.0):
        self._every, self._minutes = every, minutes
        self._last_due = time.monotonic()  # when a checkpoint was last due by time, or the start
        self._pace_from: tuple[int, float] | None = None  # a step, and when it had ended
        self._next_question = 0  # the step at which to ask process 0 again
        self._previous_step = -1  # of the previous call

    def due(self, step: int) -> bool:
        """Whether to save after `step`. Every process calls this after every step."""
        if step <= self._previous_step:
            self._pace_from, self._next_question = None, 0
        self._previous_step = step
        by_steps = bool(self._every) and step % self._every == 0
        return self._due_by_time(step) or by_steps

    def _due_by_time(self, step: int) -> bool:
        if not self._minutes or step < self._next_question:
            return False
        due, self._next_question = first_does(lambda: self._ask(step, time.monotonic()))
        return due

    def _ask(self, step: int, now: float) -> tuple[bool, int]:
        """On process 0: whether to save after `step`, and at which step to ask again."""
        if self._pace_from is None:
            self._pace_from = (step, now)
            return False, step + 1
        left = self._last_due + 60 * self._minutes - now
        if due := left <= 0:
            self._last_due, left = now, 60 * self._minutes
        first_step, first_time = self._pace_from
        steps = step - first_step
        seconds_per_step = (now - first_time) / steps
        return due, step + max(1, min(steps, int(left / 2 / max(seconds_per_step, 1e-6))))
