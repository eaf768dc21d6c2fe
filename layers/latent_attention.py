"""Multi-head latent attention (DeepSeek-V2, 2024): keys and values that are made of few features.

What a position leaves for later ones is a `latent` of a few hundred features, from which the keys
and the values of all heads are made, and one key that rotary positions turn, which all heads share.

    attention = LatentAttention.init(key, d_model, heads, head_dim, latent, turned)
    y, cache = attention.prefill(x, rotary=rotary)   # as Attention, with a smaller cache
    y, cache = attention.step(x, cache, position, rotary)
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from flax import struct
from flax.struct import PyTreeNode

import meshdsl as md
from meshdsl.layers.attended import MASKED, Cache, Documents, Rotary, Window, attend
from meshdsl.layers.linear import Linear
from meshdsl.layers.norm import RMSNorm
from meshdsl.layers.rotary import rotate
from meshdsl.ops.checkpoint import QKV


class LatentAttention(PyTreeNode):
    """Causal attention of a sequence to itself, with a cache of latents.

    A head's query and key have two parts: `head_dim` features as they are, and as many as `turned`
    has that rotary positions turn. The key's first part and the value are made of the latent.

    Attributes:
      query_latent: from d_model to the features that queries are made of; None where that is
        d_model itself.
      query_norm: of these features; None where there are none.
      query: to heads and head_dim.
      query_turned: to heads and turned.
      latent: from d_model to the features that keys and values are made of.
      latent_norm: of these features.
      key_turned: from d_model to turned.
      key: from the latent to heads and head_dim.
      value: from the latent to heads and value_dim.
      out: from heads and value_dim to d_model.
      scale: of the products of queries and keys; None for one over the square root of the size of
        both parts together.
    """

    query_latent: Linear | None
    query_norm: RMSNorm | None
    query: Linear
    query_turned: Linear
    latent: Linear
    latent_norm: RMSNorm
    key_turned: Linear
    key: Linear
    value: Linear
    out: Linear
    scale: float | None = struct.field(pytree_node=False, default=None)

    @classmethod
    def init(
        cls,
        key,
        d_model: md.Dim,
        heads: md.Dim,
        head_dim: md.Dim,
        latent: md.Dim,
        turned: md.Dim,
        *,
        value_dim: md.Dim | None = None,
        query_latent: md.Dim | None = None,
        out_std: float | None = None,
        epsilon: float = 1e-6,
        scale: float | None = None,
    ):
        """Weights as those of `Linear`.

        Args:
          value_dim: the features of a value; by default as many as `head_dim` has.
          query_latent: the features that queries are made of; by default d_model.
          out_std: the standard deviation of the weights of `out`.
          epsilon: of the norms of the latents.
          scale: see the attributes.
        """
        keys = jax.random.split(key, 8)
        value_dim = md.Dim("value_dim", head_dim.size) if value_dim is None else value_dim
        below = d_model if query_latent is None else query_latent
        first = query_latent and Linear.init(keys[0], d_model, query_latent)
        return cls(
            query_latent=first or None,
            query_norm=query_latent and RMSNorm.init(query_latent, epsilon=epsilon),
            query=Linear.init(keys[1], below, (heads, head_dim)),
            query_turned=Linear.init(keys[2], below, (heads, turned)),
            latent=Linear.init(keys[3], d_model, latent),
            latent_norm=RMSNorm.init(latent, epsilon=epsilon),
            key_turned=Linear.init(keys[4], d_model, turned),
            key=Linear.init(keys[5], latent, (heads, head_dim)),
            value=Linear.init(keys[6], latent, (heads, value_dim)),
            out=Linear.init(keys[7], (heads, value_dim), d_model, std=out_std),
            scale=scale,
        )

    def __call__(self, x: md.Tensor, **how) -> md.Tensor:
        """What `prefill` gives first; `how` is as there."""
        return self.prefill(x, **how)[0]

    def prefill(
        self,
        x: md.Tensor,
        *,
        length: md.Dim | str = "length",
        memory: md.Dim | str = "memory",
        queries: md.Dim | str = "queries",
        rotary: Rotary | None = None,
        documents: Documents | None = None,
        causal: bool = True,
        window: Window | None = None,
    ) -> tuple[md.Tensor, Cache]:
        """Attention of a whole sequence to itself, and the latents for `step`.

        Args:
          x: has d_model, `length` and any other dims.
          length, memory, queries, documents, window: as for `Attention`.
          rotary: cosine and sine of the angles for the dim `turned`, see `angles`.
          causal: False for an encoder, whose positions see those after them too.

        Returns:
          The result, with the dims of `x`; and a cache whose `key` is the shared key, with memory
          and turned, and whose `value` is the latent, with memory and latent.
        """
        length = x.dim(length if isinstance(length, str) else length.name)
        memory = md.Dim(memory, length.size) if isinstance(memory, str) else memory
        queries = md.Dim(queries, length.size) if isinstance(queries, str) else queries
        query, query_turned = self._queries(x, rotary)
        # Where queries are split along the length, the latents are gathered, and not all keys.
        cache = self._remembered(x, rotary)
        cache = Cache(*(md.rename(t, length, memory) for t in (cache.key, cache.value)))
        key = _with_turned(self.key(cache.value), cache.key)
        query = md.rename(_with_turned(query, query_turned), length, queries)
        how = {"memory": memory, "queries": queries, "head_dim": key.dim("head_dim")}
        how |= {"documents": documents, "window": window, "causal": causal}
        found = attend(query, key, self.value(cache.value), scale=self.scale, **how)
        return self.out(md.rename(found, queries, length)), cache

    def step(
        self,
        x: md.Tensor,
        cache: Cache,
        position: md.Tensor,
        rotary: Rotary | None = None,
        layer: md.Tensor | None = None,
        window: Window | None = None,
        *,
        layers: str = "layers",
    ) -> tuple[md.Tensor, Cache]:
        """One position of each sequence: its latent joins the cache, to which it attends.

        No keys or values are made: the query goes to the latents by the weights of the keys, and
        what it finds there to the heads by those of the values (DeepSeek-V2, 2024, section 2.1.2).

        Args:
          x: dims batch, d_model.
          cache: what `prefill` gives, with room for the position.
          position, rotary, layer, window, layers: as for `Attention.step`.

        Returns:
          The result, with the dims of `x`, and the cache with the position.
        """
        query, turned = self._queries(x, rotary)
        new = self._remembered(x, rotary)
        of_layer = {} if layer is None else {layers: layer}
        cache = cache.written(new.key, new.value, {**of_layer, "memory": position})
        own = cache if layer is None else cache.of_layer(layer, layers)
        memory, narrow = own.value.dim("memory"), x.dtype
        (latent, heads, head_dim), value_dim = self.key.weight.dims, self.value.weight.dims[-1]
        others = [d for d in query.dims if d not in (heads, head_dim)]
        wide = {"preferred_element_type": jnp.float32}

        aimed = md.einsum(query, md.cast(self.key.weight, narrow), out=(*others, heads, latent))
        scores = md.einsum(aimed, own.value, out=(*others, heads, memory), **wide)
        scores = scores + md.einsum(turned, own.key, out=scores.dims, **wide)
        size = head_dim.size + own.key.dim("turned").size
        scores = scores * (size**-0.5 if self.scale is None else self.scale)
        seen = _seen(md.iota(memory), position, window)
        weights = md.softmax(md.where(md.broadcast(seen, scores.dims), scores, MASKED), memory)
        found = md.einsum(md.cast(weights, narrow), own.value, out=(*others, heads, latent))
        value = md.cast(self.value.weight, narrow)
        return self.out(md.einsum(found, value, out=(*others, heads, value_dim))), cache

    def _queries(self, x: md.Tensor, rotary: Rotary | None) -> tuple[md.Tensor, md.Tensor]:
        """The two parts of the queries of `x`."""
        if self.query_latent is not None and self.query_norm is not None:
            x = self.query_norm(self.query_latent(x))
        query, turned = self.query(x), _turned(self.query_turned(x), rotary)
        return md.checkpoint_name(query, QKV), md.checkpoint_name(turned, QKV)

    def _remembered(self, x: md.Tensor, rotary: Rotary | None) -> Cache:
        """What the positions of `x` leave for later ones."""
        turned, latent = _turned(self.key_turned(x), rotary), self.latent_norm(self.latent(x))
        return Cache(md.checkpoint_name(turned, QKV), md.checkpoint_name(latent, QKV))


def _turned(x: md.Tensor, rotary: Rotary | None) -> md.Tensor:
    return x if rotary is None else rotate(x, rotary, x.dim("turned"))


def _with_turned(x: md.Tensor, turned: md.Tensor) -> md.Tensor:
    """`x` with the turned features after its own ones, along head_dim."""
    turned = md.rename(turned, "turned", "head_dim")
    after = turned.dim("head_dim")
    dims = [after if d.name == after.name else d for d in x.dims]
    return md.concat([x, md.broadcast(turned, dims)], after.name)


def _seen(memory: md.Tensor, position: md.Tensor, window: Window | None) -> md.Tensor:
    """Which of the positions of the memory a query at `position` sees."""
    dims = (*position.dims, *memory.dims)
    memory, position = md.broadcast(memory, dims), md.broadcast(position, dims)
    seen = memory <= position
    if window is None:
        return seen
    near = seen & (position - memory < window.size)
    return near if window.holds is None else md.where(md.broadcast(window.holds, dims), near, seen)
