"""The only file that calls `jax.lax` collectives; also where JAX versions would be told apart.

Everything here works on local arrays inside `jax.shard_map` with `check_vma=True`, where the type of an array says
over which axes it *varies*. That type decides what a collective transposes to, so each function states it.
"""

from __future__ import annotations

import math

import jax
import numpy as np
from jax import lax
from jax.extend.core import get_opaque_trace_state

Axes = tuple[str, ...]


def varying(x) -> frozenset[str]:
    """The axes over which the type of `x` lets its value differ between devices."""
    return jax.typeof(x).manual_axis_type.varying


def vary(x, axes) -> jax.Array:
    """`x` with a type that varies over `axes` too. Free; the transpose is a psum over the axes that were added."""
    missing = tuple(a for a in axes if a not in varying(x))
    return lax.pcast(x, missing, to="varying") if missing else x


def psum(x, axes: Axes) -> jax.Array:
    """Sum over `axes`; the result does not vary over them. The transpose is free."""
    return lax.psum(x, axes)


def psum_scatter(x, axes: Axes, dim: int) -> jax.Array:
    """Sum over `axes`, each device keeping its part along `dim`. The transpose is an all_gather."""
    return lax.psum_scatter(x, axes, scatter_dimension=dim, tiled=True)


def all_gather(x, axes: Axes, dim: int, *, varies: bool) -> jax.Array:
    """The parts along `dim` put together.

    Args:
      varies: the type of the result. A varying result transposes to a psum_scatter, an invariant one to a slice.
    """
    return lax.all_gather(x, axes, axis=dim, tiled=True, to="varying" if varies else "invarying")


def all_to_all(x, axes: Axes, split: int, concat: int) -> jax.Array:
    """Move the split over `axes` from dim `concat` to dim `split`."""
    return lax.all_to_all(x, axes, split_axis=split, concat_axis=concat, tiled=True)


def ppermute(x, axes: Axes, pairs) -> jax.Array:
    """Send `x` from each first to each second of `pairs` of positions along `axes`; zeros where nothing arrives.

    The transpose sends back.
    """
    order = [a for a in jax.sharding.get_abstract_mesh().axis_names if a in axes]  # in which JAX counts, whatever it is told
    shape = [lax.axis_size(a) for a in axes]
    numbers = np.arange(math.prod(shape)).reshape(shape).transpose([axes.index(a) for a in order]).ravel()
    place = np.argsort(numbers)
    return lax.ppermute(x, tuple(order), [(int(place[s]), int(place[t])) for s, t in pairs])


def pmax(x, axes: Axes) -> jax.Array:
    """Maximum over `axes`; has no derivative."""
    return lax.pmax(x, axes)


def pmin(x, axes: Axes) -> jax.Array:
    """Minimum over `axes`; has no derivative."""
    return lax.pmin(x, axes)


def position(axes: Axes) -> jax.Array:
    """The index of this device along `axes` taken together, major first."""
    return lax.axis_index(axes)


def trace_state():
    """What JAX is tracing now: an array made under one state must not be used under an outer one."""
    return get_opaque_trace_state()
