"""Random numbers of many distributions; they are the same under every layout.

The bits of an element are threefry's, of the key and of the element's index in the whole tensor
(row-major in the dims' order). So a device draws its own part without asking others, and every
layout draws the same numbers. They are also those of `jax.random` for an array of that shape
(with `jax_threefry_partitionable`, JAX's default). All functions take

    key: a JAX PRNG key (threefry), an array or a Tensor without dims; the same on every device.
    dims: dims of the result; those of `like` may be given by their names.
    like: any tensor of the computation, so that each device draws its own part only; see `iota`.

Other distributions are computed from uniform numbers by the arithmetic of `bitwise.py`: no layout,
no version of JAX and no fusion with other operations changes a bit of a draw.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike

from meshdsl import dims as dim_algebra
from meshdsl.dims import Dim, Dims
from meshdsl.errors import MeshDSLError, quote
from meshdsl.lowering.device_loop import DeviceLoop
from meshdsl.lowering.law import apply_op
from meshdsl.ops import bitwise, component, threefry
from meshdsl.ops.declare import Case, Draw, Example, of_x, op
from meshdsl.tensor import Tensor

Names = Dim | str | Iterable[Dim | str]
_ROOT2 = 2**0.5
_ABOVE = float(np.nextafter(np.float32(-1), np.float32(0)))  # the lowest number above -1
_TINY = float(np.finfo(np.float32).tiny)


def _draw(name: str, key, dims, like: Tensor | None, of: Callable) -> Tensor:
    """A random tensor.

    Args:
      of: draws a device's part; called with the loop, the two words of the key, and the dims.
    """
    dims = dim_algebra.resolve("random", like.dims if like is not None else (), dims)
    dims, data = dim_algebra.distinct(dims, "random"), threefry.key_data(key)
    local = lambda loop: of(loop, data, dims)
    return apply_op(f"random.{name}", local, (), loop=dims, out=dims, in_order=(), like=like)


def _drawn(call: Callable = lambda fn, key, dims, x: fn(key, dims, like=x)) -> Example:
    """`call(op, key, dims, x)`, for a tensor of two dims and one like it."""

    def example(fn: Callable, draw: Draw) -> Case:
        a, b = draw.dims("a", "b")
        return Case(lambda x: call(fn, jax.random.key(5), (a, b), x), (draw.tensor(a, b),))

    return example


@op(
    names=("random.bits",),
    computes="its own part, of the key and the indices in the whole",
    example=_drawn(),
    result="makes",
    gradients=False,
)
def bits(key, dims: Names, *, like: Tensor | None = None) -> Tensor:
    """Uniform random uint32: `jax.random.bits`, to the bit."""
    return _draw("bits", key, dims, like, threefry.bits)


@op(
    names=("random.uniform",),
    computes="its own part, of the key and the indices in the whole",
    mesh_tensorflow="RandomOperation; other numbers under every layout",
    example=_drawn(),
    result="makes",
    gradients=False,
)
def uniform(
    key,
    dims: Names,
    dtype: DTypeLike = jnp.float32,
    *,
    low=0.0,
    high=1.0,
    like: Tensor | None = None,
) -> Tensor:
    """Uniform in [low, high).

    In float32 these are the numbers of `jax.random.uniform`: to the bit between 0 and 1, and but
    for rounding elsewhere.
    """
    part = lambda loop, key, dims: _between(loop, key, dims, dtype, low, high)
    return _draw("uniform", key, dims, like, part)


def _between(loop: DeviceLoop, key, dims: Dims, dtype, low, high) -> jax.Array:
    """Uniform in [low, high), for this device's part of `dims`."""
    low, high = jnp.asarray(low, dtype), jnp.asarray(high, dtype)
    above = bitwise.apart(threefry.unit(loop, key, dims, dtype) * (high - low))
    return jnp.maximum(low, above + low)


def _of_uniform(u, dtype) -> jax.Array:
    """Standard normal numbers, computed from numbers that are uniform between -1 and 1."""
    return bitwise.apart(bitwise.erf_inv(u) * _ROOT2).astype(dtype)


@op(
    names=("random.normal",),
    computes="its own part, of the key and the indices in the whole",
    mesh_tensorflow="RandomOperation; other numbers under every layout",
    example=_drawn(),
    result="makes",
    gradients=False,
)
def normal(
    key, dims: Names, dtype: DTypeLike = jnp.float32, *, like: Tensor | None = None
) -> Tensor:
    """Standard normal: `jax.random.normal` but for rounding.

    Other dtypes than float32 are rounded from that.
    """
    uniform = lambda loop, key, dims: _between(loop, key, dims, jnp.float32, _ABOVE, 1)
    part = lambda *args: _of_uniform(uniform(*args), dtype)
    return _draw("normal", key, dims, like, part)


@op(
    names=("random.truncated_normal",),
    computes="its own part, of the key and the indices in the whole",
    example=_drawn(
        lambda truncated_normal, key, dims, x: truncated_normal(key, dims, -2.0, 2.0, like=x)
    ),
    result="makes",
    gradients=False,
)
def truncated_normal(
    key,
    dims: Names,
    lower: float,
    upper: float,
    dtype: DTypeLike = jnp.float32,
    *,
    like: Tensor | None = None,
) -> Tensor:
    """Standard normal between `lower` and `upper`, neither included.

    These are the numbers of `jax.random.truncated_normal` but for rounding.

    Raises:
      MeshDSLError: `lower` is not below `upper`.
    """
    if not lower < upper:
        raise MeshDSLError(
            f"truncated_normal: lower is below upper, but {quote(lower)} is not below "
            f"{quote(upper)}"
        )
    ends = [min(max(math.erf(end * 0.5**0.5), _ABOVE), -_ABOVE) for end in (lower, upper)]
    inside = (
        np.nextafter(np.float32(lower), np.float32(np.inf)),
        np.nextafter(np.float32(upper), -np.float32(np.inf)),
    )

    def part(loop, key, dims):
        drawn = _of_uniform(_between(loop, key, dims, jnp.float32, *ends), jnp.float32)
        return jnp.clip(drawn, *inside).astype(dtype)

    return _draw("truncated_normal", key, dims, like, part)


@op(
    names=("random.exponential",),
    computes="its own part, of the key and the indices in the whole",
    example=_drawn(),
    result="makes",
    gradients=False,
)
def exponential(key, dims: Names, *, like: Tensor | None = None) -> Tensor:
    """Exponential with mean 1: `jax.random.exponential` but for rounding."""
    uniform = lambda loop, key, dims: threefry.unit(loop, key, dims, jnp.float32)
    part = lambda *args: -bitwise.log(1 - uniform(*args))
    return _draw("exponential", key, dims, like, part)


@op(
    names=("random.gumbel",),
    computes="its own part, of the key and the indices in the whole",
    mesh_tensorflow="RandomOperation (`sample_with_temperature`)",
    example=_drawn(),
    result="makes",
    gradients=False,
)
def gumbel(key, dims: Names, *, like: Tensor | None = None) -> Tensor:
    """Standard Gumbel: `jax.random.gumbel` but for rounding.

    The index of the largest of `logits + gumbel` is a sample of `softmax(logits)`.
    """

    def part(loop, key, dims):
        u = jnp.maximum(_TINY, threefry.unit(loop, key, dims, jnp.float32))
        return -bitwise.log(-bitwise.log(u))

    return _draw("gumbel", key, dims, like, part)


@op(
    names=("random.bernoulli",),
    computes="its own part, of the key and the indices in the whole",
    example=_drawn(lambda bernoulli, key, dims, x: bernoulli(key, 0.3, dims, like=x)),
    gradients=False,
)
def bernoulli(
    key, probability: float | Tensor | jax.Array, dims: Names, *, like: Tensor | None = None
) -> Tensor:
    """True with the given probability, else False: `jax.random.bernoulli`, exactly."""
    return component.map(jnp.less, uniform(key, dims, like=like), probability, name="bernoulli")


@op(
    names=("random.randint",),
    computes="its own part, of the key and the indices in the whole",
    example=_drawn(lambda randint, key, dims, x: randint(key, dims, -3, 99, like=x)),
    result="makes",
    gradients=False,
)
def randint(key, dims: Names, low: int, high: int, *, like: Tensor | None = None) -> Tensor:
    """Whole numbers (int32) from `low` to below `high`: `jax.random.randint`, exactly.

    Raises:
      MeshDSLError: `low` is not below `high`, or either is no int32.
    """
    if not all(isinstance(n, int) for n in (low, high)) or not -(2**31) <= low < high <= 2**31 - 1:
        raise MeshDSLError(
            "randint: from a whole number to a larger one, both int32, not from "
            f"{quote(low)} to {quote(high)}"
        )
    span = high - low

    def part(loop, key, dims):
        coarse, fine = (threefry.bits(loop, half, dims) for half in threefry.two_keys(key))
        offset = (
            coarse % jnp.uint32(span) * jnp.uint32((2**16 % span) ** 2 % 2**32 % span)
            + fine % jnp.uint32(span)
        ) % jnp.uint32(span)
        return jnp.int32(low) + offset.astype(jnp.int32)

    return _draw("randint", key, dims, like, part)


@op(
    names=("dropout", "random.dropout"),
    computes="its own part, of the key and the indices in the whole",
    mesh_tensorflow="RandomOperation (`dropout`); other elements under every layout",
    example=of_x(lambda dropout, x: dropout(x, 0.5, jax.random.key(5))),
    result="same",
)
def dropout(x: Tensor, rate: float, key) -> Tensor:
    """`x` with each element set to 0 with probability `rate`, and the others divided by `1 - rate`.

    Raises:
      MeshDSLError: a rate outside [0, 1).
    """
    if not 0 <= rate < 1:
        raise MeshDSLError(f"dropout: the rate is at least 0 and less than 1, not {quote(rate)}")
    if rate == 0:
        return x
    data = threefry.key_data(key)

    def local(loop, a):
        keep = threefry.unit(loop, data, x.dims, jnp.float32) >= rate
        return jnp.where(keep, a / (1 - rate), jnp.zeros((), a.dtype)).astype(a.dtype)

    return component.apply_alike("dropout", local, x, in_order=())
