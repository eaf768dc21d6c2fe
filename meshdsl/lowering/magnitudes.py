"""The largest magnitude among numbers, by which these are rounded to few bits."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax


def largest(x, positions: Any, *, keepdims: bool = False) -> jax.Array:
    """The largest magnitude along positions of `x`, in float32; of nothing it is 0.

    It is infinite where one of the numbers is NaN, and so is the maximum of such numbers over
    devices: the compilers for CPUs and collectives of some devices leave NaN out of a maximum of
    floats. For that reason whole numbers are compared here: the bits of floats without a sign are
    in the order of these.
    """
    bits = lax.bitcast_convert_type(jnp.abs(x.astype(jnp.float32)), jnp.int32)
    top = jnp.max(bits, positions, keepdims=keepdims, initial=0)
    top = lax.bitcast_convert_type(top, jnp.float32)
    return jnp.where(jnp.isnan(top), jnp.inf, top)
