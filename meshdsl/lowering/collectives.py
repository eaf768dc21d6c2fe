"""The only file that calls `jax.lax` collectives; also where JAX versions would be told apart.

Everything here works on local arrays inside `jax.shard_map` with `check_vma=True`, where the type
of an array says over which axes it *varies*. That type decides what a collective transposes to,
so each function states it.

An array without elements does not travel: the result is zeros of the shape and the type that the
collective would have given. A sum of bools says whether any of them is true, as in `einsum`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import wraps
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax._src.lax import parallel
from jax.extend.core import Primitive, get_opaque_trace_state
from jax.interpreters import ad, batching, mlir

Axes = tuple[str, ...]


def varying(x) -> frozenset[str]:
    """The axes over which the type of `x` lets its value differ between devices."""
    return jax.typeof(x).manual_axis_type.varying


def vary(x, axes) -> Any:
    """`x` with a type that varies over `axes` too: free, and a psum in the backward pass."""
    if not axes or (have := varying(x)).issuperset(axes):
        return x
    missing = tuple([a for a in axes if a not in have])
    return lax.pcast(x if x.size else lax.stop_gradient(x), missing, to="varying")


def zeros_of(type_, shape=None) -> jax.Array:
    """Zeros of the type of an array, also of another shape."""
    shape = type_.shape if shape is None else shape
    return vary(jnp.zeros(shape, type_.dtype), type_.manual_axis_type.varying)


def varying_in(tree) -> frozenset[str]:
    """The axes over which the type of any array of a tree varies."""
    return frozenset().union(*map(varying, jax.tree.leaves(tree)))


def vary_together(tree) -> Any:
    """A tree of arrays, each with a type that varies over every axis that any of them varies over.

    It stands in front of functions that state their own derivatives: each device computes its own
    terms of the gradients, and in the backward pass these terms are summed here.
    """
    axes = varying_in(tree)
    return jax.tree.map(lambda x: vary(x, axes), tree)


def _of_elements(collective: Callable) -> Callable:
    """`collective`, which does not run where its operand has no elements."""

    @wraps(collective)
    def run(x, *args, **options):
        if x.size:
            return collective(x, *args, **options)
        result = jax.eval_shape(lambda x: collective(x, *args, **options), x)
        return vary(jnp.zeros(result.shape, result.dtype), varying(result))

    return run


def _without_ones(collective: Callable) -> Callable:
    """`collective`, which gets its operand without the dims of size 1 that it does not change.

    The compiler for TPUs copies an array with such dims to another layout before a scatter. If the
    array has only one other dim, nothing is left out: the compiler would make a psum of the
    psum_scatter.
    """

    @wraps(collective)
    def run(x, axes: Axes, *positions: int, **options):
        ones = [i for i, n in enumerate(x.shape) if n == 1 and i not in positions]
        if not ones or x.ndim - len(ones) < 2:
            return collective(x, axes, *positions, **options)
        moved = [at - sum(i < at for i in ones) for at in positions]
        without = [n for i, n in enumerate(x.shape) if i not in ones]
        result = collective(x.reshape(without), axes, *moved, **options)
        sizes = iter(result.shape)
        return result.reshape([1 if i in ones else next(sizes) for i in range(x.ndim)])

    return run


def sum_dtype(dtype) -> np.dtype:
    """The dtype in which arrays of `dtype` are added up over devices.

    It is int32 for bools, and for integers of 16 bits, which NCCL cannot sum.
    """
    dtype = np.dtype(dtype)
    short = dtype == bool or (jnp.issubdtype(dtype, jnp.integer) and dtype.itemsize == 2)
    return np.dtype(np.int32) if short else dtype


def _summed(x, add: Callable) -> jax.Array:
    """`add(x)` in the dtype of sums, and back in that of `x`, where integers wrap around."""
    total = add(x.astype(sum_dtype(x.dtype)))
    return total != 0 if x.dtype == bool else total.astype(x.dtype)


@_of_elements
def psum(x, axes: Axes) -> jax.Array:
    """Sum over `axes`; the result does not vary over them. The transpose is free."""
    return _summed(x, lambda x: lax.psum(x, axes))


@_of_elements
@_without_ones
def psum_scatter(x, axes: Axes, dim: int) -> jax.Array:
    """Sum over `axes`, each device keeping its part along `dim`. The transpose is an all_gather."""
    return _summed(x, lambda x: lax.psum_scatter(x, axes, scatter_dimension=dim, tiled=True))


@_of_elements
@_without_ones
def all_gather(x, axes: Axes, dim: int, *, varies: bool) -> jax.Array:
    """The parts along `dim` put together.

    Args:
      varies: the type of the result. A varying result transposes to a psum_scatter, an invariant
        one to a slice.
    """
    return lax.all_gather(x, axes, axis=dim, tiled=True, to="varying" if varies else "invarying")


@_of_elements
@_without_ones
def all_to_all(x, axes: Axes, cut: int, joined: int) -> jax.Array:
    """Move the split over `axes` from dim `joined` to dim `cut`. The transpose moves it back.

    The pieces for the devices are put behind each other before they are sent. If an all_to_all cut
    another dim than the first, the compiler for TPUs would make that dim the slowest one, also in
    what is computed from the result. Where the last dims are small its tiles are mostly padding.
    """
    if cut == joined:
        return _exchanged(x, axes, cut)
    parts = math.prod(lax.axis_size(a) for a in axes)
    x = x.reshape(*x.shape[:cut], parts, x.shape[cut] // parts, *x.shape[cut + 1 :])
    x = jnp.moveaxis(_exchanged(jnp.moveaxis(x, cut, 0), axes, 0), 0, joined)
    return x.reshape(*x.shape[:joined], parts * x.shape[joined + 1], *x.shape[joined + 2 :])


def _exchanged(x, axes: Axes, at: int) -> jax.Array:
    """Each piece of `x` along a dim at its device, and the pieces for this one in their place."""
    moved = lax.all_to_all(_hidden_on_cpu(x), axes, split_axis=at, concat_axis=at, tiled=True)
    return _hidden_on_cpu(moved)  # for the transpose


@_of_elements
def ppermute(x, axes: Axes, pairs) -> jax.Array:
    """Send `x` from the first to the second of each of `pairs` of positions along `axes`.

    A device to which nothing is sent gets zeros. The transpose sends back.
    """
    # JAX counts positions in the order of the mesh, in whatever order it is given the axes.
    order = [a for a in jax.sharding.get_abstract_mesh().axis_names if a in axes]
    shape = [lax.axis_size(a) for a in axes]
    numbers = (
        np.arange(math.prod(shape)).reshape(shape).transpose([axes.index(a) for a in order]).ravel()
    )
    place = np.argsort(numbers)
    return lax.ppermute(x, tuple(order), [(int(place[s]), int(place[t])) for s, t in pairs])


@_of_elements
def pmax(x, axes: Axes) -> jax.Array:
    """Maximum over `axes`; has no derivative."""
    return lax.pmax(x, axes)


@_of_elements
def pmin(x, axes: Axes) -> jax.Array:
    """Minimum over `axes`; has no derivative."""
    return lax.pmin(x, axes)


def position(axes: Axes) -> jax.Array:
    """The index of this device along `axes` taken together, major first."""
    return lax.axis_index(axes)


def trace_state():
    """The state of JAX's tracing. An array from one state must not be used in an outer one."""
    return get_opaque_trace_state()


def _scatter_by_gloo(ctx, x, **options):
    """The lowering of a psum_scatter for CPUs, which takes another way in several processes.

    XLA:CPU leaves the collectives of several processes to gloo, also those between two devices of
    one process. The reduce-scatter of gloo returns wrong values at times: it starts to send a part
    that it has summed, and overwrites that part before all of it has left (issue 40830 of JAX, in
    jaxlib 0.12 and before). It also fails where one process arrives 30 seconds after another.
    Instead, an all_to_all moves the same bytes, and each device adds up the parts that arrive, in
    the order of the devices.
    """
    if not jax.distributed.is_initialized():
        return parallel._reduce_scatter_lowering(lax.add_p, ctx, x, **options)
    return mlir.lower_fun(_exchange_and_add, multiple_results=False)(ctx, x, **options)


def _exchange_and_add(x, *, scatter_dimension, axis_name, axis_index_groups, axis_size, tiled):
    at = scatter_dimension
    parts = x.reshape(*x.shape[:at], axis_size, x.shape[at] // axis_size, *x.shape[at + 1 :])
    come = lax.all_to_all(
        _hidden_on_cpu(parts), axis_name, at, at, axis_index_groups=axis_index_groups, tiled=True
    )
    total = lax.index_in_dim(come, 0, at, keepdims=False)
    for i in range(1, axis_size):
        total += lax.index_in_dim(come, i, at, keepdims=False)
    return total if tiled else total.reshape(*x.shape[:at], *x.shape[at + 1 :])


mlir.register_lowering(parallel.reduce_scatter_p, _scatter_by_gloo, platform="cpu")


# XLA:CPU makes a separate array of each piece that an all_to_all sends. If it knows that a piece is
# all zeros, because it is padding, it may give that piece another layout in memory than the others,
# and then refuses its own program ("HLO all-to-all has operands with different shapes"). Behind an
# optimization barrier it does not know what is zero. The compiler for TPUs keeps an all_to_all in
# one piece, and a barrier would cost a copy there.
_HIDDEN = Primitive("hidden_on_cpu")
_HIDDEN.def_impl(lambda x: x)
_HIDDEN.def_abstract_eval(lambda x: x)
ad.deflinear(_HIDDEN, lambda ct: [_hidden_on_cpu(ct)])
batching.defvectorized(_HIDDEN)
mlir.register_lowering(_HIDDEN, lambda ctx, x: [x])
_barrier = mlir.lower_fun(lax.optimization_barrier, multiple_results=False)
mlir.register_lowering(_HIDDEN, _barrier, platform="cpu")


def _hidden_on_cpu(x) -> jax.Array:
    """`x`, behind a barrier on CPU, so that XLA does not know how it was computed.

    So is its cotangent.
    """
    return _HIDDEN.bind(x)
