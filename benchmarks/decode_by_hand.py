"""A step of decoding of a Llama as plain JAX, on one device, to compare `benchmarks.decode` with.

The cache (layers, batch, kv_heads, memory, head_dim) is carried through the scan over layers, and
each row's position is written in place, in one of the ways of `WRITES`. Operation by operation it
computes what meshdsl does.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import lax

from meshdsl.models.transformer import Config, Transformer

from .llama import rotate
from .model import rms_norm

MASKED = -1e30


def parameters(model: Transformer) -> dict:
    """The arrays of a model on one device; those of the blocks are stacked over the layers."""
    layer = model.blocks.layer
    assert model.head is not None
    stacked = {
        "attention_norm": layer.attention_norm.scale,
        "q": layer.attention.query.weight,
        "k": layer.attention.key.weight,
        "v": layer.attention.value.weight,
        "o": layer.attention.out.weight,
        "mlp_norm": layer.mlp_norm.scale,
        "gate": layer.mlp.gate.weight,
        "up": layer.mlp.up.weight,
        "down": layer.mlp.down.weight,
    }
    outside = {
        "embedding": model.embedding.table,
        "norm": model.norm.scale,
        "head": model.head.weight,
    }
    arrays = lambda tensors: {name: t.array for name, t in tensors.items()}
    return {"blocks": arrays(stacked), **arrays(outside)}


def empty_cache(config: Config, rows: int) -> tuple[jax.Array, jax.Array]:
    d = {name: dim.size for name, dim in config.dims.items()}
    shape = (d["layers"], rows, d["kv_heads"], d["memory"], d["head_dim"])
    return jnp.zeros(shape), jnp.zeros(shape)


def make_step(config: Config, write: Callable):
    """`step(parameters, cache, (tokens, positions))`: the cache, and the tokens and positions."""
    half = config.dims["head_dim"].size // 2
    frequency = jnp.exp(
        jnp.arange(half, dtype=jnp.float32) * (-math.log(config.rotary_base) / half)
    )

    def step(w: dict, cache, rest):
        tokens, positions = rest
        turn = (positions[:, None] * frequency)[:, None, :]
        turn = jnp.cos(turn), jnp.sin(turn)
        x = jnp.take(w["embedding"], tokens, axis=0)
        visible = jnp.arange(config.length) <= positions[:, None]

        def block(carry, both):
            x, keys, values = carry
            number, w = both
            h = rms_norm(x, w["attention_norm"], config.norm_epsilon)
            q = jnp.einsum("bd,dkgh->bkgh", h, w["q"])
            k, v = (jnp.einsum("bd,dkh->bkh", h, w[name]) for name in "kv")
            q, k = rotate(q.reshape(*k.shape[:1], -1, k.shape[-1]), turn), rotate(k, turn)
            keys, values = write(keys, k, number, positions), write(values, v, number, positions)
            own = [lax.dynamic_index_in_dim(c, number, 0, False) for c in (keys, values)]
            q = q.reshape(*k.shape[:2], -1, k.shape[-1])
            scores = jnp.einsum("bkgh,bkmh->bkgm", q, own[0]) * k.shape[-1] ** -0.5
            weights = jax.nn.softmax(jnp.where(visible[:, None, None], scores, MASKED))
            x = x + jnp.einsum(
                "bkgh,kghd->bd", jnp.einsum("bkgm,bkmh->bkgh", weights, own[1]), w["o"]
            )
            h = rms_norm(x, w["mlp_norm"], config.norm_epsilon)
            hidden = jax.nn.silu(h @ w["gate"]) * (h @ w["up"])
            return (x + hidden @ w["down"], keys, values), None

        numbers = jnp.arange(config.layers)
        (x, *cache), _ = lax.scan(block, (x, *cache), (numbers, w["blocks"]))
        logits = rms_norm(x, w["norm"], config.norm_epsilon) @ w["head"]
        return tuple(cache), (jnp.argmax(logits, -1).astype(jnp.int32), positions + 1)

    return step


def _by_slices(cache, new, number, positions):
    """`cache` with `new` (batch, kv_heads, head_dim) at each row's position of one layer."""
    for row in range(new.shape[0]):
        at = (number, row, 0, positions[row], 0)
        cache = lax.dynamic_update_slice(cache, new[row][None, None, :, None], at)
    return cache


def _by_scatter(cache, new, number, positions):
    rows, heads = jnp.arange(new.shape[0])[:, None], jnp.arange(new.shape[1])
    written = cache.at[number, rows, heads, positions[:, None]]
    return written.set(new, mode="promise_in_bounds", unique_indices=True)


WRITES = {"dynamic_update_slice": _by_slices, "scatter": _by_scatter}
