"""Random draws that do not depend on the layout.

The bits of an element are threefry's of the key and the element's index in the whole tensor (row-major in the dims'
order), so a device draws its own part without asking anyone, and every layout draws the same numbers. They are also
those of `jax.random` for an array of that shape (with `jax_threefry_partitionable`, JAX's default).
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax.extend.random import threefry_2x32

from meshdsl import dims as dim_algebra
from meshdsl.dims import Dims
from meshdsl.errors import MeshDSLError, quote
from meshdsl.lowering.loop import Loop, run
from meshdsl.tensor import Tensor


def bits(key, dims: Dims, *, like: Tensor | None = None) -> Tensor:
    """Uniform random uint32.

    Args:
      key: a JAX PRNG key (threefry), an array or a Tensor without dims; the same on every device.
      dims: dims of the result.
      like: any tensor of the computation, so that each device draws its own part only; see `iota`.
    """
    dims = dim_algebra.distinct(dims, "random")
    data = _key_data(key)
    return run("random.bits", lambda loop: _bits(loop, data, dims), (), loop=dims, out=dims, like=like)


def _key_data(key):
    key = key.array if isinstance(key, Tensor) else key
    typed = hasattr(key, "dtype") and jnp.issubdtype(key.dtype, jax.dtypes.prng_key)
    if getattr(key, "shape", None) != (() if typed else (2,)) or not (typed or key.dtype == jnp.uint32):
        got = f"an array of {key.dtype} {key.shape}" if hasattr(key, "dtype") else quote(key)
        raise MeshDSLError(f"random: the key is one jax.random.key(...), not {got}")
    if not typed:
        return key
    if str(jax.random.key_impl(key)) != "threefry2x32":
        raise MeshDSLError(f"random: the key is of the kind {jax.random.key_impl(key)}; draws need threefry2x32")
    return jax.random.key_data(key)


def _bits(loop: Loop, key, dims: Dims):
    """Threefry of the 64-bit index in the whole tensor; dims of more than 2**32 elements together are fine."""
    shape = tuple(loop.size(d) for d in dims)
    high, low = jnp.zeros(shape, jnp.uint32), jnp.zeros(shape, jnp.uint32)
    stride = 1
    for i in reversed(range(len(dims))):
        index = loop.indices(dims[i], jnp.uint32).reshape([-1 if j == i else 1 for j in range(len(dims))])
        up, down = _product64(index, stride, dims[i].size)
        low = low + down
        high = high + up + (low < down)
        stride *= dims[i].size
    both = threefry_2x32(key, jnp.concatenate([high.ravel(), low.ravel()]))
    first, second = jnp.split(both, 2)
    return (first ^ second).reshape(shape)


def _product64(index, stride: int, size: int):
    """`index * stride` as two uint32 words, for indices below `size`."""
    if size * stride <= 2**32:
        return jnp.zeros_like(index), index * jnp.uint32(stride)
    words = [jnp.uint32(stride >> s & 0xFFFF) for s in (0, 16, 32, 48)]
    halves = index & 0xFFFF, index >> 16
    low, high = halves[0] * words[0], jnp.zeros_like(index)
    for product, shift in ((halves[1] * words[0], 16), (halves[0] * words[1], 16)):
        add = product << shift
        low = low + add
        high = high + (product >> (32 - shift)) + (low < add)
    high = high + halves[1] * words[1] + halves[0] * words[2] + ((halves[1] * words[2] + halves[0] * words[3]) << 16)
    return high, low


def _unit(loop: Loop, key, dims: Dims, dtype):
    """Uniform in [0, 1): the bits fill the mantissa, in float32 as jax.random does it."""
    digits = min(jnp.finfo(dtype).nmant, 23)
    mantissa = jax.lax.shift_right_logical(_bits(loop, key, dims), jnp.uint32(32 - digits))
    return mantissa.astype(dtype) * jnp.asarray(2.0**-digits, dtype)


def uniform(key, dims: Dims, dtype=jnp.float32, *, low=0.0, high=1.0, like: Tensor | None = None) -> Tensor:
    """Uniform in [low, high); arguments as in `bits`."""
    dims, data = dim_algebra.distinct(dims, "random"), _key_data(key)
    local = lambda loop: jnp.maximum(low, _unit(loop, data, dims, dtype) * (high - low) + low)  # noqa: E731
    return run("random.uniform", local, (), loop=dims, out=dims, like=like)


def normal(key, dims: Dims, dtype=jnp.float32, *, like: Tensor | None = None) -> Tensor:
    """Standard normal; arguments as in `bits`."""
    dims, data = dim_algebra.distinct(dims, "random"), _key_data(key)
    above = jnp.nextafter(jnp.float32(-1), jnp.float32(0))

    def local(loop):
        u = jnp.maximum(above, _unit(loop, data, dims, jnp.float32) * (1 - above) + above)
        return (jnp.float32(2**0.5) * jax.lax.erf_inv(u)).astype(dtype)

    return run("random.normal", local, (), loop=dims, out=dims, like=like)


def bernoulli(key, probability: float, dims: Dims, *, like: Tensor | None = None) -> Tensor:
    """True with the given probability; arguments as in `bits`."""
    return uniform(key, dims, like=like) < probability


def gumbel(key, dims: Dims, *, like: Tensor | None = None) -> Tensor:
    """Standard Gumbel, whose largest of `logits + gumbel` is a sample of `softmax(logits)`; arguments as in `bits`."""
    dims, data = dim_algebra.distinct(dims, "random"), _key_data(key)
    tiny = jnp.finfo(jnp.float32).tiny
    local = lambda loop: -jnp.log(-jnp.log(jnp.maximum(tiny, _unit(loop, data, dims, jnp.float32))))  # noqa: E731
    return run("random.gumbel", local, (), loop=dims, out=dims, like=like)


def dropout(x: Tensor, rate: float, key) -> Tensor:
    """`x` with each element zeroed with probability `rate`, and the others divided by `1 - rate`.

    Raises:
      MeshDSLError: a rate outside [0, 1).
    """
    if not 0 <= rate < 1:
        raise MeshDSLError(f"dropout: the rate is at least 0 and less than 1, not {quote(rate)}")
    if rate == 0:
        return x
    data = _key_data(key)

    def local(loop, a):
        keep = _unit(loop, data, x.dims, jnp.float32) >= rate
        return jnp.where(keep, a / (1 - rate), jnp.zeros((), a.dtype)).astype(a.dtype)

    return run("dropout", local, (x,), loop=x.dims, out=x.dims)
