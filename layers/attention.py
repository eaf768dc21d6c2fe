"""Attention, multi-head or grouped-query: to a sequence itself, or to another one.

Inside of attention the length of a sequence has two names: `queries`, as what attends, and
`memory`, as what is attended to. So a layout may split them apart, and otherwise than the `length`
outside.

    y = attention(x)                                # each position sees all: an encoder
    y = attention(x, causal=True)                   # each sees those up to itself: a decoder
    y = attention(x, source, memory="pixels")       # each sees all of `pixels`, of another tensor
    y, cache = attention.prefill(x)                 # as a decoder, with keys and values to go on
    y, cache = attention.step(x, cache, position)   # one position more
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import jax
from flax import struct
from flax.struct import PyTreeNode

import meshdsl as md
from meshdsl.errors import nearest
from meshdsl.layers.attended import Cache, Documents, Rotary, Window, attend
from meshdsl.layers.linear import Linear
from meshdsl.layers.norm import Norm
from meshdsl.layers.rotary import rotate
from meshdsl.ops.checkpoint import QKV


class Attention(PyTreeNode):
    """Softmax attention (Vaswani et al., 2017).

    `heads` are the heads of keys and values. In grouped-query attention (Ainslie et al., 2023),
    `group` queries share each of them; queries then have both dims.

        attention = Attention.init(key, d_model, heads, head_dim)
        attention(x)   # [batch, length, d_model] -> the same

    Attributes:
      query: from d_model to heads, group (where there is one) and head_dim.
      key: from the features of the source, which are d_model by default, to heads and head_dim.
      value: as `key`.
      out: from heads, group and head_dim to d_model.
      query_norm: of the queries before they are turned, over head_dim or over the heads too; None
        for none.
      key_norm: the same of the keys.
      scale: of the products of queries and keys; None for one over the square root of head_dim.
      softcap: scores are bounded to it by a tanh; None for unbounded ones.
      sinks: one more score for each head, without a value, so that a head may attend to nothing
        (Xiao et al., 2023; gpt-oss); the dims heads and group. None for none.
    """

    query: Linear
    key: Linear
    value: Linear
    out: Linear
    head_dim: md.Dim = struct.field(pytree_node=False)
    query_norm: Norm | None = None
    key_norm: Norm | None = None
    scale: float | None = struct.field(pytree_node=False, default=None)
    softcap: float | None = struct.field(pytree_node=False, default=None)
    sinks: md.Tensor | None = None

    @classmethod
    def init(
        cls,
        key,
        d_model: md.Dim,
        heads: md.Dim,
        head_dim: md.Dim,
        group: md.Dim | None = None,
        *,
        d_source: md.Dim | None = None,
        bias: bool | Iterable[str] = False,
        out_std: float | None = None,
        query_norm: Norm | None = None,
        key_norm: Norm | None = None,
        scale: float | None = None,
        softcap: float | None = None,
        sinks: bool = False,
    ):
        """Weights as those of `Linear`.

        Args:
          d_source: the features of another tensor that is attended to, where they are not d_model.
          bias: whether there are biases, or the names of those that have one, of `query`, `key`,
            `value` and `out`.
          out_std: the standard deviation of the weights of `out`.
          query_norm, key_norm, scale, softcap: see the attributes.
          sinks: whether there are sinks, which begin with zeros.
        """
        q, k, v, o = jax.random.split(key, 4)
        queries = (heads, head_dim) if group is None else (heads, group, head_dim)
        source = d_model if d_source is None else d_source
        if isinstance(bias, bool):
            bias = ("query", "key", "value", "out") if bias else ()
        biased = tuple(bias)
        return cls(
            query=Linear.init(q, d_model, queries, bias="query" in biased),
            key=Linear.init(k, source, (heads, head_dim), bias="key" in biased),
            value=Linear.init(v, source, (heads, head_dim), bias="value" in biased),
            out=Linear.init(o, queries, d_model, bias="out" in biased, std=out_std),
            head_dim=head_dim,
            query_norm=query_norm,
            key_norm=key_norm,
            scale=scale,
            softcap=softcap,
            sinks=md.zeros(queries[:-1]) if sinks else None,
        )

    def __call__(
        self,
        x: md.Tensor,
        source: md.Tensor | Cache | None = None,
        *,
        causal: bool = False,
        length: md.Dim | str = "length",
        memory: md.Dim | str = "memory",
        queries: md.Dim | str = "queries",
        rotary: Rotary | None = None,
        documents: Documents | None = None,
        mask: md.Tensor | None = None,
        window: Window | None = None,
        score_bias: md.Tensor | None = None,
    ) -> md.Tensor:
        """What each position of `x` finds in `x` itself or, where it is given, in `source`.

        Args:
          x: has d_model, `length` and any other dims, such as the batch. With a `source`, it needs
            no length.
          source: has its features, `memory` and any others, of which those that `x` has too are
            taken together. Or what `remember` has made of it.
          causal: a position sees itself and those before it only. Not with a `source`.
          length: the dim of `x` that attends. With a `source`, `x` may lack it: then each of its
            other positions is a query of its own.
          memory: the dim of the keys: without a `source` a name for the length as keys have it,
            else the dim of `source` that is attended to.
          queries: a name for the length as queries have it.
          rotary: cosine and sine of rotary angles, see `angles`. Not with a `source`.
          documents: with it, positions attend to those of their own document only. Not with a
            `source`.
          mask: bools, True where a key may be seen; dims `memory` and any of the batch, `length`
            and the heads. A query that may see no key by the mask sees all of them alike.
          window: with it, positions see those that are near alone. Not with a `source`.
          score_bias: added to the scores, as a bias of relative positions is; dims as of the mask.

        Returns:
          A tensor with the dims of `x`.

        Raises:
          MeshDSLError: `x` lacks `length`, `source` lacks `memory` or `x` has it, the mask has no
            bools or other dims, or `causal`, `rotary`, `documents` or `window` are given with a
            `source`.
        """
        given = {"causal": causal, "rotary": rotary, "documents": documents, "window": window}
        biased: dict[str, Any] = {"mask": mask, "score_bias": score_bias}
        if source is None:
            names = {"length": length, "memory": memory, "queries": queries}
            return self.prefill(x, **names, **given, **biased)[0]
        if wrong := [name for name, value in given.items() if value]:
            raise md.MeshDSLError(
                f"Attention: `{wrong[0]}` is about positions of one sequence, and `source` is "
                "another; leave it out, or say by `mask` what may be seen"
            )
        cache = source if isinstance(source, Cache) else self.remember(source)
        among = _dim(cache.key, memory, "the dim of `source` that is attended to", "memory")
        if among.name in [d.name for d in x.dims]:
            raise md.MeshDSLError(
                f"Attention: {list(x.dims)} has `{among.name}`, which of the source is attended "
                f'to; rename it there: md.rename(source, "{among.name}", "memory")'
            )
        query, here = self.query(x), {d.name: d for d in x.dims}
        query = query if self.query_norm is None else self.query_norm(query)
        attending = here.get(length if isinstance(length, str) else length.name)
        if attending is None:
            self._check(mask, query, cache, among)
            return self.out(self._attend(query, cache, among, None, **biased))
        return self._among_queries(query, cache, attending, among, queries, **biased)

    def prefill(
        self,
        x: md.Tensor,
        *,
        length: md.Dim | str = "length",
        memory: md.Dim | str = "memory",
        queries: md.Dim | str = "queries",
        rotary: Rotary | None = None,
        documents: Documents | None = None,
        mask: md.Tensor | None = None,
        causal: bool = True,
        window: Window | None = None,
        score_bias: md.Tensor | None = None,
    ) -> tuple[md.Tensor, Cache]:
        """Causal attention of a whole sequence to itself, and all keys and values for `step`.

        Args:
          x: has d_model, `length` and any other dims.
          length, memory, queries, rotary, documents, mask, window, score_bias: as for a call.
          causal: False for an encoder, whose positions see those after them too.

        Returns:
          The result, with the dims of `x`, and the keys and values.
        """
        length = _dim(x, length, "the dim that attends to itself", "length")
        memory = md.Dim(memory, length.size) if isinstance(memory, str) else memory
        if memory.name in [d.name for d in x.dims]:
            raise md.MeshDSLError(
                f"Attention: {list(x.dims)} has `{memory.name}`, and so would its keys, in the "
                "place of the length; `memory=` gives them another name"
            )
        query, key, value = self._project(x, rotary)
        cache = Cache(md.rename(key, length, memory), md.rename(value, length, memory))
        how = {"causal": causal, "documents": documents, "window": window}
        how |= {"mask": mask, "score_bias": score_bias}
        return self._among_queries(query, cache, length, memory, queries, **how), cache

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
        """One position of each sequence: it joins the cache and attends to what is there.

        Args:
          x: dims batch, d_model.
          cache: keys and values; its memory has room for the position.
          position: where it stands in its sequence (batch; int32).
          rotary: cosine and sine of the angles of `position`.
          layer: where the cache is that of several layers, the number of this one (no dims; int32).
          window: as for a call.
          layers: what the dim of the layers is called in the cache.

        Returns:
          The result, with the dims of `x`, and the cache with the keys and values of the position.
          Of the cache only these are written, in place where nothing else needs `cache`.
        """
        query, key, value = self._project(x, rotary)
        of_layer = {} if layer is None else {layers: layer}
        cache = cache.written(key, value, {**of_layer, "memory": position})
        own = cache if layer is None else cache.of_layer(layer, layers)
        how = {"causal": True, "positions": (position, None), "window": window}
        return self.out(self._attend(query, own, own.key.dim("memory"), None, **how)), cache

    def remember(self, source: md.Tensor) -> Cache:
        """Keys and values of a source, made once to be attended to several times.

            cache = attention.remember(source)
            attention(x, cache)   # as attention(x, source)

        Args:
          source: as for a call.
        """
        key = self.key(source)
        key = key if self.key_norm is None else self.key_norm(key)
        return Cache(key, self.value(source))

    def _project(self, x, rotary):
        query, key, value = self.query(x), self.key(x), self.value(x)
        query = query if self.query_norm is None else self.query_norm(query)
        key = key if self.key_norm is None else self.key_norm(key)
        if rotary is not None:
            query, key = rotate(query, rotary, self.head_dim), rotate(key, rotary, self.head_dim)
        return tuple(md.checkpoint_name(x, QKV) for x in (query, key, value))

    def _among_queries(
        self, query, cache, length, memory, queries, *, mask=None, score_bias=None, **how
    ):
        """Attention of each of `length`, which is called `queries` meanwhile."""
        queries = md.Dim(queries, length.size) if isinstance(queries, str) else queries
        self._check(mask, query, cache, memory)
        if mask is not None and length in mask.dims:
            mask = md.rename(mask, length, queries)
        if score_bias is not None and length in score_bias.dims:
            score_bias = md.rename(score_bias, length, queries)
        how["score_bias"] = score_bias
        query = md.rename(query, length, queries)
        found = self._attend(query, cache, memory, queries, mask=mask, **how)
        return self.out(md.rename(found, queries, length))

    def _attend(
        self, query: md.Tensor, cache: Cache, memory: md.Dim, queries: md.Dim | None, **how
    ) -> md.Tensor:
        how |= {"queries": queries, "memory": memory, "head_dim": self.head_dim}
        how |= {"scale": self.scale, "softcap": self.softcap, "sinks": self.sinks}
        return attend(query, cache.key, cache.value, **how)

    def _check(self, mask: md.Tensor | None, query: md.Tensor, cache: Cache, memory: md.Dim):
        """Raise a MeshDSLError for a mask that does not fit the scores."""
        if mask is None:
            return
        if mask.dtype != bool:
            raise md.MeshDSLError(
                f"Attention: the mask {list(mask.dims)} is {mask.dtype}; it is bools, True where a "
                "key may be seen"
            )
        scores = dict.fromkeys(d for d in (*query.dims, *cache.key.dims) if d != self.head_dim)
        if memory not in mask.dims or not set(mask.dims) <= set(scores):
            raise md.MeshDSLError(
                f"Attention: a mask {list(mask.dims)} of scores {list(scores)}; it has {memory}, "
                f"and others of these dims at will. What `x` itself is masked by is renamed: "
                f'md.rename(mask, "length", "{memory.name}")'
            )


def _dim(x: md.Tensor, wanted: md.Dim | str, what: str, argument: str) -> md.Dim:
    """The dim of `x` that `wanted` means, which is `what`."""
    name = wanted if isinstance(wanted, str) else wanted.name
    found = {d.name: d for d in x.dims}
    if name not in found:
        raise md.MeshDSLError(
            f"Attention: no `{name}` in {list(x.dims)}; `{argument}=` names {what}"
            f"{nearest(name, found)}"
        )
    return found[name]
