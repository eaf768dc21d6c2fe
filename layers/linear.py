"""Linear: a matrix between named dims, with or without a bias."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from flax.struct import PyTreeNode

import meshdsl as md
from meshdsl.dims import size


class Linear(PyTreeNode):
    """`x` contracted over the dims `ins` into the dims `outs`."""

    weight: md.Tensor
    bias: md.Tensor | None

    @classmethod
    def init(
        cls,
        key,
        ins: tuple[md.Dim, ...],
        outs: tuple[md.Dim, ...],
        *,
        bias: bool = False,
        std: float | None = None,
    ):
        """Normal weights, and biases of zero.

        Args:
          std: the standard deviation of the weights; by default `size(ins) ** -0.5`.
        """
        deviation: float = size(ins) ** -0.5 if std is None else std
        weight = jax.random.normal(key, [d.size for d in (*ins, *outs)]) * deviation
        zeros = jnp.zeros([d.size for d in outs])
        return cls(
            md.parameter(weight, (*ins, *outs), ins=ins),
            md.parameter(zeros, outs) if bias else None,
        )

    def __call__(self, x: md.Tensor) -> md.Tensor:
        names = set(self.weight.role.outs)
        outs = tuple(d for d in self.weight.dims if d.name in names)
        y = md.einsum(x, md.cast(self.weight, x.dtype), out=(..., *outs))
        return y if self.bias is None else y + md.cast(self.bias, x.dtype)
