"""The settings of workers that train apart, the group `local` of `meshdsl.train.config`."""

from __future__ import annotations

from dataclasses import dataclass, field

from meshdsl.fields import bounded


@dataclass(frozen=True)
class Outer:
    """The optimizer of the exchange between workers, of which the gradient is how far they moved.

    Attributes:
      name: which optimizer, as `optimizer.name`; `sgd` is with Nesterov momentum of 0.9.
      settings: of that optimizer, as arguments of its function: `momentum = 0.8`.
      learning_rate: the same at every exchange.
    """

    name: str = "sgd"
    settings: dict = field(default_factory=dict)
    learning_rate: float = bounded(0.7, above=0.0)


@dataclass(frozen=True)
class Local:
    """Workers that train apart and exchange what they learned now and then (DiLoCo).

    Attributes:
      workers: how many; each has its own copy of what is trained, and an equal part of each batch.
        0: there are none, and gradients are summed in every step.
      every: steps between two exchanges. There is one after the last step of a run in any case.
    """

    workers: int = bounded(0, least=0)
    every: int = bounded(100, least=1)
    outer: Outer = field(default_factory=Outer)

    def due(self, step: int, steps: int) -> bool:
        """Whether the workers exchange after `step` of a run of `steps`."""
        return bool(self.workers) and (step % self.every == 0 or step == steps)
