"""Rotary positions (Su et al., 2021).

Each pair of features is turned by an angle that grows with the position.
"""

from __future__ import annotations

import math

import jax.numpy as jnp

import meshdsl as md


def angles(
    positions: md.Tensor, head_dim: md.Dim, base: float = 10000.0
) -> tuple[md.Tensor, md.Tensor]:
    """Cosine and sine of every position's angles.

    Returns:
      Two tensors with the dims of `positions`, then `head_dim` with half its size: one angle for
      each pair of features.
    """
    half = md.Dim(head_dim.name, head_dim.size // 2)
    frequency = md.exp(md.cast(md.iota(half), jnp.float32) * (-math.log(base) / half.size))
    turn = md.einsum(md.cast(positions, jnp.float32), frequency, out=(*positions.dims, half))
    return md.cos(turn), md.sin(turn)


def rotate(x: md.Tensor, turn: tuple[md.Tensor, md.Tensor], head_dim: md.Dim) -> md.Tensor:
    """`x` with each pair of features turned.

    A pair is a feature of the first half of `head_dim`, and the same one of the second.
    """
    cos, sin = (md.cast(t, x.dtype) for t in turn)
    first, second = md.split(x, head_dim, 2)
    return md.concat([first * cos - second * sin, second * cos + first * sin], head_dim)
