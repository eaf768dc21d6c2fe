"""A digest of an array: 32 bits that say whether the array is still the one that was saved.

It is the sum modulo 2^32 over all elements of `mix(bits + index * odd)`: `bits` are those of the
element, `index` counts the elements of the whole array in row-major order, and `mix` is the
finalizer of MurmurHash3 (Appleby, 2011). At a given index no two elements have the same mixed
number, so one wrong element is always seen, and several with a probability of all but 2^-32.

The order of a sum does not matter. So each device adds up the elements that it has, and the digest
is the same under every layout, mesh, number of devices and number of processes.
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
# An element of 8 bytes is two words of 32 bits, one of 16 bytes four.
_AT_ONCE = 1 << 20  # elements of a chunk that NumPy works on at once
_UINT = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint32, 16: np.uint32}


def digests(arrays: dict[str, jax.Array]) -> jax.Array:
    """The digest of each array, as one replicated array of uint32.

    The computation is started, not waited for. Devices exchange nothing but these numbers.
    """
    values = list(arrays.values())
    meshes = [x.sharding.mesh for x in values if isinstance(x.sharding, NamedSharding)]
    program = _program(NamedSharding(meshes[0], PartitionSpec()) if meshes else None)
    return program(values, tuple(map(_spread_sharding, values)))


@cache
def _program(out: NamedSharding | None) -> Any:
    return jax.jit(_digests, static_argnums=1, out_shardings=out)


def _spread_sharding(array: jax.Array) -> NamedSharding | None:
    """The sharding under which every device has a different part of `array` to sum over.

    It is that of `array`, split also over the axes that the array is replicated over, where they
    divide it. It lies in the memory of the devices, also where the array is in that of the host.
    None where the array has no named sharding.
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


def _digests(arrays: list[jax.Array], shardings: tuple[NamedSharding | None, ...]) -> jax.Array:
    return jnp.stack(
        [
            digest(array if sharding is None else _moved(array, sharding))
            for array, sharding in zip(arrays, shardings, strict=True)
        ]
    )


def _moved(array: jax.Array, to: NamedSharding) -> jax.Array:
    # Inside jit, device_put changes the memory and the constraint changes the split.
    return jax.lax.with_sharding_constraint(jax.device_put(array, to), to)


def digest(array: jax.Array) -> jax.Array:
    """The digest of one array that is being computed with, uint32 without dims."""
    if jnp.issubdtype(array.dtype, jnp.complexfloating):
        array = jnp.stack([array.real, array.imag], axis=-1)
    array = array.astype(jnp.uint8) if array.dtype == bool else array
    bits = jax.lax.bitcast_convert_type(array, _UINT[array.dtype.itemsize])
    return jnp.sum(_mixed(jnp, bits, (0,) * bits.ndim, bits.shape), dtype=jnp.uint32)


def chunk_digest(chunk: np.ndarray, start: tuple[int, ...], shape: tuple[int, ...]) -> int:
    """What one chunk adds to the digest of the array that it is of, computed by NumPy.

    The sum over all chunks of an array, modulo 2^32, is the digest of the array. No more memory is
    taken than a few times `_AT_ONCE` elements.

    Args:
      start: where the chunk begins in the array, for each position in its shape.
      shape: of the array.
    """
    if chunk.size > _AT_ONCE:
        along = max(range(chunk.ndim), key=lambda i: chunk.shape[i])
        half = chunk.shape[along] // 2
        parts = chunk.swapaxes(0, along)[:half], chunk.swapaxes(0, along)[half:]
        second = (*start[:along], start[along] + half, *start[along + 1 :])
        both = zip(parts, (start, second), strict=True)
        return sum(chunk_digest(x.swapaxes(0, along), at, shape) for x, at in both) % (1 << 32)
    words = max(1, chunk.dtype.itemsize // 4)
    uint = _UINT[chunk.dtype.itemsize]
    bits = np.ascontiguousarray(chunk).view(uint).reshape(*chunk.shape, words)
    mixed = _mixed(np, bits, (*start, 0), (*shape, words))
    return int(mixed.sum(dtype=np.uint64)) % (1 << 32)


def _mixed(xnp: Any, bits: Any, start: tuple[int, ...], shape: tuple[int, ...]) -> Any:
    """The mixed number of each element of a chunk, of which `bits` are the bits.

    Args:
      xnp: NumPy, or JAX's.
      start: where the chunk begins in the array.
      shape: of the array.
    """
    uint32, index = xnp.uint32, xnp.uint32(0)
    for i, size in enumerate(bits.shape):
        stride = math.prod(shape[i + 1 :]) % (1 << 32)
        along = xnp.arange(size, dtype=uint32) + uint32(start[i] % (1 << 32))
        index = index + (along * uint32(stride)).reshape(
            [-1 if j == i else 1 for j in range(bits.ndim)]
        )
    x = bits.astype(uint32) + index * uint32(_ODD)
    x = (x ^ (x >> uint32(16))) * uint32(_FIRST)
    x = (x ^ (x >> uint32(13))) * uint32(_SECOND)
    return x ^ (x >> uint32(16))
