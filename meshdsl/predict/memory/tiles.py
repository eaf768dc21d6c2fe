"""The memory that an array takes on a chip.

A TPU keeps arrays in tiles: the fastest dim in lanes of 128, the next in rows of 8, or of 1, 2 or 4
if that dim has no more. Elements narrower than 32 bits share a word of a row. libtpu chooses the
two fastest dims so that the padding is least. An argument or result of one dim is a row of up to
1024.

This was derived from the entry layouts of programs that libtpu compiled, and is equal to them for
1096 shapes and types.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import lru_cache

import numpy as np

from meshdsl.predict.kernels.kernels import Buffer

LANES = 128
ROWS = 8
_ROW = 1024  # elements of the widest tile of an array with one dim


def padded_bytes(shape: tuple[int, ...], dtype: str, kind: str) -> int:
    """Bytes of an array on a chip of a kind: `tpu`, `gpu` or `cpu`. Only a TPU pads."""
    size = _itemsize(dtype)
    return _tiled(shape, size) if kind == "tpu" else math.prod(shape) * size


@lru_cache(maxsize=4096)
def _tiled(shape: tuple[int, ...], size: int) -> int:
    """Bytes of an array in tiles; `size` is that of an element."""
    packed = max(1, 4 // size)  # elements in a word of 32 bits
    if len(shape) < 2:
        length = math.prod(shape)
        return round_up(length, _rows(length, LANES * packed, _ROW)) * size
    total = math.prod(shape)
    if total == 0:
        return 0
    return min(elements for elements, _, _ in _orders(shape, packed)) * size


def buffer_bytes(buffer: Buffer, kind: str) -> int:
    """Bytes of a buffer on a chip of a kind; libtpu is free to choose the order of arguments."""
    argument = (buffer.within or buffer).name
    if kind != "tpu" or argument:
        return padded_bytes(buffer.shape, buffer.dtype, kind)
    return natural_bytes(buffer.shape, buffer.dtype)


def natural_bytes(shape: tuple[int, ...], dtype: str) -> int:
    """Bytes of an array of a TPU's program that is no argument: its last dim is in lanes.

    Of the others, that which is padded least is in rows. Dims of one element do not count, and a
    last dim of very few is not put into lanes.
    """
    size, dims = _itemsize(dtype), [n for n in shape if n != 1]
    if len(dims) < 2 or 0 in dims or dims[-1] < LANES // 4:
        return _tiled(shape, size)
    packed, last = max(1, 4 // size), len(dims) - 1
    return min(n for n, lanes, _ in _orders(tuple(dims), packed) if lanes == last) * size


def fastest(shape: tuple[int, ...], size: int) -> tuple[int, int]:
    """The positions of the dims that libtpu keeps in lanes and in rows, where it is free to choose.

    Of orders with the same padding it is the one nearest to the array's own.

    Args:
      shape: of at least two dims.
      size: bytes of an element.
    """
    _, lanes, rows = min(_orders(shape, max(1, 4 // size)), key=lambda o: (o[0], -o[1], -o[2]))
    return lanes, rows


def _orders(shape: tuple[int, ...], packed: int) -> Iterator[tuple[int, int, int]]:
    """For each choice of the two fastest dims: elements with padding, dim in lanes, dim in rows."""
    total = max(math.prod(shape), 1)
    for i, lanes in enumerate(shape):
        for j, rows in enumerate(shape):
            if i != j:
                tile = round_up(lanes, LANES) * round_up(rows, _rows(rows, packed, ROWS))
                yield total // max(lanes * rows, 1) * tile, i, j


def _rows(n: int, least: int, most: int) -> int:
    """The smallest power of two times `least` that holds `n`, but at most `most`."""
    rows = least
    while rows < n and rows < most:
        rows *= 2
    return rows


def round_up(n: int, multiple: int) -> int:
    """The next multiple from `n` on."""
    return -(-n // multiple) * multiple


@lru_cache(maxsize=64)
def _itemsize(dtype: str) -> int:
    """Bytes of an element. Four bits count as a byte; NumPy does not know JAX's own types."""
    if dtype == "bfloat16":
        return 2
    return 1 if dtype.startswith(("float8", "int4", "uint4")) else np.dtype(dtype).itemsize
