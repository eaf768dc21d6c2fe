"""The total order that sorting, extrema and selections use: -0.0 equals 0.0, NaN comes last.

Complex numbers are compared by their real parts, and where these are equal by their imaginary
parts, as in NumPy. Elements that travel are compared as integers that have the same order.
"""

from __future__ import annotations

import jax.numpy as jnp
from jax import lax

from meshdsl.dims import Dims, show
from meshdsl.errors import MeshDSLError
from meshdsl.tensor import Tensor


def check_some(name: str, x: Tensor, dims: Dims) -> None:
    """Raise a MeshDSLError if there is no element along `dims` of `x` to choose from."""
    if not all(d.size for d in dims):
        raise MeshDSLError(
            f"{name}: {show(dims)} of {show(x.dims)} has no element to choose; "
            "give each of these dims a size of 1 or more"
        )


def check_real(name: str, x: Tensor) -> None:
    """Raise a MeshDSLError where `x` is complex."""
    if is_complex(x.dtype):
        raise MeshDSLError(
            f"{name}: takes no complex numbers, and {show(x.dims)} is {x.dtype}; "
            "use md.real, md.imag or md.abs of it"
        )


def is_complex(dtype) -> bool:
    """Whether the dtype is one of complex numbers."""
    return jnp.issubdtype(dtype, jnp.complexfloating)


def bounds(dtype) -> tuple[complex | float | int | bool, complex | float | int | bool]:
    """The lowest and the highest value of a dtype; infinities where it has them."""
    if is_complex(dtype):
        return complex(-jnp.inf, -jnp.inf), complex(jnp.inf, jnp.inf)
    if jnp.issubdtype(dtype, jnp.bool_):
        return False, True
    if jnp.issubdtype(dtype, jnp.integer):
        return int(jnp.iinfo(dtype).min), int(jnp.iinfo(dtype).max)
    return -jnp.inf, jnp.inf


def last(dtype) -> complex | float | int | bool:
    """The value that is sorted after all others: NaN where the dtype has one, else the highest."""
    if is_complex(dtype):
        return complex(jnp.nan, jnp.nan)
    return jnp.nan if jnp.issubdtype(dtype, jnp.inexact) else bounds(dtype)[1]


def canonical(a):
    """`a` with every zero as 0.0 and every NaN as the same NaN, so that equal elements have equal
    bits.
    """
    if not jnp.issubdtype(a.dtype, jnp.inexact):
        return a
    return jnp.where(jnp.isnan(a), jnp.nan, jnp.where(a == 0, 0, a)).astype(a.dtype)


def to_key(a, sign: int = 1):
    """Integers that have the order of the elements of `a`, a NaN above all numbers.

    They have at least 32 bits. Unlike floats they keep a NaN through a pmax on every platform, and
    NCCL can reduce them, which it cannot do with 16-bit integers.

    Args:
      a: an array of real numbers or bools.
      sign: -1 for the opposite order.
    """
    if sign < 0:
        a = _negative(a)
    if jnp.issubdtype(a.dtype, jnp.floating):
        a = _flipped(lax.bitcast_convert_type(canonical(a), f"int{a.dtype.itemsize * 8}"))
    return a.astype(jnp.int32) if a.dtype.itemsize < 4 else a


def from_key(key, dtype, sign: int = 1):
    """The inverse of `to_key`: the elements of `dtype` whose keys are `key`."""
    if jnp.issubdtype(dtype, jnp.floating):
        a = lax.bitcast_convert_type(
            _flipped(key.astype(f"int{jnp.dtype(dtype).itemsize * 8}")), dtype
        )
    else:
        a = key.astype(dtype)
    return _negative(a) if sign < 0 else a


def parts(a) -> list:
    """The real and the imaginary parts of complex numbers. A NaN in one part is put in both."""
    return [jnp.where(jnp.isnan(a), jnp.nan, part) for part in (a.real, a.imag)]


def _negative(a):
    """Elements in the opposite order.

    That is the complement of integers: `-a` of an unsigned or of the lowest integer wraps around.
    """
    return -a if jnp.issubdtype(a.dtype, jnp.inexact) else ~a


def _flipped(bits):
    """The bits of floats as integers of the same order, or back.

    Floats are sign and magnitude, so of negative numbers all bits but the sign are inverted.
    """
    return bits ^ ((bits >> (bits.dtype.itemsize * 8 - 1)) & jnp.iinfo(bits.dtype).max)


def computed_once(a):
    """`a` behind a barrier, so that a compiler computes it once for all its uses.

    If it computed `a` twice, in two fusions that round differently, no element of `a` might equal
    the one that was chosen from `a`, and the gradient would be lost.
    """
    return lax.optimization_barrier(a)


def share_ties(loop, dims: Dims, at: tuple[int, ...], a, chosen, tangent):
    """The derivative of a chosen element, such as a maximum. Elements that tie share it.

    Args:
      loop: the loop of the op; elements on other devices may tie too.
      dims: the dims along which one element was chosen.
      at: the positions of these dims in `a`.
      a: the array that was chosen from, `computed_once`.
      chosen: the chosen element for each of the other dims.
      tangent: the derivative of `a`.
    """
    in_order = tuple(d for _, d in sorted(zip(at, dims, strict=True), key=lambda pair: pair[0]))
    inside = jnp.expand_dims(loop.inside(in_order), [i for i in range(a.ndim) if i not in at])
    ties = ((a == jnp.expand_dims(chosen, at)) & inside).astype(a.dtype)
    count = loop.psum(jnp.sum(ties, at), dims)
    return loop.psum(jnp.sum(tangent * ties, at), dims) / count
