"""What it means that one element is larger than another: bounds, keys that order alike, and ties.

Complex numbers are compared by their real parts, and where these are equal by their imaginary
parts, as in NumPy.
"""

from __future__ import annotations

import jax.numpy as jnp
from jax import lax

from meshdsl.dims import Dims, show
from meshdsl.errors import MeshDSLError
from meshdsl.tensor import Tensor


def check_some(name: str, x: Tensor, dims: Dims) -> None:
    """Raise a MeshDSLError where there is no element over `dims`, of which one is to be chosen."""
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
    return jnp.issubdtype(dtype, jnp.complexfloating)


def bounds(dtype) -> tuple[complex | float | int | bool, complex | float | int | bool]:
    """The lowest and the highest value of a dtype."""
    if is_complex(dtype):
        return complex(-jnp.inf, -jnp.inf), complex(jnp.inf, jnp.inf)
    if dtype == bool:
        return False, True
    if jnp.issubdtype(dtype, jnp.integer):
        return int(jnp.iinfo(dtype).min), int(jnp.iinfo(dtype).max)
    return -jnp.inf, jnp.inf


def last(dtype) -> complex | float | int | bool:
    """The value that no other is sorted after: NaN, or the highest."""
    if is_complex(dtype):
        return complex(jnp.nan, jnp.nan)
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
        a = lax.bitcast_convert_type(
            _flipped(key.astype(f"int{jnp.dtype(dtype).itemsize * 8}")), dtype
        )
    else:
        a = key.astype(dtype)
    return _negative(a) if sign < 0 else a


def parts(a) -> list:
    """The real and then the imaginary parts of complex numbers. A NaN in either part is in both."""
    return [jnp.where(jnp.isnan(a), jnp.nan, part) for part in (a.real, a.imag)]


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
