"""Attention as two einsums and a softmax, whose scores stand in memory: what `md.attention` is not.

A reference for tests, and the row "einsums" of `benchmarks.peers`.
"""

from __future__ import annotations

import jax.numpy as jnp

import meshdsl as md

HIDDEN = -1e30


def attention(
    query,
    key,
    value,
    *,
    queries="queries",
    memory="memory",
    head_dim="head_dim",
    causal=False,
    segments=None,
    positions=(None, None),
    bias=None,
):
    """As `md.attention`, for what the layers ask of it."""
    memory, head_dim = _dim(key, memory), _dim(key, head_dim)
    scores = md.einsum(query, key, out=(..., memory), contract=head_dim)
    scores = md.cast(scores, jnp.float32) * head_dim.size**-0.5
    if causal:
        rows = md.iota(_dim(query, queries)) if positions[0] is None else positions[0]
        columns = md.iota(memory) if positions[1] is None else positions[1]
        visible = md.broadcast(rows, (*rows.dims, memory)) >= columns
        scores = md.where(visible, scores, HIDDEN)
    if segments is not None:
        same = lambda of_query, of_key, s: jnp.where(of_query == of_key, s, HIDDEN)
        scores = md.map(same, *segments, scores, name="within")
    if bias is not None:
        scores = scores + bias
    weights = md.cast(md.softmax(scores, memory), value.dtype)
    return md.einsum(weights, value, out=(..., head_dim), contract=memory)


def _dim(x: md.Tensor, dim) -> md.Dim:
    return x.dim(dim) if isinstance(dim, str) else dim
