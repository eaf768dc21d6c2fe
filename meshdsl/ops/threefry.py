"""Random bits that do not depend on the layout: a function of the key and of an element's index.

The function is threefry, as in `jax.random`, and the index is that in the whole tensor.
"""

from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp
from jax.extend.random import threefry_2x32

from meshdsl.dims import Dims
from meshdsl.errors import MeshDSLError, quote
from meshdsl.lowering.device_loop import DeviceLoop
from meshdsl.ops.arrays import laid_along
from meshdsl.tensor import Tensor


def key_data(key) -> jax.Array:
    """The two words of a key.

    Args:
      key: a JAX PRNG key (threefry), or its two words; an array, or a Tensor without dims.

    Raises:
      MeshDSLError: it is none of these, or a key of another kind.
    """
    key = key.array if isinstance(key, Tensor) else key
    typed = hasattr(key, "dtype") and jnp.issubdtype(key.dtype, jax.dtypes.prng_key)
    if getattr(key, "shape", None) != (() if typed else (2,)) or not (
        typed or key.dtype == jnp.uint32
    ):
        got = f"an array of {key.dtype} {key.shape}" if hasattr(key, "dtype") else quote(key)
        raise MeshDSLError(f"random: the key is one jax.random.key(...), not {got}")
    if not typed:
        return key
    if str(jax.random.key_impl(key)) != "threefry2x32":
        raise MeshDSLError(
            f"random: the key is of the kind {jax.random.key_impl(key)}; draws need threefry2x32"
        )
    return jax.random.key_data(key)


def two_keys(key) -> jax.Array:
    """The words of the two keys that `jax.random.split` derives from a key."""
    return jax.random.key_data(jax.random.split(jax.random.wrap_key_data(key, impl="threefry2x32")))


def bits(loop: DeviceLoop, key, dims: Dims) -> jax.Array:
    """Random uint32 for this device's part of `dims`.

    They are threefry of the 64-bit index in the whole tensor, so there may be more than 2**32
    elements.
    """
    return bits_at([loop.indices(d, jnp.uint32) for d in dims], key, dims)


def bits_at(indices: Sequence[jax.Array], key, dims: Dims) -> jax.Array:
    """Random uint32 for the elements of `dims` that have these indices, as `bits`."""
    shape = tuple(len(each) for each in indices)
    high, low = jnp.zeros(shape, jnp.uint32), jnp.zeros(shape, jnp.uint32)
    stride = 1
    for i in reversed(range(len(dims))):
        index = laid_along(indices[i], i, len(dims))
        up, down = product64(index, stride, dims[i].size)
        low = low + down
        high = high + up + (low < down)
        stride *= dims[i].size
    both = threefry_2x32(key, jnp.concatenate([high.ravel(), low.ravel()]))
    first, second = jnp.split(both, 2)
    return (first ^ second).reshape(shape)


def product64(index, stride: int, size: int):
    """`index * stride` as two uint32 words, the high one first, for indices below `size`."""
    if size * stride <= 2**32:
        return jnp.zeros_like(index), index * jnp.uint32(stride)
    words = [jnp.uint32(stride >> s & 0xFFFF) for s in (0, 16, 32, 48)]
    halves = index & 0xFFFF, index >> 16
    low, high = halves[0] * words[0], jnp.zeros_like(index)
    for product, shift in ((halves[1] * words[0], 16), (halves[0] * words[1], 16)):
        add = product << shift
        low = low + add
        high = high + (product >> (32 - shift)) + (low < add)
    high = (
        high
        + halves[1] * words[1]
        + halves[0] * words[2]
        + ((halves[1] * words[2] + halves[0] * words[3]) << 16)
    )
    return high, low


def unit(loop: DeviceLoop, key, dims: Dims, dtype) -> jax.Array:
    """Uniform in [0, 1) for this device's part of `dims`.

    Random bits fill the mantissa, in float32 as `jax.random` does it.
    """
    digits = min(jnp.finfo(dtype).nmant, 23)
    mantissa = jax.lax.shift_right_logical(bits(loop, key, dims), jnp.uint32(32 - digits))
    return mantissa.astype(dtype) * jnp.asarray(2.0**-digits, dtype)
