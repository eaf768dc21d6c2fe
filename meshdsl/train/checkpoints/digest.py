"""A number of 32 bits that says whether an array is still the one that was saved.

It is the sum modulo 2^32 over all elements of `mix(bits + index * odd)`: `bits` are those of the element, `index` is its
place in the whole array, and `mix` is the finalizer of MurmurHash3 (Appleby, 2011). For a given place `mix` takes no two
elements to one number, so one wrong element is always seen, and several with a probability of all but 2^-32. A sum knows no order: each device adds up
its own part where it lies, and the number is the same under every layout, mesh, number of devices and of processes.
"""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

_ODD, _FIRST, _SECOND = 0x9E3779B9, 0x85EBCA6B, 0xC2B2AE35
_UINT = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint32}


def digests(arrays: dict[str, jax.Array]) -> jax.Array:
    """The digest of each array, uint32, replicated. It is started, not waited for; nothing is gathered but these numbers."""
    values = list(arrays.values())
    meshes = [x.sharding.mesh for x in values if isinstance(x.sharding, NamedSharding)]
    return _program(NamedSharding(meshes[0], PartitionSpec()) if meshes else None)(
        values, tuple(map(_spread, values))
    )


@cache
def _program(out: NamedSharding | None) -> Any:
    return jax.jit(_all, static_argnums=1, out_shardings=out)


def _spread(array: jax.Array) -> NamedSharding | None:
    """The sharding of `array` with the axes that it is replicated over as well, where they divide it, so that each device sums over a part of its
    own; and on the devices, also of what waits in the memory of the host.
    """
    if not isinstance(array.sharding, NamedSharding):
        return None
    mesh, spec = array.sharding.mesh, array.sharding.spec
    split = [
        () if axes is None else (axes,) if isinstance(axes, str) else tuple(axes)
        for axes in (*spec, *[None] * (array.ndim - len(spec)))
    ]
    for axis in (axis for axis in mesh.axis_names if not any(axis in axes for axes in split)):
        for i, size in enumerate(array.shape):
            if size % math.prod(mesh.shape[a] for a in (*split[i], axis)) == 0:
                split[i] = (*split[i], axis)
                break
    return NamedSharding(mesh, PartitionSpec(*split))


def _all(arrays: list[jax.Array], spread: tuple[NamedSharding | None, ...]) -> jax.Array:
    return jnp.stack(
        [_digest(x if s is None else _moved(x, s)) for x, s in zip(arrays, spread, strict=True)]
    )


def _moved(array: jax.Array, to: NamedSharding) -> jax.Array:
    return jax.lax.with_sharding_constraint(
        jax.device_put(array, to), to
    )  # inside jit the one changes the memory, the other the split


def _digest(array: jax.Array) -> jax.Array:
    bits = jax.lax.bitcast_convert_type(
        array.astype(jnp.uint8) if array.dtype == bool else array, _UINT[array.dtype.itemsize]
    )
    index = jnp.uint32(0)
    for i, stride in enumerate(_strides(bits.shape)):
        index = index + jax.lax.broadcasted_iota(jnp.uint32, bits.shape, i) * jnp.uint32(stride)
    return jnp.sum(
        _mix(bits.astype(jnp.uint32) + index * jnp.uint32(_ODD), jnp.uint32), dtype=jnp.uint32
    )


def on_host(part: np.ndarray, start: tuple[int, ...], whole: tuple[int, ...]) -> int:
    """What the elements of `part` add to the digest of an array of shape `whole`.

    Args:
      start: where `part` begins in the whole, for each dimension.
    """
    words = 2 if part.dtype.itemsize == 8 else 1
    bits = np.ascontiguousarray(part).view(_UINT[part.dtype.itemsize]).reshape(*part.shape, words)
    start, whole = (*start, 0), (*whole, words)
    index = np.zeros((1,) * bits.ndim, np.uint32)
    for i, stride in enumerate(_strides(whole)):
        along = np.arange(start[i], start[i] + bits.shape[i], dtype=np.uint64) * np.uint64(stride)
        index = index + along.astype(np.uint32).reshape(
            [-1 if j == i else 1 for j in range(bits.ndim)]
        )
    mixed = _mix(bits.astype(np.uint32) + index * np.uint32(_ODD), np.uint32)
    return int(mixed.sum(dtype=np.uint64)) % (1 << 32)


def _strides(shape: tuple[int, ...]) -> list[int]:
    return [math.prod(shape[i + 1 :]) % (1 << 32) for i in range(len(shape))]


def _mix(x: Any, of: Any) -> Any:
    x = (x ^ (x >> of(16))) * of(_FIRST)
    x = (x ^ (x >> of(13))) * of(_SECOND)
    return x ^ (x >> of(16))
