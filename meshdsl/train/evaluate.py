"""What is measured on held-out data: the loss, and whatever else the family reports.

A mean is exact however the batches are split over devices, and however the last one is filled up:
its two parts are summed over the batches before they are divided, see `md.Average`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

import jax

import meshdsl as md
from meshdsl.family.calls import measured
from meshdsl.train.adapters import adapted
from meshdsl.train.data.device_batches import put_on_devices
from meshdsl.train.few_bits import in_few_bits
from meshdsl.train.job import Arrays, Job
from meshdsl.train.precision import cast


class Evaluator:
    """Measures a job's model under its layout.

    It computes in the dtypes and formats that the job's steps compute in, without dropout.
    """

    def __init__(self, job: Job):
        self._like = job.held_out
        precision, family = job.config.precision, job.config.model

        def sums(model: Any, batch: dict[str, md.Tensor], adapters: Any) -> dict[str, md.Average]:
            model = model if adapters is None else adapted(model, adapters)
            return measured(family, in_few_bits(model, job.formats), batch, job.how)

        lowered = md.lower(sums, job.layout, job.mesh, dims=job.dims)
        self._sums = jax.jit(
            lambda params, batch, adapters: lowered(
                cast(params, precision.compute), batch, cast(adapters, precision.compute)
            )
        )

    def measure(
        self, params: Any, datasets: Mapping[str, Iterable[Arrays]], adapters: Any = None
    ) -> dict[str, dict[str, float]]:
        """The means over each dataset of what the family measures: `loss` and its report.

        Args:
          params: the model, split as the job splits it.
          datasets: by name, batches like `job.held_out`: of each the rows that this process reads.
          adapters: what is trained beside the model, as the state has it.

        Returns:
          By the name of the dataset, means by name; NaN where nothing counts.
        """
        # All batches are sent to the devices before the first result is waited for.
        found = {
            name: [
                self._sums(params, put_on_devices(batch, self._like), adapters) for batch in batches
            ]
            for name, batches in datasets.items()
        }
        return {name: _means(sums) for name, sums in found.items()}


def _means(sums: list[dict[str, md.Average]]) -> dict[str, float]:
    names = sums[0] if sums else ("loss",)
    return {
        name: _mean([(each[name].total.item(), each[name].count.item()) for each in sums])
        for name in names
    }


def _mean(parts: list[tuple[float, float]]) -> float:
    count = math.fsum(count for _, count in parts)
    return math.fsum(total for total, _ in parts) / count if count else math.nan
