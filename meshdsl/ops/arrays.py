"""Functions of a device's arrays that the local functions of several ops call."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from meshdsl.dims import Dim, Dims
from meshdsl.lowering import collectives, kernels
from meshdsl.lowering.kernels import Products


def varying_as(like, tree) -> Any:
    """A tree of arrays with types that vary over the axes that the array `like` varies over."""
    axes = collectives.varying(like)
    return jax.tree.map(lambda x: collectives.vary(x, axes), tree)


def as_one(lowered: bool, fn: Callable, *arrays, products: Products, **options) -> Any:
    """`fn(*arrays)`, of local arrays; in a lowering as one operation, which states its products.

    Args:
      options: further arguments of `lowering.kernels.opaque`.
    """
    return kernels.opaque(fn, *arrays, products=products, **options) if lowered else fn(*arrays)


def padded(x, at: int, length: int, mode: str = "constant", **options) -> jax.Array:
    """`x` with elements added at the end of position `at`, so that it has `length` of them.

    Args:
      mode, options: as in `jnp.pad`; by default zeros are added, and by "edge" the last element.
    """
    if x.shape[at] == length:
        return x
    widths = [(0, length - n if i == at else 0) for i, n in enumerate(x.shape)]
    return jnp.pad(x, widths, mode=mode if x.size else "constant", **options)


def capped(scores, softcap: float | None) -> tuple[jax.Array, jax.Array | None]:
    """`softcap * tanh(scores / softcap)` and its derivative; without a cap the scores and None."""
    if softcap is None:
        return scores, None
    bent = jnp.tanh(scores / softcap)
    return bent * softcap, 1 - bent * bent


def in_order(array, dims: Dims, order: Sequence[Dim]) -> jax.Array:
    """An array that has `dims`, transposed to the order `order`; if that is `dims`, as it is."""
    positions = [dims.index(d) for d in order]
    return array if positions == [*range(len(dims))] else jnp.transpose(array, positions)


def fitted(array, dims: Dims, order: Dims) -> jax.Array:
    """An array of `dims`, with its dims in `order`, and of size 1 along those that it lacks."""
    array = in_order(array, dims, [d for d in order if d in dims])
    sizes = iter(array.shape)
    return array.reshape([next(sizes) if d in dims else 1 for d in order])


def chosen(mask, x, other) -> jax.Array:
    """`jnp.where(mask, x, other)` for a number or array `other`, by the primitives alone.

    JAX traces, and differentiates, a function of its own for each `jnp.where`.
    """
    shape = x.shape if mask.shape == x.shape else jnp.broadcast_shapes(mask.shape, x.shape)
    spread = lambda a: a if a.shape == shape else jnp.broadcast_to(a, shape)
    rest = spread(other) if isinstance(other, jax.Array) else lax.full(shape, other, x.dtype)
    return lax.select(spread(mask), spread(x), rest)


def within(x, size) -> jax.Array:
    """Which whole numbers are at least zero, and less than `size`."""
    return lax.bitwise_and(lax.ge(x, 0), lax.lt(x, size))


def laid_along(x, at: int, ndim: int) -> jax.Array:
    """An array of one dimension, reshaped to `ndim` dimensions: its elements lie along `at`."""
    return x.reshape([-1 if i == at else 1 for i in range(ndim)])
