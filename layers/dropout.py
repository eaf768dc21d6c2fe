"""Dropout: some elements set to zero while a model is trained."""

from __future__ import annotations

from flax import struct
from flax.struct import PyTreeNode

import meshdsl as md


class Dropout(PyTreeNode):
    """Each element is 0 with probability `rate`, and the others are divided by `1 - rate`.

    Srivastava et al., 2014.

        dropout = Dropout(0.1)
        dropout(x, key)    # any dims -> the same
        dropout(x, None)   # x itself: off

    The same elements are dropped under every layout. Two calls with one key drop the same places,
    so each place in a model gets a key of its own, by `jax.random.split` or `fold_in`.
    """

    rate: float = struct.field(pytree_node=False)

    def __call__(self, x: md.Tensor, key) -> md.Tensor:
        """The dims and the dtype of `x`.

        Args:
          key: a JAX PRNG key; None where nothing is to be dropped.

        Raises:
          MeshDSLError: the rate is outside of [0, 1).
        """
        return x if key is None else md.dropout(x, self.rate, key)
