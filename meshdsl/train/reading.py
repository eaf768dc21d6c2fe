"""What a run reads, through all of its phases, and where it is in its data."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from typing import Any

from meshdsl.train.data import task_of
from meshdsl.train.data.batches import Batches
from meshdsl.train.job import Arrays
from meshdsl.train.prepared import Prepared


class Reading:
    """The batches to train on, of each the rows that this process reads.

    Args:
      phases: of the run, by their numbers.
      now: the phase that is read for.

    Attributes:
      units_per_row: of the phase; units are what speed is counted in, such as tokens.
    """

    def __init__(self, phases: Mapping[int, Prepared], now: Prepared):
        self._phases = phases
        self._units = 0  # that were read before those of this mixture
        self._set(now)

    def __next__(self) -> Arrays:
        return next(self._batches)

    @property
    def position(self) -> dict[str, Any]:
        """Where the run is in its data, as JSON can hold it.

        With several phases also the number of the phase, and the units that were read so far.
        """
        more = {"phase": self._now.phase.number, "units": self.units}
        return {**self._batches.get_state(), **(more if len(self._phases) > 1 else {})}

    @property
    def units(self) -> int:
        """How many units were read."""
        return self._units + self._units_of_mixture

    def go_on(self, position: Mapping[str, Any]) -> None:
        """Go on after a position, which may be that of the end of an earlier phase.

        Raises:
          MeshDSLError: it is one in other data.
        """
        of = self._phases.get(position.get("phase", 1), self._now)
        if of is self._now:
            self._batches.set_state(position)
            self._units = position.get("units", self._units_of_mixture) - self._units_of_mixture
            return
        with closing(of.batches()) as before:
            before.set_state(position)
            self._go_on_after(before, position["units"])

    def enter(self, phase: Prepared) -> None:
        """Go on for another phase: each dataset where it was, see `Batches.go_on_after`."""
        units, before = self.units, self._batches
        self._set(phase)
        self._go_on_after(before, units)
        before.close()

    def close(self) -> None:
        """End the threads that read ahead."""
        self._batches.close()

    def _set(self, phase: Prepared) -> None:
        self._now, self._batches = phase, phase.batches()
        self.units_per_row = task_of(phase.job.config).units_per_row(phase.job.held_out)

    def _go_on_after(self, before: Batches, units: int) -> None:
        self._batches.go_on_after(before)
        self._units = units - self._units_of_mixture

    @property
    def _units_of_mixture(self) -> int:
        return self._batches.rows * self.units_per_row
