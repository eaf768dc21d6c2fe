"""Batches on devices: which rows a process has to read, and how they get to where the law puts them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import lru_cache

import jax
import numpy as np

from meshdsl.tensor import Tensor


def rows_here(like: Tensor) -> np.ndarray:
    """The rows that devices of this process hold a part of, in order, as numbers of rows in the whole batch.

    Several processes need the same rows where their devices hold copies, or other parts of the length.

    Args:
      like: an abstract Tensor with a sharding. Its last dim is the length, all others number the rows.
    """
    *sizes, _ = like.array.shape
    return np.ravel_multi_index(
        np.ix_(*_held(like.array.sharding, tuple(like.array.shape))), sizes
    ).reshape(-1)


def place(arrays: Mapping[str, np.ndarray], like: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The rows that this process read, [rows, length] each, as Tensors of the whole batch, split as `like`.

    Args:
      like: abstract Tensors with shardings, as were given to `rows_here`.
    """
    return {
        name: Tensor(_placed(array, like[name].array), like[name].dims)
        for name, array in arrays.items()
    }


def _placed(rows: np.ndarray, like: jax.ShapeDtypeStruct) -> jax.Array:
    shape = tuple(like.shape)
    held = tuple(map(len, _held(like.sharding, shape)))
    assert rows.shape == (math.prod(held), shape[-1]), (
        f"{rows.shape} are not {held} of the rows of {shape}"
    )
    return jax.make_array_from_process_local_data(
        like.sharding, rows.reshape(*held, shape[-1]), shape
    )


@lru_cache
def _held(sharding: jax.sharding.Sharding, shape: tuple[int, ...]) -> tuple[np.ndarray, ...]:
    """For each dim but the last the indices that devices of this process hold.

    Each dim on its own: the part that a process gives to `make_array_from_process_local_data` is their product, though it may hold less.
    """
    held = sharding.addressable_devices_indices_map(shape).values()
    return tuple(
        np.unique(np.concatenate([np.arange(size)[index[i]] for index in held]))
        for i, size in enumerate(shape[:-1])
    )
