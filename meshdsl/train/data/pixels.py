"""Images as arrays: decoded from files, and fitted to the model's batch."""

from __future__ import annotations

import io
import math
import struct
import tokenize
import zipfile
import zlib

import jax.numpy as jnp
import numpy as np

from meshdsl.dims import show as show_dims
from meshdsl.errors import MeshDSLError
from meshdsl.extras import extra
from meshdsl.tensor import Tensor
from meshdsl.train.data.field_arrays import field_dims, field_shape

# Files that Pillow decodes, by their endings; and arrays, which need nothing.
PICTURES = (
    *(".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm"),
)  # fmt: skip
ARRAY = ".npy"
_ARRAY_MAGIC = b"\x93NUMPY"
# What NumPy raises for an array that is not what a file of its own holds. The header is Python.
DAMAGED_ARRAY = (
    *(ValueError, TypeError, KeyError, EOFError, OSError, OverflowError, MemoryError),
    *(
        SyntaxError,
        tokenize.TokenError,
        RecursionError,
        zipfile.BadZipFile,
        zlib.error,
        struct.error,
    ),
)
# How a picture with a palette, or in the colors of printers, is read. Others are read as they are.
_READ_AS = {"1": "L", "P": "RGB", "PA": "RGBA", "CMYK": "RGB", "YCbCr": "RGB", "LAB": "RGB"}


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
