"""What it means that one element is larger than another: bounds, integers that order as the elements do, and shared ties."""

from __future__ import annotations

import jax.numpy as jnp
from jax import lax

from meshdsl.dims import Dims


def bounds(dtype) -> tuple[float | int | bool, float | int | bool]:
    """The lowest and the highest value of a dtype."""
    if dtype == bool:
        return False, True
    if jnp.issubdtype(dtype, jnp.integer):
        return int(jnp.iinfo(dtype).min), int(jnp.iinfo(dtype).max)
    return -jnp.inf, jnp.inf


def last(dtype) -> float | int | bool:
    """The value that no other is sorted after: NaN, or the highest."""
    return jnp.nan if jnp.issubdtype(dtype, jnp.inexact) else bounds(dtype)[1]


def canonical(a):
    """`a` with one zero and one NaN, the positive ones: what compares equal, or sorts as equal, has equal bits."""
    if not jnp.issubdtype(a.dtype, jnp.inexact):
        return a
    return jnp.where(jnp.isnan(a), jnp.nan, jnp.where(a == 0, 0, a)).astype(a.dtype)


def to_key(a, sign: int = 1):
    """Integers of at least 32 bits that order as the elements of `a` do (with `sign` -1: the other way), a NaN above all.

    Unlike floats they keep a NaN through a pmax on every platform, and NCCL can reduce them, which it cannot 16-bit integers.
    """
    if sign < 0:
        a = _negative(a)
    if jnp.issubdtype(a.dtype, jnp.floating):
        a = _flipped(lax.bitcast_convert_type(canonical(a), f"int{a.dtype.itemsize * 8}"))
    return a.astype(jnp.int32) if a.dtype.itemsize < 4 else a


def from_key(key, dtype, sign: int = 1):
    """The elements of a dtype that `to_key` turned into `key`."""
    if jnp.issubdtype(dtype, jnp.floating):
        a = lax.bitcast_convert_type(_flipped(key.astype(f"int{jnp.dtype(dtype).itemsize * 8}")), dtype)
    else:
        a = key.astype(dtype)
    return _negative(a) if sign < 0 else a


def _negative(a):
    """In the other order, exactly: -a of unsigned and of the lowest integers is not."""
    return -a if jnp.issubdtype(a.dtype, jnp.inexact) else ~a


def _flipped(bits):
    """Between the bits of floats, which are sign and magnitude, and integers in the same order."""
    return bits ^ ((bits >> (bits.dtype.itemsize * 8 - 1)) & jnp.iinfo(bits.dtype).max)


def share_ties(loop, dims: Dims, at: tuple[int, ...], a, chosen, tangent):
    """The derivative of an element `chosen` of `a`: all that equal it share it, wherever they are.

    Args:
      dims, at: what was chosen along, and where `a` has it.
    """
    in_order = tuple(d for _, d in sorted(zip(at, dims, strict=True), key=lambda pair: pair[0]))
    inside = jnp.expand_dims(loop.inside(in_order), [i for i in range(a.ndim) if i not in at])
    ties = ((a == jnp.expand_dims(chosen, at)) & inside).astype(a.dtype)
    count = loop.psum(jnp.sum(ties, at), dims)
    return loop.psum(jnp.sum(tangent * ties, at), dims) / count
