"""A model whose loss says which rows a step had: the mean of a number that each row has."""

from dataclasses import dataclass

import jax.numpy as jnp
import numpy as np

import meshdsl as md

ROWS = 24 * 60  # one epoch of as many steps as the run has


@dataclass(frozen=True)
class Ids(md.Family):
    """The loss is the mean of the rows' numbers. The parameter has no part in it."""

    task = "examples"

    def batch(self, rows):
        return {"number": md.abstract((rows,), jnp.float32)}

    def init(self, key):
        d_model = md.Dim("d_model", 24)
        return {"weight": md.normal(key, (d_model,), ins=d_model)}

    def loss(self, model, batch, key):
        return md.mean(batch["number"]) + 0 * md.sum(model["weight"])


def numbered(subset):
    """For each id a number of its own."""
    numbers = np.random.default_rng(0 if subset == "train" else 1).uniform(0, 1000, ROWS)
    return [{"number": np.float32(number)} for number in numbers]
