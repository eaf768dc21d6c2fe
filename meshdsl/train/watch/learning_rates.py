"""The learning rate of each step, for its metrics."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import jax
import numpy as np

_BLOCK = 1024  # learning rates that are computed at once


class LearningRates:
    """Gives the learning rate of a step without waiting for the devices.

    A schedule is a JAX function. Called for one step on an accelerator it would wait behind the
    step that is running there. So rates are computed on the CPU of the host, _BLOCK steps at once.

    Args:
      schedule: from the number of a step, counted from 0, to its rate.
      step: the first one that will be asked for, counted from 1.
    """

    def __init__(self, schedule: Callable[[Any], Any], step: int):
        self._compute = jax.jit(lambda first: jax.vmap(schedule)(first + np.arange(_BLOCK)))
        self._block, self._rates = -1, np.zeros(0)
        self(step)

    def __call__(self, step: int) -> float:
        """The learning rate of `step`, counted from 1."""
        block, index = divmod(step - 1, _BLOCK)
        if block != self._block:
            with _on_cpu():
                self._block, self._rates = block, np.asarray(self._compute(block * _BLOCK))
        return float(self._rates[index])


def _on_cpu() -> AbstractContextManager[Any]:
    try:
        return jax.default_device(jax.local_devices(backend="cpu")[0])
    except RuntimeError:  # JAX_PLATFORMS leaves out the CPU
        return nullcontext()
