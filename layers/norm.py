"""Normalisation over one dim, computed in float32 whatever the dtype of the input."""

from __future__ import annotations

import jax.numpy as jnp
from flax.struct import PyTreeNode

import meshdsl as md

EPSILON = 1e-5


class RMSNorm(PyTreeNode):
    """`scale * x / sqrt(mean(x^2))` over the dim of `scale` (Zhang and Sennrich, 2019)."""

    scale: md.Tensor

    @classmethod
    def init(cls, dim: md.Dim):
        return cls(md.parameter(jnp.ones(dim.size), (dim,)))

    def __call__(self, x: md.Tensor) -> md.Tensor:
        wide = md.cast(x, jnp.float32)
        power = md.mean(md.square(wide), self.scale.dims)
        return md.cast(wide * md.rsqrt(power + EPSILON) * self.scale, x.dtype)


class LayerNorm(PyTreeNode):
    """`scale * (x - mean(x)) / sqrt(var(x)) + bias` over the dim of `scale` (Ba, Kiros and Hinton, 2016)."""

    scale: md.Tensor
    bias: md.Tensor

    @classmethod
    def init(cls, dim: md.Dim):
        return cls(md.parameter(jnp.ones(dim.size), (dim,)), md.parameter(jnp.zeros(dim.size), (dim,)))

    def __call__(self, x: md.Tensor) -> md.Tensor:
        wide = md.cast(x, jnp.float32)
        centred = wide - md.mean(wide, self.scale.dims)
        power = md.mean(md.square(centred), self.scale.dims)
        return md.cast(centred * md.rsqrt(power + EPSILON) * self.scale + self.bias, x.dtype)


NORMS = {"rms": RMSNorm, "layer": LayerNorm}
