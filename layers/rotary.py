"""Rotary positions (Su et al., 2021).

Each pair of features is turned by an angle that grows with the position, so that the product of a
query and a key depends on how far they are apart.

    rotary = angles(md.iota(length), head_dim)   # two of [length, head_dim / 2]
    attention(x, causal=True, rotary=rotary)
    rotate(x, rotary, head_dim)                  # [batch, length, heads, head_dim] -> the same
"""

from __future__ import annotations

import math

import jax.numpy as jnp

import meshdsl as md


def angles(
    positions: md.Tensor, head_dim: md.Dim, base: float = 10000.0
) -> tuple[md.Tensor, md.Tensor]:
    """Cosine and sine of every position's angles.

    Args:
      positions: numbers of any dims but `head_dim`, such as `md.iota(length)`.
      base: of the wavelengths, which go from 2 pi up to 2 pi times the base.

    Returns:
      Two tensors with the dims of `positions`, then `head_dim` with half its size: one angle for
      each pair of features.

    Raises:
      MeshDSLError: `head_dim` is odd.
    """
    if head_dim.size % 2:
        raise md.MeshDSLError(
            f"rotary positions turn pairs of features, and {head_dim} is an odd number of them"
        )
    half = md.Dim(head_dim.name, head_dim.size // 2)
    frequency = md.exp(md.cast(md.iota(half), jnp.float32) * (-math.log(base) / half.size))
    turn = md.einsum(md.cast(positions, jnp.float32), frequency, out=(*positions.dims, half))
    return md.cos(turn), md.sin(turn)


def rotate(x: md.Tensor, turn: tuple[md.Tensor, md.Tensor], head_dim: md.Dim) -> md.Tensor:
    """`x` with each pair of features turned: the same dims.

    A pair is a feature of the first half of `head_dim`, and the same one of the second.

    Args:
      x: has the dims of the positions, `head_dim`, and any others.
      turn: what `angles` gives.
    """
    cos, sin = (md.cast(t, x.dtype) for t in turn)
    name = head_dim.name
    # A feature that is not finite makes NaN of all products with its query or key in any case.
    cos, sin = md.concat([cos, cos], name), md.concat([-sin, sin], name)
    return x * cos + md.roll(x, head_dim, head_dim.size // 2, finite=True) * sin
