"""The loss on held-out text: the mean over every target of a dataset.

It is exact however the batches are split over devices, and however the last one is filled up.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

import jax
import jax.numpy as jnp

import meshdsl as md
from meshdsl.models.transformer import Transformer
from meshdsl.train.data.device_batches import put_on_devices
from meshdsl.train.job import Arrays, Job
from meshdsl.train.precision import cast


class Evaluator:
    """Measures losses of a job's model under its layout.

    They are computed in the dtypes that the job's steps compute in, and without dropout.
    """

    def __init__(self, job: Job):
        self._like = job.held_out
        precision = job.config.precision

        def sums(model: Transformer, batch: dict[str, md.Tensor]) -> tuple[md.Tensor, md.Tensor]:
            nats = model.nats(**batch, output=precision.output)
            return md.sum(nats), md.sum(md.cast(batch["targets"] >= 0, jnp.int32))

        lowered = md.lower(sums, job.layout, job.mesh, dims=job.dims)
        self._sums = jax.jit(lambda params, batch: lowered(cast(params, precision.compute), batch))

    def losses(self, params: Any, datasets: Mapping[str, Iterable[Arrays]]) -> dict[str, float]:
        """The mean cross-entropy of each dataset in nats per token.

        Args:
          params: the model, split as the job splits it.
          datasets: by name, batches like `job.held_out`: of each the rows that this process reads.
            A target of -1 does not count.

        Returns:
          The loss by the name of the dataset; NaN for a dataset without any target.
        """
        # All batches are sent to the devices before the first result is waited for.
        found = {
            name: [self._sums(params, put_on_devices(batch, self._like)) for batch in batches]
            for name, batches in datasets.items()
        }
        return {
            name: _mean([(float(nats.array), int(count.array)) for nats, count in sums])
            for name, sums in found.items()
        }


def _mean(sums: list[tuple[float, int]]) -> float:
    count = sum(count for _, count in sums)
    return math.fsum(nats for nats, _ in sums) / count if count else math.nan
