"""Dtypes of a step: casts, stochastic rounding, and the scale of the loss.

`docs/precision.md` says what is computed and kept in which dtype.

Parameters and optimizer state may be kept in fewer bits than the update is computed in. A bfloat16
parameter has 8 bits of precision, so a small update of it is mostly rounded away. If it is rounded
up or down at random, with a probability by how near each is, the update is right on average (Gupta
et al., 2015, "Deep learning with limited numerical precision").
"""

from __future__ import annotations

import zlib
from typing import Any

import jax
import jax.numpy as jnp
from flax.struct import PyTreeNode
from jax import lax

from meshdsl.tensor import is_tensor

GROWS_AFTER = 2000  # so many steps without an overflow
LARGEST_SCALE = 2.0**24  # the smallest number of float16 is 2**-24, so a larger scale gains nothing
# Folded into the run's key to make the key of rounding. Steps fold in their number, which is less.
_ROUNDING = 2**32 - 1


def cast(tree: Any, dtype) -> Any:
    """`tree` with the floats of its Tensors in `dtype`; whatever is not a Tensor stays as it is."""

    def cast_array(array):
        floats = jnp.issubdtype(array.dtype, jnp.floating)
        return array.astype(dtype) if floats and array.dtype != dtype else array

    return jax.tree.map(
        lambda t: jax.tree.map(cast_array, t) if is_tensor(t) else t, tree, is_leaf=is_tensor
    )


def stochastic_round(x: jax.Array, key) -> jax.Array:
    """Round float32 `x` to bfloat16, up or down at random, so that the mean is `x`.

    A bfloat16 is the upper half of a float32. So 16 random bits are added to the lower half, which
    carries into the upper half as often as it should, and the lower half is dropped. The bits are a
    function of `key` and of the index of an element, so they are the same under every split of `x`.
    NaN and the infinities stay what they are.
    """
    noise = jax.random.bits(key, x.shape, jnp.uint16).astype(jnp.uint32)
    bits = lax.bitcast_convert_type(x, jnp.uint32) + noise
    upper = lax.bitcast_convert_type((bits >> 16).astype(jnp.uint16), jnp.bfloat16)
    return jnp.where(jnp.isfinite(x), upper, x.astype(jnp.bfloat16))


def round_at_random(params: Any, key, step) -> Any:
    """`params`, Tensors of float32, rounded to bfloat16 by `stochastic_round`.

    The random bits are a function of the run's `key`, of `step`, and of a parameter's path.
    """
    key = jax.random.fold_in(jax.random.fold_in(key, _ROUNDING), step)

    def round_tensor(path, tensor):
        name = jax.tree_util.keystr(path, simple=True, separator=".")
        return jax.tree.map(
            lambda x: stochastic_round(x, jax.random.fold_in(key, zlib.crc32(name.encode()))),
            tensor,
        )

    return jax.tree_util.tree_map_with_path(round_tensor, params, is_leaf=is_tensor)


class LossScale(PyTreeNode):
    """What the loss is multiplied by before gradients are taken, so that float16 ones are not 0.

    It is halved when gradients overflow, and doubled after 2000 steps in which they did not
    (Micikevicius et al., 2018, "Mixed precision training").

    Attributes:
      value: float32, a power of 2, so that dividing by it again is exact.
      good: how many steps had no overflow since the value last changed.
    """

    value: jax.Array
    good: jax.Array

    @classmethod
    def first(cls) -> LossScale:
        """The scale that a run begins with."""
        return cls(jnp.full((), 2.0**16, jnp.float32), jnp.zeros((), jnp.int32))

    def after(self, finite) -> LossScale:
        """The scale after a step; `finite`: whether its loss and gradients were."""
        good = jnp.where(finite, self.good + 1, 0)
        grows = good >= GROWS_AFTER
        larger = jnp.where(grows, jnp.minimum(self.value * 2, LARGEST_SCALE), self.value)
        return LossScale(
            jnp.where(finite, larger, jnp.maximum(self.value / 2, 1.0)), jnp.where(grows, 0, good)
        )
