"""The blocks of an array in zigzag order (`splits.zigzag`), and back in natural order.

These are functions of what one device has; nothing travels. A dim that is cut in zigzag order is
first arranged such that the parts are runs of it, and one that has been put together of such parts
is arranged back.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from meshdsl.lowering import collectives


def in_zigzag(array, at: int, parts: int) -> jax.Array:
    """The array with position `at` arranged such that its `parts` runs are the zigzag parts."""

    def arranged(array):
        blocks = _blocks(array, at, (2, parts))
        early, late = (lax.index_in_dim(blocks, i, at, keepdims=False) for i in (0, 1))
        return jnp.stack([early, jnp.flip(late, at)], at + 1).reshape(array.shape)

    return _arranged(arranged, array, parts)


def in_natural(array, at: int, parts: int) -> jax.Array:
    """The inverse of `in_zigzag`."""

    def arranged(array):
        blocks = _blocks(array, at, (parts, 2))
        early, late = (lax.index_in_dim(blocks, i, at + 1, keepdims=False) for i in (0, 1))
        return jnp.concatenate([early, jnp.flip(late, at)], at).reshape(array.shape)

    return _arranged(arranged, array, parts)


def own_blocks(array, axes: collectives.Axes, at: int, parts: int) -> jax.Array:
    """The two blocks of position `at` that this device has of it, of `parts` zigzag parts."""
    block, part = array.shape[at] // (2 * parts), collectives.position(axes)
    starts = part * block, (2 * parts - 1 - part) * block
    return jnp.concatenate([lax.dynamic_slice_in_dim(array, s, block, at) for s in starts], at)


def of_words(change: Callable, array) -> jax.Array:
    """`change` of an array; of random keys, of which JAX can do less, it is that of their words."""
    if not jnp.issubdtype(array.dtype, jax.dtypes.prng_key):
        return change(array)
    words = change(jax.random.key_data(array))
    return jax.random.wrap_key_data(words, impl=jax.random.key_impl(array))


def _arranged(change: Callable, array, parts: int) -> Any:
    if not array.size or parts == 1:
        return array
    return of_words(change, array)


def _blocks(array, at: int, counts: tuple[int, int]) -> jax.Array:
    """The array with position `at` as three: `counts` of blocks, and the elements of a block."""
    size = array.shape[at] // (counts[0] * counts[1])
    return array.reshape(*array.shape[:at], *counts, size, *array.shape[at + 1 :])
