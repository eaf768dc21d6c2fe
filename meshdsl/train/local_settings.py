"""The settings of workers that train apart, the group `local` of `meshdsl.train.config`."""

from __future__ import annotations

from dataclasses import dataclass, field

from meshdsl.errors import MeshDSLError
from meshdsl.fields import bounded

WIDE = "float32"  # the wire of an exchange that is exact


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
      fragments: in how many parts the model is exchanged, each every `every` steps, at times that
        lie evenly between.
      delay: steps that an exchange may take. It runs beside the first of them, and arrives after
        the last. 0: all workers wait for it.
      own: the share of its own parameters that a worker keeps when an exchange arrives late; the
        rest is of the outer ones.
      wire: how what an exchange sums travels between slices: `float32`, or in few bits, as `int8`,
        `fp8`, `bfloat16`, or what `md.register_wire` added.
    """

    workers: int = bounded(0, least=0)
    every: int = bounded(100, least=1)
    outer: Outer = field(default_factory=Outer)
    fragments: int = bounded(1, least=1)
    delay: int = bounded(0, least=0)
    own: float = bounded(0.5, least=0.0, below=1.0)
    wire: str = WIDE

    def __post_init__(self) -> None:
        if self.fragments > self.every:
            raise MeshDSLError(
                f"local.fragments={self.fragments}: more than local.every={self.every}; there is "
                "one exchange after a step"
            )
        if self.delay > self.every:
            raise MeshDSLError(
                f"local.delay={self.delay}: longer than local.every={self.every}, so a fragment "
                "would be sent again before it has arrived"
            )

    def due(self, step: int) -> int | None:
        """The number of the fragment that is exchanged after `step`; None: there is none."""
        for fragment in range(self.fragments):
            if step > 0 and (step - fragment * self.every // self.fragments) % self.every == 0:
                return fragment
        return None
