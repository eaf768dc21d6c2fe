"""Rows that are dicts of arrays: each is fitted to the fields of a batch, and batches are made."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

from meshdsl.dims import Dim
from meshdsl.dims import show as show_dims
from meshdsl.errors import MeshDSLError
from meshdsl.tensor import Tensor
from meshdsl.train.data.batches import Batch, Collate

_KINDS = (jnp.bool_, jnp.integer, jnp.floating, jnp.complexfloating)


def collate_fields(fields: Mapping[str, Tensor], fill: Mapping[str, int]) -> Collate:
    """A function that makes a batch of rows, each of which is a dict of the fields' arrays.

    Args:
      fill: by name, what the fields have in rows that fill up a batch; 0 where there is nothing.
    """
    like = {name: (field_shape(field), np.dtype(field.dtype)) for name, field in fields.items()}

    def collate(rows: Sequence[Mapping[str, np.ndarray] | None]) -> Batch:
        batch = {
            name: np.full((len(rows), *shape), fill.get(name, 0), dtype)
            for name, (shape, dtype) in like.items()
        }
        for i, row in enumerate(rows):
            if row is not None:
                for name, array in batch.items():
                    array[i] = row[name]
        return batch

    return collate


def field_dims(field: Tensor) -> tuple[Dim, ...]:
    """The dims of one row of a field."""
    return field.dims[1:]


def field_shape(field: Tensor) -> tuple[int, ...]:
    """The shape of one row of a field."""
    return tuple(dim.size for dim in field.dims[1:])


def fitted(value: Any, name: str, field: Tensor, what: str) -> np.ndarray:
    """`value`, one row of the field `name`, in the dtype of the field.

    Args:
      value: an array or number, or a Tensor with the dims of the field.
      what: what has the value, for errors.

    Raises:
      MeshDSLError: it has another shape, or numbers of a kind that the field does not hold.
    """

    def refuse(found: str) -> MeshDSLError:
        wanted = f"{show_dims(field_dims(field))} {field.dtype}"
        return MeshDSLError(
            f"{what}: `{name}` is {found}, and a row of the model's batch is {wanted}"
        )

    if isinstance(value, Tensor):
        if value.dims != field_dims(field):
            raise refuse(f"{show_dims(value.dims)} {value.dtype}")
        value = value.array
    try:
        array = np.asarray(value)
    except ValueError:
        raise refuse("a nested list with parts of different lengths") from None
    found = f"{list(array.shape)} {array.dtype}"
    if not _kinds(array.dtype):
        raise refuse(f"no array of numbers but {array.dtype}")
    if array.shape != field_shape(field):
        raise refuse(found)
    if _kinds(array.dtype) > _kinds(field.dtype):
        raise refuse(found)
    if jnp.issubdtype(array.dtype, jnp.integer) and jnp.issubdtype(field.dtype, jnp.integer):
        range_ = jnp.iinfo(field.dtype)
        if array.size and not (range_.min <= array.min() and array.max() <= range_.max):
            raise refuse(f"{found} with numbers that {field.dtype} does not hold")
    return array.astype(field.dtype)


def _kinds(dtype: Any) -> int:
    """1 for booleans, 2 for whole numbers, 3 for floats, 4 for complex numbers; else 0."""
    for i, kind in enumerate(_KINDS, 1):
        if jnp.issubdtype(dtype, kind):
            return i
    return 0
