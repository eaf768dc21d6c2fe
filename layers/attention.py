"""Causal self-attention, multi-head or grouped-query.

It takes a whole sequence, or one position of it after another, with a cache of keys and values.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from flax import struct
from flax.struct import PyTreeNode

import meshdsl as md
from meshdsl.dims import without
from meshdsl.layers.linear import Linear
from meshdsl.layers.rotary import rotate

MASKED = -1e30  # finite, so that a row without any visible key has no NaN in its gradient


class Cache(PyTreeNode):
    """Keys and values of the positions so far; dims batch, memory, heads of keys, head_dim."""

    key: md.Tensor
    value: md.Tensor


class Documents(PyTreeNode):
    """Which document of its sequence each position belongs to, seen by queries and by keys; int32.

    Attributes:
      query: dims batch, length.
      key: the same, of dims batch, memory. It is moved as the keys are, once for all layers.
    """

    query: md.Tensor
    key: md.Tensor

    @classmethod
    def of(cls, segments: md.Tensor):
        return cls(segments, md.rename(segments, "length", "memory"))


class Attention(PyTreeNode):
    """Softmax attention (Vaswani et al., 2017).

    `heads` are the heads of keys and values. In grouped-query attention (Ainslie et al., 2023),
    `group` queries share each of them; queries then have both dims.
    """

    query: Linear
    key: Linear
    value: Linear
    out: Linear
    head_dim: md.Dim = struct.field(pytree_node=False)

    @classmethod
    def init(
        cls,
        key,
        d_model: md.Dim,
        heads: md.Dim,
        head_dim: md.Dim,
        group: md.Dim | None,
        *,
        bias: bool,
        out_std: float,
    ):
        q, k, v, o = jax.random.split(key, 4)
        queries = (heads, head_dim) if group is None else (heads, group, head_dim)
        return cls(
            query=Linear.init(q, (d_model,), queries, bias=bias),
            key=Linear.init(k, (d_model,), (heads, head_dim), bias=bias),
            value=Linear.init(v, (d_model,), (heads, head_dim), bias=bias),
            out=Linear.init(o, queries, (d_model,), bias=bias, std=out_std),
            head_dim=head_dim,
        )

    def __call__(
        self, x: md.Tensor, length: md.Dim, turn, documents: Documents | None = None
    ) -> tuple[md.Tensor, Cache]:
        """Every position of `length` attends to itself and to those before it.

        Args:
          x: dims batch, length, d_model.
          turn: cosine and sine of rotary angles, or None.
          documents: with it, positions attend to those of their own document only.

        Returns:
          The result, with the dims of `x`, and all keys and values.
        """
        memory = md.Dim("memory", length.size)
        query, key, value = self._project(x, turn)
        key, value = md.rename(key, length, memory), md.rename(value, length, memory)
        visible = md.broadcast(md.iota(length), (length, memory)) >= md.iota(memory)
        return self._attend(query, key, value, visible, memory, documents), Cache(key, value)

    def step(
        self, x: md.Tensor, cache: Cache, position: md.Tensor, turn
    ) -> tuple[md.Tensor, Cache]:
        """One position of each sequence: it joins the cache and attends to what is there.

        Args:
          x: dims batch, d_model.
          position: where it stands in its sequence (batch; int32).

        Returns:
          The result, with the dims of `x`, and the cache with the keys and values of the position.
        """
        memory = cache.key.dim("memory")
        query, key, value = self._project(x, turn)
        index = md.broadcast(md.iota(memory), (*position.dims, memory))
        here = index == position
        cache = Cache(md.where(here, key, cache.key), md.where(here, value, cache.value))
        return self._attend(query, cache.key, cache.value, index <= position, memory), cache

    def _project(self, x, turn):
        query, key, value = self.query(x), self.key(x), self.value(x)
        if turn is not None:
            query, key = rotate(query, turn, self.head_dim), rotate(key, turn, self.head_dim)
        return query, key, value

    def _attend(
        self, query, key, value, visible, memory, documents: Documents | None = None
    ) -> md.Tensor:
        scores = md.einsum(query, key, out=(*without(query.dims, (self.head_dim,)), memory))
        scores = md.cast(scores, jnp.float32) * self.head_dim.size**-0.5
        if documents is None:
            scores = md.where(visible, scores, MASKED)
        else:
            # One op, which is split as the scores are. A mask by itself would be split otherwise,
            # and moved.
            scores = md.map(_within, visible, documents.query, documents.key, scores, name="within")
        weights = md.softmax(scores, memory)
        return self.out(md.einsum(md.cast(weights, value.dtype), value, out=query.dims))


def _within(visible, of_query, of_key, scores):
    return jnp.where(visible & (of_query == of_key), scores, MASKED)
