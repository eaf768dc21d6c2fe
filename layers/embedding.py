"""Embedding: a table of vectors, looked up by index."""

from __future__ import annotations

import jax
from flax.struct import PyTreeNode

import meshdsl as md


class Embedding(PyTreeNode):
    """One vector over `features` for each index of `entries`."""

    table: md.Tensor

    @classmethod
    def init(cls, key, entries: md.Dim, features: md.Dim, *, std: float = 0.02):
        table = jax.random.normal(key, (entries.size, features.size)) * std
        return cls(md.parameter(table, (entries, features), ins=(entries,)))

    def __call__(self, ids: md.Tensor) -> md.Tensor:
        """The vectors of `ids`: its dims, then the features."""
        return md.take(self.table, ids, self.table.dims[0])

    def logits(self, x: md.Tensor) -> md.Tensor:
        """The product of `x` with every vector: the output layer that shares the table."""
        entries = self.table.dims[0]
        return md.einsum(x, md.cast(self.table, x.dtype), out=(..., entries))
