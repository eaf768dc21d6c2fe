"""A bias of attention's scores for how far two positions are apart (T5, Raffel et al., 2020).

relative = RelativeBias.init(key, heads, buckets=32, reach=128)
attention(x, score_bias=relative(length, md.Dim("memory", length.size)))
"""

from __future__ import annotations

import math

import numpy as np
from flax import struct
from flax.struct import PyTreeNode

import meshdsl as md


class RelativeBias(PyTreeNode):
    """A number for each head and each bucket of distances, near ones alone and far ones together.

    Attributes:
      table: dims `buckets` and the heads.
      reach: distances from here on are in one bucket.
      both: whether positions see those after them too, which half of the buckets are for.
    """

    table: md.Tensor
    reach: int = struct.field(pytree_node=False, default=128)
    both: bool = struct.field(pytree_node=False, default=True)

    @classmethod
    def init(cls, key, heads: md.Dim, *, buckets: int = 32, reach: int = 128, both: bool = True):
        dims = md.Dim("buckets", buckets), heads
        return cls(md.normal(key, dims, ins=dims[0], std=0.02), reach, both)

    def __call__(self, length: md.Dim, memory: md.Dim) -> md.Tensor:
        """The biases of positions along `length` that see those along `memory`.

        Returns:
          The dims `length`, `memory` and the heads.
        """
        buckets = self.table.dims[0]
        apart = np.arange(-(length.size - 1), memory.size)
        distance = md.Dim("distance", apart.size)
        numbers = bucket_of(apart, buckets.size, self.reach, self.both)
        biases = md.take(self.table, md.tensor(numbers, (distance,)), buckets)
        there = md.broadcast(md.iota(memory), (length, memory))
        return md.take(biases, there - md.iota(length) + (length.size - 1), distance)


def bucket_of(apart: np.ndarray, buckets: int, reach: int, both: bool) -> np.ndarray:
    """The bucket of each distance, from what sees to what is seen; int32.

    The first half of the buckets are for one distance each; those of the rest grow as its
    logarithm does.
    """
    after = np.zeros_like(apart)
    if both:
        buckets //= 2
        after, apart = np.where(apart > 0, buckets, 0), np.abs(apart)
    else:
        apart = np.maximum(-apart, 0)
    alone = buckets // 2
    # In float32, as the published models have it: a rounded logarithm may be of the next bucket.
    parts = np.log(np.maximum(apart, 1).astype(np.float32) / np.float32(alone))
    parts = parts / np.float32(math.log(reach / alone)) * np.float32(buckets - alone)
    far = np.minimum(alone + parts.astype(np.int64), buckets - 1)
    return (after + np.where(apart < alone, apart, far)).astype(np.int32)
