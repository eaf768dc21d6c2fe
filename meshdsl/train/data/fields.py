"""Rows that are dicts of arrays: values and images are fitted to the fields of a batch."""

from __future__ import annotations

import io
import math
import struct
import threading
import tokenize
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

from meshdsl.dims import Dim
from meshdsl.dims import show as show_dims
from meshdsl.errors import MeshDSLError
from meshdsl.extras import extra
from meshdsl.tensor import Tensor
from meshdsl.train.data.batches import Batch, Collate

_KINDS = (jnp.bool_, jnp.integer, jnp.floating, jnp.complexfloating)
# Files that Pillow decodes, by their endings; and arrays, which need nothing.
PICTURES = (
    *(".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm"),
)  # fmt: skip
ARRAY = ".npy"
_ARRAY_MAGIC = b"\x93NUMPY"
# What NumPy raises for an array that is not what a file of its own holds. The header is Python.
DAMAGED_ARRAY = (
    *(ValueError, TypeError, KeyError, EOFError, OSError, OverflowError, MemoryError),
    *(SyntaxError, tokenize.TokenError, RecursionError),
    *(zipfile.BadZipFile, zlib.error, struct.error),
)
# NumPy evaluates the header as Python, which two threads of Python 3.11 cannot do at once: its
# parser then raises SystemError.
_HEADERS = threading.Lock()
# How a picture with a palette, or in the colors of printers, is read. Others are read as they are.
_READ_AS = {"1": "L", "P": "RGB", "PA": "RGBA", "CMYK": "RGB", "YCbCr": "RGB", "LAB": "RGB"}


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
    return tuple(dim.size for dim in field_dims(field))


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
    if array.shape != field_shape(field) or _kinds(array.dtype) > _kinds(field.dtype):
        raise refuse(found)
    if jnp.issubdtype(array.dtype, jnp.integer) and jnp.issubdtype(field.dtype, jnp.integer):
        range_ = jnp.iinfo(field.dtype)
        if array.size and not (range_.min <= array.min() and array.max() <= range_.max):
            raise refuse(f"{found} with numbers that {field.dtype} does not hold")
    return array.astype(field.dtype)


def _kinds(dtype: Any) -> int:
    """1 for booleans, 2 for whole numbers, 3 for floats, 4 for complex numbers; else 0."""
    return next((i for i, kind in enumerate(_KINDS, 1) if jnp.issubdtype(dtype, kind)), 0)


# -- images ----------------------------------------------------------------------------------------


def decoded(content: bytes, where: str) -> np.ndarray:
    """The array of an image file, of shape [height, width] or [height, width, colors].

    Args:
      content: of a picture (PNG, JPEG, ...) or of a `.npy` file.
      where: the file or row, for errors.

    Raises:
      MeshDSLError: it is damaged, or Pillow is missing.
    """
    if content.startswith(_ARRAY_MAGIC):
        try:
            with _HEADERS:
                return np.load(io.BytesIO(content), allow_pickle=False)
        except DAMAGED_ARRAY as error:
            raise MeshDSLError(f"{where}: no array, or damaged: {said_of(error)}") from None
    with extra("images", where):
        from PIL import Image
    try:
        with Image.open(io.BytesIO(content)) as image:
            image.load()
            wanted = _READ_AS.get(image.mode)
            return np.asarray(image.convert(wanted) if wanted else image)
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        said = "not a picture that Pillow can read" if "cannot identify" in str(error) else error
        raise MeshDSLError(f"{where}: no image, or damaged: {said}") from None


def said_of(error: BaseException) -> str:
    """The first line of an error's text, cut off where it quotes the file at length."""
    text = (getattr(error, "strerror", None) or str(error) or type(error).__name__).split("\n")[0]
    return text if len(text) < 200 else f"{text[:200]}..."


def fitted_image(image: np.ndarray, field: Tensor, where: str) -> np.ndarray:
    """`image` in the shape and dtype of the field `image` of a batch.

    Where the field is of floats, whole numbers are divided by the largest that a pixel may be (255,
    or 65,535 for uint16); floats stay as they are. A dim of size 1 at the end may be absent, and an
    image may be flat, one row after the other.

    Args:
      where: the file or row, for errors.

    Raises:
      MeshDSLError: it has another size, or its numbers are no pixels.
    """
    wanted = field_shape(field)
    kind = image.dtype
    if not (jnp.issubdtype(kind, jnp.integer) or jnp.issubdtype(kind, jnp.floating)):
        raise MeshDSLError(f"{where}: an image has whole numbers or floats, not {kind}")
    if _without_ones(image.shape) != _without_ones(wanted) and image.shape != (math.prod(wanted),):
        found = " x ".join(map(str, image.shape)) or "a number"
        size = show_dims(field_dims(field))
        raise MeshDSLError(
            f"{where}: the image is {found}, and the model's batch has {size}; images are not "
            "resized"
        )
    image = image.reshape(wanted)
    if jnp.issubdtype(kind, jnp.floating):
        if not jnp.issubdtype(field.dtype, jnp.floating):
            raise MeshDSLError(
                f"{where}: the image has {kind}, and the model's batch has {field.dtype}"
            )
        return image.astype(field.dtype)
    largest = 65_535 if kind == np.uint16 else 255
    if image.size and (image.min() < 0 or image.max() > largest):
        raise MeshDSLError(
            f"{where}: the image has whole numbers outside of 0 to {largest}; give uint8, uint16 "
            "or floats"
        )
    if jnp.issubdtype(field.dtype, jnp.floating):
        return (image / np.float32(largest)).astype(field.dtype)
    if image.size and image.max() > jnp.iinfo(field.dtype).max:
        raise MeshDSLError(
            f"{where}: the image has {kind}, and the model's batch has {field.dtype}, which does "
            "not hold its numbers"
        )
    return image.astype(field.dtype)


def _without_ones(shape: tuple[int, ...]) -> tuple[int, ...]:
    """`shape` without a 1 at its end."""
    return shape[:-1] if shape[-1:] == (1,) else shape
