"""The formats of numbers in few bits, and how an array is rounded to one.

A number `x` is kept as `values * scale`. The scale is chosen so that what it stands for fits into
the range of the format, and `values` is `x / scale`, rounded to the nearest number that the format
has, ties to even; or, where random bits are given, to one of the two numbers beside it, with a
probability by how near each is. Arrays of values keep a wider dtype, in which all numbers of a
format are exact; products and collectives cast them to the format's own.

A scale is that of all numbers that a product sums over, or of a block of them. The scale of a block
is a number of a few bits itself, so that values times scales are exact in bfloat16: a power of two,
the least with which nothing in the block overflows, or for nvfp4 a number of 4 bits. So a product
of blocks is one of bfloat16, summed in float32, and nothing is rounded but once.

Sources: OCP 8-bit Floating Point Specification (2023) for e4m3 and e5m2, OCP Microscaling Formats
(2023) for e2m1 and blocks of 32 with powers of two, which are rounded up as in Mishra et al., 2025,
"Recipes for pre-training LLMs with MXFP8"; NVIDIA et al., 2025, "Pretraining large language models
with NVFP4". The scale of int8 is that of qwix (and of AQT, https://github.com/google/aqt): the
largest magnitude becomes 127.5, so that the outermost numbers stand for as wide a range as all
others. int8 is used from -127 to 127: qwix makes -128 of -127.5, and -127 of what is a bit less by
a rounding that compilers do as they like.
"""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from meshdsl.errors import MeshDSLError, nearest, quote

_SMALLEST = -63  # the exponent of the least scale: a smaller one would lose its last bits
_TINY = float(np.sqrt(np.finfo(np.float32).tiny))


class Format(NamedTuple):
    """A format of numbers.

    Attributes:
      dtype: the dtype of arrays in this format, in which they travel: one that has all its numbers.
      sums: the dtype in which products of such numbers are added up.
      bound: the magnitude that the largest one becomes.
      ends: the least and the largest number of the format.
      longest: how many products of two such numbers may be added up.
      numbers: the dtype that has the numbers of the format and no others.
      scales: the dtype of the scales of blocks, where they are no powers of two.
    """

    dtype: np.dtype
    sums: np.dtype
    bound: float
    ends: tuple[float, float]
    longest: int
    numbers: np.dtype
    scales: np.dtype | None = None

    def nearest(self, x, bits=None) -> jax.Array:
        """The numbers of this format that are nearest to `x`, in the dtype of `x`.

        Args:
          bits: random uint32, with which the number above or below is chosen instead.
        """
        if bits is not None:
            spacing = self._spacing(x)
            chance = (bits >> 16).astype(x.dtype) * 2.0**-16
            up = jnp.floor(jnp.abs(x) * (1 / spacing) + chance)
            return jnp.clip(jnp.sign(x) * up * spacing, *self.ends)
        if jnp.issubdtype(self.numbers, jnp.integer):
            return jnp.clip(jnp.round(x), *self.ends)
        # Without the barrier a compiler may leave out both casts, and with them the rounding.
        x_in_format = jnp.clip(x, *self.ends).astype(self.numbers)
        return lax.optimization_barrier(x_in_format).astype(x.dtype)

    def _spacing(self, x) -> Any:
        """How far apart the two numbers of the format are that `x`, a float32, lies between."""
        if jnp.issubdtype(self.numbers, jnp.integer):
            return 1.0
        info = jnp.finfo(self.numbers)
        exponent = jnp.maximum(_exponent(lax.bitcast_convert_type(x, jnp.int32)), int(info.minexp))
        return _power_of_two(exponent - info.nmant)


def _floats(numbers: Any, dtype: Any = None, **how) -> Format:
    largest = float(jnp.finfo(numbers).max)
    return Format(
        jnp.dtype(dtype or numbers),
        jnp.dtype(jnp.float32),
        largest,
        (-largest, largest),
        2**62,
        jnp.dtype(numbers),
        **how,
    )


_INT8 = jnp.dtype(jnp.int8)
INT8 = Format(_INT8, jnp.dtype(jnp.int32), 127.5, (-127.0, 127.0), 2**31 // 127**2, _INT8)
E4M3, E5M2 = _floats(jnp.float8_e4m3fn), _floats(jnp.float8_e5m2)
# The collectives of GPUs have no type of 4 bits, so these numbers travel in 8.
E2M1 = _floats(jnp.float4_e2m1fn, jnp.float8_e4m3fn, scales=jnp.dtype(jnp.float8_e4m3fn))


class Recipe(NamedTuple):
    """The formats of the three products of a training step that a weight is in.

    Attributes:
      name: as `precision.matmul` and `md.quantized_dot` call it: `int8`.
      forward: of what is multiplied in the forward pass, `x` and the weight.
      gradient: of the gradient of the result, in both products of the backward pass.
      block: how many consecutive numbers have one scale; 0: all that a product sums over.
      fixed: whether the block belongs to the name, so that no other can be chosen.
    """

    name: str
    forward: Format
    gradient: Format
    block: int = 0
    fixed: bool = False

    def in_blocks(self, where: str, block: int | None) -> Recipe:
        """The same with a scale for each block; None: as it is.

        The range of a block is small, so its gradients do without a format of a wide range.

        Raises:
          MeshDSLError: `block` is no size of a block, or the format has a size of its own.
        """
        if block is None:
            return self
        if self.fixed:
            raise MeshDSLError(
                f"{where}: {quote(self.name)} has blocks of {self.block}; it takes no other scales"
            )
        if not isinstance(block, int) or isinstance(block, bool) or block < 1:
            raise MeshDSLError(f"{where}: a block is a number of elements, 1 or more, not {block}")
        return self._replace(block=block, gradient=self.forward)


RECIPES = {
    r.name: r
    for r in (
        Recipe("int8", INT8, INT8),
        Recipe("fp8", E4M3, E5M2),
        Recipe("mxfp8", E4M3, E4M3, 32, True),
        Recipe("nvfp4", E2M1, E2M1, 16, True),
    )
}


def recipe(where: str, name) -> Recipe:
    """The recipe that is called `name`.

    Raises:
      MeshDSLError: there is none; the message begins with `where`.
    """
    if name not in RECIPES:
        known = ", ".join(map(repr, RECIPES))
        raise MeshDSLError(
            f"{where}: the format is one of {known}, not {quote(name)}"
            f"{nearest(str(name), RECIPES, far='')}"
        )
    return RECIPES[name]


def scale_of(largest, format: Format) -> jax.Array:
    """The scale, in float32, with which `largest` becomes the bound of the format.

    Where it would be next to nothing, as for zeros, it is 1.
    """
    scale = largest.astype(jnp.float32) / format.bound
    return jnp.where(scale < _TINY, 1, scale)


def power_of_two(largest, bound: float) -> jax.Array:
    """The least power of two, in float32, that times `bound` is no less than `largest`.

    It is found in the bits of both, so that no compiler rounds it. Where it would be next to
    nothing, as for zeros, it is 1, and where `largest` is not finite, NaN.
    """
    fraction = 2**23 - 1
    bits = lax.bitcast_convert_type(largest.astype(jnp.float32), jnp.int32)
    limit = int(np.float32(bound).view(np.int32))
    above = ((bits & fraction) > (limit & fraction)).astype(jnp.int32)
    exponent = _exponent(bits) - _exponent(limit) + above
    scale = _power_of_two(jnp.where(exponent < _SMALLEST, 0, exponent))
    return jnp.where(jnp.isfinite(largest), scale, jnp.nan)


def block_scale(largest, largest_of_row, format: Format) -> jax.Array:
    """The scales of blocks, in float32: each has at most 4 bits, so that bfloat16 has them all.

    For formats whose scales are numbers of few bits themselves, these are multiplied by a power of
    two for each row, by which they come into their range.

    Args:
      largest: the largest magnitude of each block.
      largest_of_row: that of all blocks that a product sums over; for other formats not used.
    """
    if format.scales is None:
        return power_of_two(largest, format.bound)
    info = jnp.finfo(format.scales)
    row = power_of_two(largest_of_row, float(info.max) * format.bound)
    steps = largest * (1 / row) * np.float32(1 / format.bound)
    steps = jnp.clip(steps, float(info.smallest_subnormal), float(info.max)).astype(format.scales)
    return lax.optimization_barrier(steps).astype(jnp.float32) * row


def _exponent(bits) -> Any:
    """The exponent of a float32 that has these bits, as a whole number."""
    return (bits >> 23 & 0xFF) - 127


def _power_of_two(exponent) -> jax.Array:
    return lax.bitcast_convert_type((exponent + 127) << 23, jnp.float32)


@partial(jax.custom_jvp, nondiff_argnums=(2, 3))
def rounded(x, scale, format: Format, dtype, bits=None) -> jax.Array:
    """The values of `x`, cast to `dtype` first, for this scale; they have the dtype of `x`.

    The gradient passes straight through, so a cotangent of values is one of the numbers that they
    stand for. It keeps the dtype of `x`.

    Args:
      bits: random uint32, see `Format.nearest`.
    """
    # A quotient may be rounded in one way in one program, and in another way in the next: compilers
    # multiply by the reciprocal where they like. A product is the same in all.
    reciprocal = lax.optimization_barrier(1 / scale)
    wide = x.astype(dtype).astype(jnp.float32)
    return format.nearest(wide * reciprocal, bits).astype(x.dtype)


@rounded.defjvp
def _rounded_jvp(format: Format, dtype, primals, tangents):
    return rounded(primals[0], primals[1], format, dtype, *primals[2:]), tangents[0]
