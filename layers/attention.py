"""Attention, multi-head or grouped-query: to a sequence itself, or to another one.

The dim of the queries is called `length`, that of the keys and values `memory`, also where both are
of one sequence: so a layout may split them apart.

    y = attention(x)                                # each position sees all: an encoder
    y = attention(x, causal=True)                   # each sees those up to itself: a decoder
    y = attention(x, source, memory="pixels")       # each sees all of `pixels`, of another tensor
    y, cache = attention.prefill(x)                 # as a decoder, with keys and values to go on
    y, cache = attention.step(x, cache, position)   # one position more
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from flax import struct
from flax.struct import PyTreeNode

import meshdsl as md
from meshdsl.errors import nearest
from meshdsl.layers.linear import Linear
from meshdsl.layers.rotary import rotate

MASKED = -1e30  # finite, so that a row without any visible key has no NaN in its gradient

Rotary = tuple[md.Tensor, md.Tensor]


class Cache(PyTreeNode):
    """Keys and values of the positions so far.

    Attributes:
      key: dims batch (or any others), memory, heads of keys, head_dim.
      value: the same dims.
    """

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
    def of(
        cls,
        segments: md.Tensor,
        length: md.Dim | str = "length",
        memory: md.Dim | str = "memory",
    ):
        """The documents of a sequence that attends to itself.

        Args:
          segments: dims batch, length.
          length, memory: as for `Attention`.
        """
        return cls(segments, md.rename(segments, length, memory))


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
        group: md.Dim | None = None,
        *,
        d_source: md.Dim | None = None,
        bias: bool = False,
        out_std: float | None = None,
    ):
        """Weights as those of `Linear`.

        Args:
          d_source: the features of another tensor that is attended to, where they are not d_model.
          out_std: the standard deviation of the weights of `out`.
        """
        q, k, v, o = jax.random.split(key, 4)
        queries = (heads, head_dim) if group is None else (heads, group, head_dim)
        source = d_model if d_source is None else d_source
        return cls(
            query=Linear.init(q, d_model, queries, bias=bias),
            key=Linear.init(k, source, (heads, head_dim), bias=bias),
            value=Linear.init(v, source, (heads, head_dim), bias=bias),
            out=Linear.init(o, queries, d_model, bias=bias, std=out_std),
            head_dim=head_dim,
        )

    def __call__(
        self,
        x: md.Tensor,
        source: md.Tensor | Cache | None = None,
        *,
        causal: bool = False,
        length: md.Dim | str = "length",
        memory: md.Dim | str = "memory",
        rotary: Rotary | None = None,
        documents: Documents | None = None,
        mask: md.Tensor | None = None,
    ) -> md.Tensor:
        """What each position of `x` finds in `x` itself or, where it is given, in `source`.

        Args:
          x: has d_model, `length` and any other dims, such as the batch. With a `source`, it needs
            no length.
          source: has its features, `memory` and any others, of which those that `x` has too are
            taken together. Or what `remember` has made of it.
          causal: a position sees itself and those before it only. Not with a `source`.
          length: the dim of `x` that attends to itself.
          memory: the dim of the keys: without a `source` a name for the length as keys have it,
            else the dim of `source` that is attended to.
          rotary: cosine and sine of rotary angles, see `angles`. Not with a `source`.
          documents: with it, positions attend to those of their own document only. Not with a
            `source`.
          mask: bools, True where a key may be seen; dims `memory` and any of the batch, `length`
            and the heads. A query that may see no key sees all of them alike.

        Returns:
          A tensor with the dims of `x`.

        Raises:
          MeshDSLError: `x` lacks `length`, `source` lacks `memory` or `x` has it, the mask has no
            bools or other dims, or `causal`, `rotary` or `documents` are given with a `source`.
        """
        if source is None:
            how = {"causal": causal, "documents": documents, "mask": mask}
            return self._to_itself(x, length, memory, rotary, **how)[0]
        if wrong := [
            name
            for name, given in (("causal", causal), ("rotary", rotary), ("documents", documents))
            if given
        ]:
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
        return self._attend(self.query(x), cache, among, mask=mask)

    def prefill(
        self,
        x: md.Tensor,
        *,
        length: md.Dim | str = "length",
        memory: md.Dim | str = "memory",
        rotary: Rotary | None = None,
        documents: Documents | None = None,
        mask: md.Tensor | None = None,
    ) -> tuple[md.Tensor, Cache]:
        """Causal attention of a whole sequence to itself, and all keys and values for `step`.

        Args:
          x: has d_model, `length` and any other dims.
          length, memory, rotary, documents, mask: as for a call.

        Returns:
          The result, with the dims of `x`, and the keys and values.
        """
        how = {"causal": True, "documents": documents, "mask": mask}
        return self._to_itself(x, length, memory, rotary, **how)

    def step(
        self, x: md.Tensor, cache: Cache, position: md.Tensor, rotary: Rotary | None = None
    ) -> tuple[md.Tensor, Cache]:
        """One position of each sequence: it joins the cache and attends to what is there.

        Args:
          x: dims batch, d_model.
          cache: keys and values; its memory has room for the position.
          position: where it stands in its sequence (batch; int32).
          rotary: cosine and sine of the angles of `position`.

        Returns:
          The result, with the dims of `x`, and the cache with the keys and values of the position.
        """
        memory = cache.key.dim("memory")
        query, key, value = self._project(x, rotary)
        index = md.broadcast(md.iota(memory), (*position.dims, memory))
        here = index == position
        cache = Cache(md.where(here, key, cache.key), md.where(here, value, cache.value))
        return self._attend(query, cache, memory, visible=index <= position), cache

    def remember(self, source: md.Tensor) -> Cache:
        """Keys and values of a source, made once to be attended to several times.

            cache = attention.remember(source)
            attention(x, cache)   # as attention(x, source)

        Args:
          source: as for a call.
        """
        return Cache(self.key(source), self.value(source))

    def _to_itself(
        self, x, length, memory, rotary, *, causal: bool, documents, mask
    ) -> tuple[md.Tensor, Cache]:
        length = _dim(x, length, "the dim that attends to itself", "length")
        memory = md.Dim(memory, length.size) if isinstance(memory, str) else memory
        if memory.name in [d.name for d in x.dims]:
            raise md.MeshDSLError(
                f"Attention: {list(x.dims)} has `{memory.name}`, and so would its keys, in the "
                "place of the length; `memory=` gives them another name"
            )
        query, key, value = self._project(x, rotary)
        key, value = md.rename(key, length, memory), md.rename(value, length, memory)
        visible = None
        if causal:
            visible = md.broadcast(md.iota(length), (length, memory)) >= md.iota(memory)
        cache = Cache(key, value)
        return self._attend(query, cache, memory, visible, documents, mask), cache

    def _project(self, x, rotary):
        query, key, value = self.query(x), self.key(x), self.value(x)
        if rotary is not None:
            query, key = rotate(query, rotary, self.head_dim), rotate(key, rotary, self.head_dim)
        return query, key, value

    def _attend(
        self,
        query: md.Tensor,
        cache: Cache,
        memory: md.Dim,
        visible: md.Tensor | None = None,
        documents: Documents | None = None,
        mask: md.Tensor | None = None,
    ) -> md.Tensor:
        scores = md.einsum(query, cache.key, out=(..., memory), contract=self.head_dim)
        scores = md.cast(scores, jnp.float32) * self.head_dim.size**-0.5
        if documents is not None:
            # One op, which is split as the scores are. A mask by itself would be split otherwise,
            # and moved.
            seen = (documents.query, documents.key, scores)
            if visible is None:
                scores = md.map(_within, *seen, name="within")
            else:
                scores = md.map(_within_and_visible, visible, *seen, name="within")
        elif visible is not None:
            scores = md.where(visible, scores, MASKED)
        if mask is not None:
            scores = md.where(_checked(mask, scores, memory), scores, MASKED)
        weights = md.cast(md.softmax(scores, memory), cache.value.dtype)
        return self.out(md.einsum(weights, cache.value, out=(..., self.head_dim), contract=memory))


def _within(of_query, of_key, scores):
    return jnp.where(of_query == of_key, scores, MASKED)


def _within_and_visible(visible, of_query, of_key, scores):
    return jnp.where(visible & (of_query == of_key), scores, MASKED)


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


def _checked(mask: md.Tensor, scores: md.Tensor, memory: md.Dim) -> md.Tensor:
    """`mask`, after checking that it fits the scores."""
    if mask.dtype != bool:
        raise md.MeshDSLError(
            f"Attention: the mask {list(mask.dims)} is {mask.dtype}; it is bools, True where a key "
            "may be seen"
        )
    if memory not in mask.dims or not set(mask.dims) <= set(scores.dims):
        raise md.MeshDSLError(
            f"Attention: a mask {list(mask.dims)} of scores {list(scores.dims)}; it has {memory}, "
            f"and others of these dims at will. What `x` itself is masked by is renamed: "
            f'md.rename(mask, "length", "{memory.name}")'
        )
    return mask
