"""Dtypes of a step: casts, rounding at random, and the scale of the loss. `docs/precision.md` says which dtype touches what.

Parameters and optimizer state may be kept in fewer bits than the update is computed in. A small update of a bfloat16
parameter, which has 8 bits of precision, is then mostly rounded away. Rounded up or down at random, by how near each is, it
is right on average (Gupta et al., 2015, "Deep learning with limited numerical precision").
"""

from __future__ import annotations

import zlib
from typing import Any

import jax
import jax.numpy as jnp
from flax.struct import PyTreeNode
from jax import lax

from meshdsl.tensor import is_tensor

GROWS_AFTER = 2000  # good steps
LARGEST_SCALE = 2.0**24  # float16's smallest number is 2**-24, so nothing is gained beyond
_ROUNDING = 2**32 - 1  # folded into the run's key, above every number of a step


def cast(tree: Any, dtype) -> Any:
    """`tree` with the floats of its Tensors in `dtype`; what is no Tensor, or has that dtype, is left as it is."""

    def one(array):
        return (
            array.astype(dtype)
            if jnp.issubdtype(array.dtype, jnp.floating) and array.dtype != dtype
            else array
        )

    return jax.tree.map(
        lambda t: jax.tree.map(one, t) if is_tensor(t) else t, tree, is_leaf=is_tensor
    )


def stochastic_round(x: jax.Array, key) -> jax.Array:
    """float32 `x` in bfloat16, up or down at random, so that the mean is `x`. What is not finite stays what it is.

    A bfloat16 is the upper half of a float32: a random lower half is added, and what does not carry is cut off. The bits are
    a function of `key` and of an element's index, so no split of `x` changes them.
    """
    noise = jax.random.bits(key, x.shape, jnp.uint16).astype(jnp.uint32)
    bits = lax.bitcast_convert_type(x, jnp.uint32) + noise
    upper = lax.bitcast_convert_type((bits >> 16).astype(jnp.uint16), jnp.bfloat16)
    return jnp.where(jnp.isfinite(x), upper, x.astype(jnp.bfloat16))


def round_at_random(params: Any, key, step) -> Any:
    """`params` (Tensors of float32) in bfloat16; every element draws from the run's key, the step, the path and its index."""
    key = jax.random.fold_in(jax.random.fold_in(key, _ROUNDING), step)

    def one(path, tensor):
        name = jax.tree_util.keystr(path, simple=True, separator=".")
        return jax.tree.map(
            lambda x: stochastic_round(x, jax.random.fold_in(key, zlib.crc32(name.encode()))),
            tensor,
        )

    return jax.tree_util.tree_map_with_path(one, params, is_leaf=is_tensor)


class LossScale(PyTreeNode):
    """What the loss is multiplied by before gradients are taken, so that those of float16 do not become 0.

    It is halved when they overflow, and doubled after 2000 steps in which they did not (Micikevicius et al., 2018, "Mixed
    precision training").

    Attributes:
      value: float32, a power of 2, so that what is divided by it again is exact.
      good: steps without an overflow since it last changed.
    """

    value: jax.Array
    good: jax.Array

    @classmethod
    def first(cls) -> LossScale:
        return cls(jnp.full((), 2.0**16, jnp.float32), jnp.zeros((), jnp.int32))

    def after(self, finite) -> LossScale:
        """The scale after a step whose loss and gradients were `finite`, or not."""
        good = jnp.where(finite, self.good + 1, 0)
        grows = good >= GROWS_AFTER
        larger = jnp.where(grows, jnp.minimum(self.value * 2, LARGEST_SCALE), self.value)
        return LossScale(
            jnp.where(finite, larger, jnp.maximum(self.value / 2, 1.0)), jnp.where(grows, 0, good)
        )
