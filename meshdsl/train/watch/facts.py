"""The facts about a run that its metrics are computed from."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Facts:
    """What is the same in every step of a run.

    Attributes:
      unit: what speed is counted in: `token`, `image`, `pair` or `example`.
      units: how many of these a step trains on, on all devices together.
      flops: FLOPs of the model in one step, with causal attention counted half and in full; see
        `md.Family.step_flops`. None where no peak is known.
      peak_flops: FLOP/s of one device, dense in bfloat16; None where that is unknown, as on a CPU.
      devices: how many the mesh has, on all processes together.
      learning_rate: the schedule, from the number of a step, counted from 0, to its rate.
      bytes_per_token: of the text that is trained on; None where that is unknown.
      before: by how much the units of earlier steps are more than `units` for each step; not 0
        where batches had another size.
    """

    unit: str
    units: int
    flops: tuple[float, float] | None
    peak_flops: float | None
    devices: int
    learning_rate: Callable[[Any], Any]
    bytes_per_token: float | None = None
    before: int = 0
