"""The formats of numbers in few bits, and how an array is rounded to one.

A number `x` is kept as `values * scale`. The scale is chosen so that what it stands for fits into
the range of the format, and `values` is `x / scale`, rounded to the nearest number that the format
has, ties to even. Arrays of values keep a wider dtype, in which all numbers of a format are exact;
products and collectives cast them to the format's own.

Sources: OCP 8-bit Floating Point Specification (2023) for e4m3 and e5m2. The scale of int8 is
that of qwix (and of AQT, https://github.com/google/aqt): the largest magnitude becomes 127.5, so
that the outermost numbers stand for as wide a range as all others. int8 is used from -127 to 127:
qwix makes -128 of -127.5, and -127 of what is a bit less by a rounding that compilers do as they
like.
"""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from meshdsl.errors import MeshDSLError, nearest, quote

_TINY = float(np.sqrt(np.finfo(np.float32).tiny))  # a smaller scale would lose its last bits


class Format(NamedTuple):
    """A format of numbers.

    Attributes:
      dtype: the dtype of arrays in this format.
      sums: the dtype in which products of such numbers are added up.
      bound: the magnitude that the largest one becomes.
      ends: the least and the largest number of the format.
      longest: how many products of two such numbers may be added up.
    """

    dtype: np.dtype
    sums: np.dtype
    bound: float
    ends: tuple[float, float]
    longest: int = 2**62

    def nearest(self, x) -> jax.Array:
        """The numbers of this format that are nearest to `x`, in the dtype of `x`."""
        if jnp.issubdtype(self.dtype, jnp.integer):
            return jnp.clip(jnp.round(x), *self.ends)
        # Without the barrier a compiler may leave out both casts, and with them the rounding.
        x_in_format = jnp.clip(x, *self.ends).astype(self.dtype)
        return lax.optimization_barrier(x_in_format).astype(x.dtype)


def _floats(dtype: Any) -> Format:
    largest = float(jnp.finfo(dtype).max)
    return Format(jnp.dtype(dtype), jnp.dtype(jnp.float32), largest, (-largest, largest))


INT8 = Format(jnp.dtype(jnp.int8), jnp.dtype(jnp.int32), 127.5, (-127.0, 127.0), 2**31 // 127**2)
E4M3, E5M2 = _floats(jnp.float8_e4m3fn), _floats(jnp.float8_e5m2)


class Recipe(NamedTuple):
    """The formats of the three products of a training step that a weight is in.

    Attributes:
      name: as `precision.matmul` and `md.quantized_dot` call it: `int8`.
      forward: of what is multiplied in the forward pass, `x` and the weight.
      gradient: of the gradient of the result, in both products of the backward pass.
    """

    name: str
    forward: Format
    gradient: Format


RECIPES = {r.name: r for r in (Recipe("int8", INT8, INT8), Recipe("fp8", E4M3, E5M2))}


def recipe(where: str, name) -> Recipe:
    """The recipe that is called `name`.

    Raises:
      MeshDSLError: there is none; the message begins with `where`.
    """
    if name not in RECIPES:
        known = ", ".join(map(repr, RECIPES))
        raise MeshDSLError(
            f"{where}: the format is one of {known}, not {quote(name)}{nearest(str(name), RECIPES)}"
        )
    return RECIPES[name]


def scale_of(largest, format: Format) -> jax.Array:
    """The scale, in float32, with which `largest` becomes the bound of the format.

    Where it would be next to nothing, as for zeros, it is 1.
    """
    scale = largest.astype(jnp.float32) / format.bound
    return jnp.where(scale < _TINY, 1, scale)


@partial(jax.custom_jvp, nondiff_argnums=(2, 3))
def rounded(x, scale, format: Format, dtype) -> jax.Array:
    """The values of `x`, cast to `dtype` first, for this scale; they have the dtype of `x`.

    The gradient passes straight through, so a cotangent of values is one of the numbers that they
    stand for. It keeps the dtype of `x`.
    """
    # A quotient may be rounded in one way in one program, and in another way in the next: compilers
    # multiply by the reciprocal where they like. A product is the same in all.
    reciprocal = lax.optimization_barrier(1 / scale)
    wide = x.astype(dtype).astype(jnp.float32)
    return format.nearest(wide * reciprocal).astype(x.dtype)


@rounded.defjvp
def _rounded_jvp(format: Format, dtype, primals, tangents):
    return rounded(*primals, format, dtype), tangents[0]
