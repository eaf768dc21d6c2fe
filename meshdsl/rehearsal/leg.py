"""Steps and saves while nothing happens, in closed form.

    |--- every steps ---|h|--- every steps ---|h|--- every steps ...
                          |-- write --|         |-- write --|

A save takes `h` seconds from the steps, and is complete `write` seconds later. The next one waits
for that where it must.
"""

from __future__ import annotations

from math import floor

_EPSILON = 1e-9


class Leg:
    """Steps after `start` until `end`.

    Attributes:
      seconds: how long they take.
      writing: the step of a checkpoint that is not complete then, and when it will be, counted from
        the begin of the leg; None where there is none.

    Args:
      start, end: steps that are done before and after it.
      step: seconds of one step.
      every: a save comes after each step that this divides; and after `end` if it is the `last`.
      handover: seconds that a save takes from the steps.
      write: seconds from then until it is complete.
      last: whether the run ends with it, when the save is complete.
      new: seconds that the first save takes from the steps beside `handover`.
    """

    def __init__(
        self,
        start: int,
        end: int,
        step: float,
        every: int,
        handover: float,
        write: float,
        last: bool = True,
        new: float = 0.0,
    ):
        self.start, self.end, self.step, self.every = start, end, step, every
        self._handover, self._after = handover, handover + write
        self._cycle = handover + max(every * step, write)
        # The step of the first save, when it begins, and how many come before the last step.
        self._first = (start // every + 1) * every
        self._begins = (self._first - start) * step
        self._saves = max(0, -(-(end - self._first) // every))
        reached, newest = (end - start) * step, None
        if self._saves:
            saved = self._first + (self._saves - 1) * every
            begins = self._begins + (self._saves - 1) * self._cycle
            reached, newest = begins + handover + (end - saved) * step, (saved, begins)
        self.seconds, self._end_begins = reached, None
        if last or end % every == 0:
            free = newest[1] + self._after if newest else 0.0
            self._end_begins = max(reached, free)
            newest = end, self._end_begins
            self.seconds = self._end_begins + (self._after if last else handover)
        self.writing: tuple[int, float] | None = None
        self._new = new if newest else 0.0
        self._first_begins = self._begins if self._saves else reached
        if newest and newest[1] + self._after > self.seconds:
            self.writing = newest[0], newest[1] + self._after + self._new
        self.seconds += self._new

    def done(self, seconds: float) -> float:
        """How many steps are done after so many seconds, those before `start` among them.

        What is left of the seconds is the time of saves.
        """
        # As in a leg whose first save is like all others.
        seconds = max(min(seconds, self._first_begins), seconds - self._new)
        if seconds <= self._begins or not self._saves:
            return min(self.start + seconds / self.step, self.end)
        save = min(floor((seconds - self._begins) / self._cycle + _EPSILON), self._saves - 1)
        since = seconds - self._begins - save * self._cycle - self._handover
        steps = min(max(0.0, since / self.step), self.every)
        return min(self._first + save * self.every + steps, self.end)

    def saved(self, seconds: float) -> int | None:
        """The step of the newest checkpoint of this leg that is complete; None without one."""
        complete = seconds - self._new - self._after + _EPSILON
        if self._end_begins is not None and complete >= self._end_begins:
            return self.end
        if not self._saves or complete < self._begins:
            return None
        number = floor((complete - self._begins) / self._cycle + _EPSILON)
        return self._first + min(number, self._saves - 1) * self.every
