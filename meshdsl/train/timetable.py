"""When the workers of a run exchange what: the steps of a run, with the exchanges between them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from meshdsl.train.job import Job
from meshdsl.train.step import State


class Timetable:
    """Takes the steps of a run, and has its workers exchange fragments when these are due.

    What is due depends on the number of the step alone. So a run that is resumed goes on as if it
    had not ended, also while a fragment is on its way.
    """

    def __init__(self, job: Job):
        self._local, self._settings, self._steps = job.local, job.config.local, job.config.steps

    @property
    def untold(self) -> int:
        """The most steps in a row after which workers do not tell each other what they measured."""
        every, fragments = self._settings.every, self._settings.fragments
        return -(-every // fragments) + self._settings.delay if self._local else 0

    def tells(self, number: int) -> bool:
        """Whether what steps measured is told after step `number`.

        Workers do so where they wait for an exchange in any case.
        """
        return self._local is None or self._settings.due(number - self._settings.delay) is not None

    def step(
        self, step: Callable, state: State, batch: dict[str, Any], number: int
    ) -> tuple[State, Any]:
        """Take step `number`.

        Args:
          step: called with a state and a batch, gives the next state and what it measured.

        Returns:
          The state after the step and after the exchanges that end with it, and what `step` gives.
        """
        local, settings = self._local, self._settings
        if local is None:
            return step(state, batch)
        sent = settings.due(number - 1) if settings.delay else None
        if sent is None:
            state, measured = step(state, batch)
        else:
            state, measured = local.sending(state, batch, sent)
        # A run ends with an exchange of all fragments, after those on their way have arrived.
        ends, arrives = number == self._steps, number - settings.delay
        begun = range(arrives, number if ends else arrives + 1) if settings.delay else ()
        for fragment in self._due(begun):
            state = local.arrive(state, fragment)
        awaited = settings.every if ends else int(settings.delay == 0)
        for fragment in self._due(range(number, number + awaited)):
            state = local.exchange(state, fragment)
        return state, measured

    def _due(self, steps: Iterable[int]) -> list[int]:
        """The fragments that are due after these steps."""
        due = map(self._settings.due, steps)
        return [fragment for fragment in due if fragment is not None]
