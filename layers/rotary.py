"""Rotary positions (Su et al., 2021): each pair of features is turned by an angle that grows with the position."""

from __future__ import annotations

import math

import jax.numpy as jnp

import meshdsl as md


def angles(
    positions: md.Tensor, head_dim: md.Dim, base: float = 10000.0
) -> tuple[md.Tensor, md.Tensor]:
    """Cosine and sine of every position's angles: dims of `positions`, then a `head_dim` of half the size."""
    half = md.Dim(head_dim.name, head_dim.size // 2)
    frequency = md.exp(md.cast(md.iota(half), jnp.float32) * (-math.log(base) / half.size))
    turn = md.einsum(md.cast(positions, jnp.float32), frequency, out=(*positions.dims, half))
    return md.cos(turn), md.sin(turn)


def rotate(x: md.Tensor, turn: tuple[md.Tensor, md.Tensor], head_dim: md.Dim) -> md.Tensor:
    """`x` with the first half of `head_dim` and the second taken as pairs, and each pair turned."""
    cos, sin = (md.cast(t, x.dtype) for t in turn)
    first, second = md.split(x, head_dim, 2)
    return md.concat([first * cos - second * sin, second * cos + first * sin], head_dim)
