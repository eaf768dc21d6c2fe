"""What has to be known of a run to make figures of its steps: tokens, FLOPs, devices, learning rates."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

_BLOCK = 1024  # learning rates that are computed at once


@dataclass(frozen=True)
class Facts:
    """What is the same in every step of a run.

    Attributes:
      tokens: how many a step trains on, all devices together.
      flops: of the model in one step, causal attention counted half and in full: `models.sizes.step_flops`.
      peak_flops: FLOP/s of one device, dense in bfloat16; None where that is not known, as on a CPU.
      devices: of the whole mesh, all processes together.
      learning_rate: the schedule: from the number of a step, counted from 0, to a rate.
      bytes_per_token: of the text that is trained on; None where that is not known.
      before: tokens of earlier steps, beyond `tokens` for each: not 0 where batches had another size.
    """

    tokens: int
    flops: tuple[float, float]
    peak_flops: float | None
    devices: int
    learning_rate: Callable[[Any], Any]
    bytes_per_token: float | None = None
    before: int = 0


class Rates:
    """The learning rate of each step.

    A schedule is a JAX function. Called for one step on an accelerator it would wait in line behind the step that runs there, so
    rates are computed on the host's CPU, some hundreds of steps at once.

    Args:
      step: the first that will be asked for, counted from 1.
    """

    def __init__(self, schedule: Callable[[Any], Any], step: int):
        self._block = jax.jit(lambda first: jax.vmap(schedule)(first + np.arange(_BLOCK)))
        self._first, self._rates = -1, np.zeros(0)
        self(step)

    def __call__(self, step: int) -> float:
        """Of `step`, counted from 1."""
        first, at = divmod(step - 1, _BLOCK)
        if first != self._first:
            with _on_host():
                self._first, self._rates = first, np.asarray(self._block(first * _BLOCK))
        return float(self._rates[at])


def _on_host():
    try:
        return jax.default_device(jax.local_devices(backend="cpu")[0])
    except RuntimeError:  # JAX_PLATFORMS leaves the CPU out
        return nullcontext()
