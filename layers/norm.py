"""Normalisation, computed in float32 whatever the dtype of the input, in which results come out."""

from __future__ import annotations

from collections.abc import Iterable

import jax.numpy as jnp
from flax import struct
from flax.struct import PyTreeNode

import meshdsl as md
from meshdsl.dims import listed

EPSILON = 1e-5  # that of GPT-2, Llama 2 and Llama 3; the first Llama has 1e-6


class RMSNorm(PyTreeNode):
    """`scale * x / sqrt(mean(x^2) + epsilon)` over the dims of `scale`.

    Zhang and Sennrich, 2019.

        norm = RMSNorm.init(d_model)
        norm(x)   # [batch, length, d_model] -> the same

    Attributes:
      scale: the dim, or dims, that are normalised over.
      from_one: `scale` is what is added to a factor of one, as in Gemma; it begins with zeros.
    """

    scale: md.Tensor
    epsilon: float = struct.field(pytree_node=False, default=EPSILON)
    from_one: bool = struct.field(pytree_node=False, default=False)

    @classmethod
    def init(
        cls, dims: md.Dim | Iterable[md.Dim], *, epsilon: float = EPSILON, from_one: bool = False
    ):
        return cls(md.zeros(dims) if from_one else md.ones(dims), epsilon, from_one)

    def __call__(self, x: md.Tensor) -> md.Tensor:
        """The dims and the dtype of `x`, which has those of `scale` and any others."""
        wide = md.cast(x, jnp.float32)
        power = md.mean(md.square(wide), self.scale.dims)
        scale = md.cast(self.scale, jnp.float32) + 1 if self.from_one else self.scale
        return md.cast(wide * md.rsqrt(power + self.epsilon) * scale, x.dtype)


class LayerNorm(PyTreeNode):
    """`scale * (x - mean(x)) / sqrt(var(x) + epsilon) + bias` over the dims of `scale`.

    Ba, Kiros and Hinton, 2016.

        norm = LayerNorm.init(d_model)
        norm(x)   # [batch, length, d_model] -> the same

    Attributes:
      scale: the dim, or dims, that are normalised over.
      bias: the same dims.
    """

    scale: md.Tensor
    bias: md.Tensor
    epsilon: float = struct.field(pytree_node=False, default=EPSILON)

    @classmethod
    def init(cls, dims: md.Dim | Iterable[md.Dim], *, epsilon: float = EPSILON):
        return cls(md.ones(dims), md.zeros(dims), epsilon)

    def __call__(self, x: md.Tensor) -> md.Tensor:
        """The dims and the dtype of `x`, which has those of `scale` and any others."""
        wide = md.cast(x, jnp.float32)
        centred = wide - md.mean(wide, self.scale.dims)
        power = md.mean(md.square(centred), self.scale.dims)
        return md.cast(centred * md.rsqrt(power + self.epsilon) * self.scale + self.bias, x.dtype)


class GroupNorm(PyTreeNode):
    """As LayerNorm, over groups of channels and over all of an image (Wu and He, 2018).

    What the batch holds beside an element does not change it, as it would in batch normalisation.

        norm = GroupNorm.init(channels, 8, over=("height", "width"))
        norm(image)   # [batch, height, width, channels] -> the same

    Attributes:
      scale: the channels.
      bias: the same.
      groups: how many groups the channels are divided into; each is normalised by itself.
      over: names of dims that are normalised over too, such as those of space.
    """

    scale: md.Tensor
    bias: md.Tensor
    groups: int = struct.field(pytree_node=False)
    over: tuple[str, ...] = struct.field(pytree_node=False, default=())
    epsilon: float = struct.field(pytree_node=False, default=EPSILON)

    @classmethod
    def init(
        cls,
        channels: md.Dim,
        groups: int,
        *,
        over: str | Iterable[str] = (),
        epsilon: float = EPSILON,
    ):
        """Scales of one and biases of zero.

        Raises:
          MeshDSLError: the channels do not divide into the groups.
        """
        if groups < 1 or channels.size % groups:
            raise md.MeshDSLError(f"GroupNorm: {channels} does not divide into {groups} groups")
        return cls(md.ones(channels), md.zeros(channels), groups, listed(over), epsilon)

    def __call__(self, x: md.Tensor) -> md.Tensor:
        """The dims and the dtype of `x`, which has the channels, the dims `over` and any others."""
        channels = x.dim(self.scale.dims[0].name)
        group = (
            md.Dim("groups", self.groups),
            md.Dim("channels_of_group", channels.size // self.groups),
        )
        apart = [e for d in x.dims for e in (group if d == channels else (d,))]
        wide = md.reshape(md.cast(x, jnp.float32), tuple(apart))
        centred = wide - md.mean(wide, (group[1], *self.over))
        power = md.mean(md.square(centred), (group[1], *self.over))
        normed = md.reshape(centred * md.rsqrt(power + self.epsilon), x.dims)
        return md.cast(normed * self.scale + self.bias, x.dtype)


Norm = RMSNorm | LayerNorm
NORMS = {"rms": RMSNorm, "layer": LayerNorm}
