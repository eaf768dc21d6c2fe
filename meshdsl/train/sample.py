"""A sample of the text that a trained model writes."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

import meshdsl as md
from meshdsl.models.generate import generate
from meshdsl.models.transformer import Transformer
from meshdsl.train.job import Job


def sample_text(job: Job, model: Transformer) -> str:
    """What `model` writes after the configured prompt, the prompt included, under the layout of `job`."""
    settings, length = job.config.sample, job.config.model.length
    prompt = np.frombuffer(settings.prompt.encode(), np.uint8).astype(np.int32)[: length - 1]
    count = min(settings.bytes, length - len(prompt))
    rows = md.Dim("batch", job.mesh.size)  # equal rows, one per device, so that any split of the batch divides them
    tokens = md.tensor(jnp.tile(prompt, (rows.size, 1)), (rows, md.Dim("prompt", len(prompt))))

    def write(model: Transformer, tokens: md.Tensor, key: jax.Array) -> md.Tensor:
        return generate(model, tokens, count, key, settings.temperature)

    lowered = md.lower(write, job.layout, job.mesh, dims=job.dims)
    written = lowered(model, tokens, jax.random.key(job.config.seed))
    text = bytes(np.asarray(written.array[0], np.uint8)).decode("utf-8", errors="replace")
    return "".join(c if c.isprintable() or c in "\n\t" else "\ufffd" for c in text)  # a terminal may obey the others
