"""Batches on devices: which rows a process reads, and how they get to the devices."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, NamedTuple

import jax
import numpy as np

from meshdsl.tensor import Tensor

# The dim of a batch's rows; dims before it, as that of microbatches, number them too.
ROWS = "batch"


def rows_here(like: Tensor | Mapping[str, Tensor]) -> np.ndarray:
    """The rows of a batch that this process has to read: its devices have a part of them.

    Several processes read the same row where their devices have copies of it, or parts that differ
    in other dims. Where the fields of a batch are split in several ways, these are the rows that
    any of them needs.

    Args:
      like: abstract Tensors with shardings, the fields of a batch by name; or one of them alone.
        The dims up to and including `batch` number the rows.

    Returns:
      The numbers of the rows in the batch, ascending.
    """
    fields = [like] if isinstance(like, Tensor) else like.values()
    return _rows_of(tuple(map(_split_of, fields)))


def put_on_devices(
    arrays: Mapping[str, np.ndarray], like: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    """The rows that each process read, as Tensors of the batch of all processes.

    Args:
      arrays: for each field the rows of this process [rows, ...], in the order of `rows_here`.
      like: abstract Tensors with shardings, the fields that `rows_here` was given.
    """
    splits = {name: _split_of(field) for name, field in like.items()}
    here = _rows_of(tuple(splits.values()))
    return {
        name: Tensor(_put(rows, here, splits[name]), like[name].dims)
        for name, rows in arrays.items()
    }


class _Split(NamedTuple):
    """How a field is split over the devices.

    Attributes:
      numbering: how many dims number the rows: those up to `batch`.
    """

    sharding: jax.sharding.Sharding
    shape: tuple[int, ...]
    numbering: int

    def rows(self, index: tuple[slice, ...]) -> np.ndarray:
        """The numbers of the rows in a part of the field, by the dims that number rows."""
        sizes = self.shape[: self.numbering]
        return np.arange(np.prod(sizes, dtype=int)).reshape(sizes)[index[: self.numbering]]


def _split_of(field: Tensor) -> _Split:
    names = [dim.name for dim in field.dims]
    assert ROWS in names, f"no dim {ROWS} in {names}"
    return _Split(field.array.sharding, tuple(field.array.shape), names.index(ROWS) + 1)


@lru_cache
def _rows_of(splits: tuple[_Split, ...]) -> np.ndarray:
    """The rows that this process needs for any of the fields, ascending."""
    parts = [
        split.rows(index).reshape(-1)
        for split in splits
        for index in split.sharding.addressable_devices_indices_map(split.shape).values()
        if index is not None
    ]
    rows = np.unique(np.concatenate(parts))
    rows.flags.writeable = False  # it is kept for other calls
    return rows


def _put(rows: np.ndarray, here: np.ndarray, split: _Split) -> jax.Array:
    """The global array of a field, from the rows `here` of this process."""
    rest = split.shape[split.numbering :]
    assert rows.shape == (len(here), *rest), (
        f"{rows.shape} are not the {len(here)} rows of {split.shape} that are read here"
    )
    if len(here) == math.prod(split.shape[: split.numbering]):
        # A slice for each device, and no more, because this is done in each step.
        whole = rows.reshape(split.shape)
        return jax.make_array_from_callback(split.shape, split.sharding, whole.__getitem__)

    def part(index: Any) -> np.ndarray:
        found = rows[np.searchsorted(here, split.rows(index))]
        return found[(..., *index[split.numbering :])]

    return jax.make_array_from_callback(split.shape, split.sharding, part)
