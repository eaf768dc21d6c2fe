"""Embedding: a table of vectors, looked up by index."""

from __future__ import annotations

from flax.struct import PyTreeNode

import meshdsl as md


class Embedding(PyTreeNode):
    """One vector over `features` for each index of `entries`.

        embedding = Embedding.init(key, vocab, d_model)
        embedding(tokens)     # int32 [batch, length]    -> [batch, length, d_model]
        embedding.logits(x)   # [batch, length, d_model] -> [batch, length, vocab]

    Attributes:
      table: dims `entries`, `features`.
    """

    table: md.Tensor

    @classmethod
    def init(cls, key, entries: md.Dim, features: md.Dim, *, std: float = 0.02):
        """Normal vectors.

        Args:
          std: their standard deviation; by default that of GPT-2 (Radford et al., 2019).
        """
        return cls(md.normal(key, (entries, features), ins=entries, std=std))

    def __call__(self, ids: md.Tensor) -> md.Tensor:
        """The vectors of `ids`: the dims of `ids`, then the features.

        Args:
          ids: whole numbers of any dims but `entries`. One that is no entry has a vector of zeros.
        """
        return md.take(self.table, ids, self.table.dims[0])

    def logits(self, x: md.Tensor) -> md.Tensor:
        """The product of `x` with every vector: the output layer that shares the table.

        Args:
          x: has the features, and any other dims.

        Returns:
          The other dims of `x`, then `entries`.
        """
        entries = self.table.dims[0]
        return md.einsum(x, md.cast(self.table, x.dtype), out=(..., entries))
