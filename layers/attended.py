"""What attention attends to and what it may see of that: keys and values, documents, windows."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from flax import struct
from flax.struct import PyTreeNode

import meshdsl as md

MASKED = -1e30  # finite, so that a row that may see no key sees all of them alike

Rotary = tuple[md.Tensor, md.Tensor]


class Cache(PyTreeNode):
    """Keys and values of the positions so far.

    Attributes:
      key: dims batch (or any others), heads of keys, memory, head_dim, and `layers` where it is of
        several layers. A step reads it as it lies where memory and head_dim are the last two.
      value: the same dims.
    """

    key: md.Tensor
    value: md.Tensor

    def of_layer(self, layer: md.Tensor, layers: str = "layers") -> Cache:
        """The keys and values of one of the `layers`, whose number has no dims."""
        return Cache(*(md.take(t, layer, layers) for t in (self.key, self.value)))

    def written(self, key: md.Tensor, value: md.Tensor, at: Mapping[str, md.Tensor]) -> Cache:
        """This cache with a key and a value for each row.

            cache.written(key, value, {"layers": layer, "memory": position})

        Where nothing else needs this cache, it is written in place.

        Args:
          key, value: the dims of the cache without those of `at`.
          at: where they go: for each of some dims an index.
        """
        put = lambda t, new: md.scatter(t, tuple(at.values()), new, tuple(at), how="set")
        return Cache(put(self.key, key), put(self.value, value))


class Documents(PyTreeNode):
    """Which document of its sequence each position belongs to, seen by queries and by keys; int32.

    Attributes:
      query: dims batch, queries. It is moved as the queries are, once for all layers.
      key: the same, of dims batch, memory.
    """

    query: md.Tensor
    key: md.Tensor

    @classmethod
    def of(
        cls,
        segments: md.Tensor,
        length: md.Dim | str = "length",
        memory: md.Dim | str = "memory",
        queries: md.Dim | str = "queries",
    ):
        """The documents of a sequence that attends to itself.

        Args:
          segments: dims batch, length.
          length, memory, queries: as for `Attention`.
        """
        return cls(md.rename(segments, length, queries), md.rename(segments, length, memory))


class Window(PyTreeNode):
    """How near a position is that another one sees, as in sliding-window attention.

    Attributes:
      size: positions see those that are less than so many away.
      holds: whether it does so in this layer, a bool without dims; None where it does. Layers that
        one scan runs have the same program, and this says which of them look how far.
      layers: in how many of these layers it does so, and in how many not, for figures of a step;
        None where that is not known.
    """

    size: int = struct.field(pytree_node=False)
    holds: md.Tensor | None = None
    layers: tuple[int, int] | None = struct.field(pytree_node=False, default=None)


def attend(
    query: md.Tensor,
    key: md.Tensor,
    value: md.Tensor,
    *,
    documents: Documents | None = None,
    mask: md.Tensor | None = None,
    window: Window | None = None,
    score_bias: md.Tensor | None = None,
    **how: Any,
) -> md.Tensor:
    """`md.attention` with what layers know of documents, masks and windows.

    Args:
      documents, mask, window, score_bias: as for `Attention`, with the names that queries and keys
        have inside of attention.
      how: further arguments of `md.attention`.
    """
    if mask is not None:
        added = 0.0
        if score_bias is not None:
            rest = [d for d in mask.dims if d not in score_bias.dims]
            added = md.broadcast(score_bias, (*rest, *score_bias.dims))
        how["bias"] = md.where(mask, added, MASKED)
    elif score_bias is not None:
        how["bias"] = score_bias
    if documents is not None:
        how["segments"] = documents.query, documents.key
    how = {name: value for name, value in how.items() if value is not None or name == "queries"}
    everywhere = partial(md.attention, **how)
    if window is None:
        return everywhere(query, key, value)
    near = partial(md.attention, window=window.size, **how)
    if window.holds is None:
        return near(query, key, value)
    # Each way has a kernel of its own, which skips what its queries do not see.
    return md.cond(window.holds, near, everywhere, query, key, value, weights=window.layers)
