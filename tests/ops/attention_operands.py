"""Operands of attention for its tests, and what compares two of its kernels."""

import jax
import jax.numpy as jnp

import meshdsl as md
from tests.helpers import data, dims, integers, with_gradients

BATCH, HEADS, GROUP = dims(batch=4, heads=2, group=3)
RING = {"rule": "memory -> y", "move": "ring"}


def operands(rows=13, columns=13, features=16, of_values=None, dtype=jnp.float32):
    queries, memory, head_dim = dims(queries=rows, memory=columns, head_dim=features)
    of_values = head_dim if of_values is None else md.Dim("value_dim", of_values)
    return (
        data(BATCH, HEADS, GROUP, queries, head_dim, seed=1, dtype=dtype, low=-3, high=3),
        data(BATCH, HEADS, memory, head_dim, seed=2, dtype=dtype),
        data(BATCH, HEADS, memory, of_values, seed=3, dtype=dtype),
    )


def beside(name, q, k):
    """The Tensors of one argument of attention."""
    queries, memory = q.dim("queries"), k.dim("memory")
    if name == "bias":
        return data(HEADS, queries, memory, seed=4, low=-2, high=2)
    if name == "sinks":
        return data(HEADS, seed=5)
    if name == "segments":
        return integers(BATCH, queries, below=3, seed=6), integers(BATCH, memory, below=3, seed=7)
    return integers(BATCH, queries, below=9, seed=8), integers(BATCH, memory, below=9, seed=9)


def blocks_and(other, numbers, q, k, v, **how):
    """Results and gradients by blocks and by another implementation."""
    given = {**numbers}
    if given.pop("segments", False):
        given["segments"] = beside("segments", q, k)
    for name in ("blocks", other):
        fn = lambda q, k, v, name=name: md.attention(q, k, v, implementation=name, **given)
        yield jax.jit(with_gradients(fn, (q, k, v)))(q, k, v)
