"""logsumexp and softmax: exponentials over named dims, without overflow.

Each device computes the exponentials of its own part, less the maximum over all parts. The maximum
and the sum of the exponentials are combined over the devices.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
from jax import lax

from meshdsl import dims as dim_algebra
from meshdsl.dims import Dims
from meshdsl.lowering.device_loop import DeviceLoop
from meshdsl.ops import component
from meshdsl.ops.arrays import chosen
from meshdsl.ops.declare import op
from meshdsl.ops.reduce import Which, along_some, float_of, reduced
from meshdsl.tensor import Tensor


def _shifted_exp(loop: DeviceLoop, a, at, dims, *, varies: bool):
    """`exp(a - max)`, its sum and the max over dims that may be split.

    The sum and the max keep the reduced dims, with one element.

    Args:
      varies: whether the sum has the type of something that differs between devices.
    """
    real = jax.lax.stop_gradient(a).real
    start = -jnp.inf if 0 in a.shape else None  # what the maximum of nothing is
    top = loop.pmax(jnp.max(real, at, keepdims=True, initial=start), dims)
    top = chosen(lax.is_finite(top), top, 0)
    e = jnp.exp(a - top)
    return e, loop.psum(jnp.sum(e, at, keepdims=True), dims, varies=varies), top


@op(
    computes="the sum of exponentials of its part, less the maximum of all",
    moves=("pmax", "psum"),
    mesh_tensorflow="ReduceOperation",
    example=along_some(),
    result="reduces",
)
def logsumexp(x: Tensor, dims: Which = None) -> Tensor:
    """`log(sum(exp(x)))` over `dims` (default: all of them), without overflow."""

    def local(loop, a, at, dims):
        _, total, top = _shifted_exp(loop, a, at, dims, varies=False)
        return jnp.squeeze(jnp.log(total) + top, at)

    return reduced(
        "logsumexp", component.cast(x, float_of(x.dtype)), dims, local, sums=False, fill=-jnp.inf
    )


@partial(jax.custom_jvp, nondiff_argnums=(0, 1, 2))
def _softmax(loop: DeviceLoop, at: tuple[int, ...], dims: Dims, a):
    e, total, _ = _shifted_exp(loop, a, at, dims, varies=True)
    return e / total


@_softmax.defjvp
def _softmax_jvp(loop, at, dims, primals, tangents):
    """By the result alone, so that the backward pass has to keep nothing else."""
    (a,), (tangent,) = primals, tangents
    y = _softmax(loop, at, dims, a)
    return y, y * (tangent - loop.psum(jnp.sum(y * tangent, at, keepdims=True), dims, varies=True))


def _log_softmax(loop: DeviceLoop, at: tuple[int, ...], dims: Dims, a):
    _, total, top = _shifted_exp(loop, a, at, dims, varies=True)
    return a - top - jnp.log(total)


def _normalised(name: str, fn: Callable, x: Tensor, dims: Which) -> Tensor:
    """An op that keeps the dims of `x`, by a local `fn(loop, positions, dims, array)`."""
    dims = dim_algebra.find_all(name, x.dims, dims)
    at = tuple(x.dims.index(d) for d in dims)
    x = component.cast(x, float_of(x.dtype))
    local = lambda loop, a: fn(loop, at, dims, a)
    return component.apply_alike(name, local, x, in_order=(), fill=-jnp.inf)


@op(
    computes="exponentials of its part, less the maximum of all, over the sum of all",
    moves=("pmax", "psum"),
    mesh_tensorflow="ReduceOperation",
    example=along_some(),
    result="same",
)
def softmax(x: Tensor, dims: Which) -> Tensor:
    """`exp(x)` divided by its sum over `dims`."""
    return _normalised("softmax", _softmax, x, dims)


@op(
    computes="its part, less the maximum and the logarithm of the sum of all",
    moves=("pmax", "psum"),
    mesh_tensorflow="ReduceOperation",
    example=along_some(),
    result="same",
)
def log_softmax(x: Tensor, dims: Which) -> Tensor:
    """The logarithm of `softmax`."""
    return _normalised("log_softmax", _log_softmax, x, dims)
