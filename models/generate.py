"""Sampling from a language model with a key/value cache, under any layout."""

from __future__ import annotations

import jax
import jax.numpy as jnp

import meshdsl as md
from meshdsl.models.transformer import Transformer


def generate(model: Transformer, prompt: md.Tensor, count: int, key, temperature: float = 1.0) -> md.Tensor:
    """Continue each prompt by `count` tokens.

    Args:
      prompt: tokens (batch, prompt), int32.
      key: a JAX PRNG key; each position draws with a key of its own.
      temperature: the logits are divided by it; 0 takes the likeliest token.

    Returns:
      Prompt and continuation: tokens (batch, position), with `position` of `prompt.size + count`.

    Raises:
      MeshDSLError: the result would be longer than the model's length.
    """
    batch, given = prompt.dim("batch"), prompt.dim("prompt")
    position = md.Dim("position", given.size + count)
    if position.size > model.config.length:
        raise md.MeshDSLError(
            f"generate: {given.size} tokens of prompt and {count} more exceed the model's length={model.config.length}"
        )
    padded = md.rename(md.pad(prompt, given, after=count), "prompt", position)
    vocab = model.config.dims["vocab"]

    def step(carry, x):
        cache, last = carry
        token, index, key = x
        token = md.where(index < given.size, token, last)
        logits, cache = model.step(token, cache, index)
        logits = md.cast(logits, jnp.float32)
        if temperature:
            logits = logits / temperature + md.random.gumbel(key, (batch, vocab), like=logits)
        return (cache, md.argmax(logits, vocab)), token

    cache = model.empty_cache(batch, md.Dim("memory", position.size))
    start = md.tensor(jnp.zeros(batch.size, jnp.int32), (batch,))
    keys = jax.random.split(key, position.size)
    _, tokens = md.scan(step, (cache, start), (padded, md.iota(position), keys), dim=position)
    return md.transpose(tokens, (batch, position))
