"""Batches on devices: which rows a process reads, and how they get to the devices."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import lru_cache

import jax
import numpy as np

from meshdsl.tensor import Tensor


def rows_here(like: Tensor) -> np.ndarray:
    """The rows of a batch that this process has to read: its devices have a part of them.

    Several processes read the same row where their devices have copies of it, or parts that differ
    in the length.

    Args:
      like: an abstract Tensor with a sharding. Its last dim is the length, all others number the
        rows.

    Returns:
      The numbers of the rows in the batch, ascending.
    """
    *sizes, _ = like.array.shape
    indices = _local_indices(like.array.sharding, tuple(like.array.shape))
    return np.ravel_multi_index(np.ix_(*indices), sizes).reshape(-1)


def put_on_devices(
    arrays: Mapping[str, np.ndarray], like: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    """The rows that each process read, as Tensors of the batch of all processes.

    Args:
      arrays: the rows of this process [rows, length], in the order of `rows_here`.
      like: abstract Tensors with shardings, one for each array, as were given to `rows_here`.
    """
    return {
        name: Tensor(_put(rows, like[name].array), like[name].dims) for name, rows in arrays.items()
    }


def _put(rows: np.ndarray, like: jax.ShapeDtypeStruct) -> jax.Array:
    shape = tuple(like.shape)
    sizes = tuple(map(len, _local_indices(like.sharding, shape)))
    assert rows.shape == (math.prod(sizes), shape[-1]), (
        f"{rows.shape} are not {sizes} of the rows of {shape}"
    )
    return jax.make_array_from_process_local_data(
        like.sharding, rows.reshape(*sizes, shape[-1]), shape
    )


@lru_cache
def _local_indices(
    sharding: jax.sharding.Sharding, shape: tuple[int, ...]
) -> tuple[np.ndarray, ...]:
    """For each position of the shape but the last, the indices that devices of this process need.

    The array that a process gives to `make_array_from_process_local_data` has the product of these
    indices, even where its devices do not need all of it.
    """
    by_device = sharding.addressable_devices_indices_map(shape)
    indices = [index for index in by_device.values() if index is not None]
    return tuple(
        np.unique(np.concatenate([np.arange(size)[index[i]] for index in indices]))
        for i, size in enumerate(shape[:-1])
    )
