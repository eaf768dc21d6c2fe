"""The phases of a run, all checked and ready to be trained, also those that are added later."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import jax

from meshdsl.train.config import Config
from meshdsl.train.phases import Relayout, phase_after, phases_of
from meshdsl.train.prepared import Prepared, prepare


@dataclass
class Plan:
    """What a run trains, and after which step what changes.

    Attributes:
      config: the settings of the whole run.
      devices: of all its phases.
      print_line: says what takes long.
      relayouts: what was changed while the run went on, in the order of steps.
      phases: by their numbers, which count from 1.

    Raises:
      MeshDSLError: a layout does not fit the devices or the model, or the state of a phase is not
        that of the phase before it.
    """

    config: Config
    # JAX's types declare the class jax.Device as a variable.
    devices: list[jax.Device]  # pyright: ignore[reportInvalidTypeForm]
    print_line: Callable[[str], Any]
    relayouts: list[Relayout] = field(default_factory=list)
    phases: dict[int, Prepared] = field(init=False)

    def __post_init__(self) -> None:
        phases = phases_of(self.config, self.relayouts)
        self.phases = prepare(phases, self.devices, self.print_line)

    def after(self, done: int) -> Prepared:
        """The phase of the step after `done` steps; the last one after the last step."""
        phases = [each.phase for each in self.phases.values()]
        return self.phases[phase_after(phases, done).number]

    def changed(self, now: Prepared, table: Mapping[str, Any]) -> list[Prepared]:
        """The phases that would follow on one that ends because its settings change.

        It may be called in a thread.

        Args:
          table: what changes.

        Raises:
          MeshDSLError: what changes does not fit.
        """
        at = now.phase.number
        phases = phases_of(self.config, [*self.relayouts, (now.phase.before, table)])[at - 1 :]
        later = [replace(each, number=each.number + 1, count=each.count + 1) for each in phases]
        return list(prepare(later, self.devices, self.print_line, after=now).values())

    def change(self, step: int, table: Mapping[str, Any], later: list[Prepared]) -> None:
        """From the step after `step` on a run has other settings; it has come no further yet.

        Args:
          later: what `changed` gave for the phase of that step.
        """
        self.relayouts = [*self.relayouts, (step, table)]
        phases = phases_of(self.config, self.relayouts)
        kept = [self.phases[number] for number in range(1, len(phases) - len(later) + 1)]
        for phase, prepared in zip(phases, [*kept, *later], strict=True):
            prepared.phase = phase
            self.phases[phase.number] = prepared
