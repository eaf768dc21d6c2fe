"""Normalisation over one dim, computed in float32 whatever the dtype of the input."""

from __future__ import annotations

import jax.numpy as jnp
from flax import struct
from flax.struct import PyTreeNode

import meshdsl as md

EPSILON = 1e-5  # that of GPT-2, Llama 2 and Llama 3; the first Llama has 1e-6


class RMSNorm(PyTreeNode):
    """`scale * x / sqrt(mean(x^2) + epsilon)` over the dim of `scale`.

    Zhang and Sennrich, 2019.
    """

    scale: md.Tensor
    epsilon: float = struct.field(pytree_node=False, default=EPSILON)

    @classmethod
    def init(cls, dim: md.Dim, *, epsilon: float = EPSILON):
        return cls(md.parameter(jnp.ones(dim.size), (dim,)), epsilon)

    def __call__(self, x: md.Tensor) -> md.Tensor:
        wide = md.cast(x, jnp.float32)
        power = md.mean(md.square(wide), self.scale.dims)
        return md.cast(wide * md.rsqrt(power + self.epsilon) * self.scale, x.dtype)


class LayerNorm(PyTreeNode):
    """`scale * (x - mean(x)) / sqrt(var(x) + epsilon) + bias` over the dim of `scale`.

    Ba, Kiros and Hinton, 2016.
    """

    scale: md.Tensor
    bias: md.Tensor
    epsilon: float = struct.field(pytree_node=False, default=EPSILON)

    @classmethod
    def init(cls, dim: md.Dim, *, epsilon: float = EPSILON):
        scale = md.parameter(jnp.ones(dim.size), (dim,))
        return cls(scale, md.parameter(jnp.zeros(dim.size), (dim,)), epsilon)

    def __call__(self, x: md.Tensor) -> md.Tensor:
        wide = md.cast(x, jnp.float32)
        centred = wide - md.mean(wide, self.scale.dims)
        power = md.mean(md.square(centred), self.scale.dims)
        return md.cast(centred * md.rsqrt(power + self.epsilon) * self.scale + self.bias, x.dtype)


Norm = RMSNorm | LayerNorm
NORMS = {"rms": RMSNorm, "layer": LayerNorm}
