"""Which process has which part of an array, so that each part is kept once and found again.

A sharding divides an array into a grid of equal *cells*, numbered row by row. Where several devices
have the same cell, it belongs to the share of the process of the first of them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from itertools import product
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

Index = tuple[slice, ...]


class Grid(NamedTuple):
    """How an array is divided.

    Attributes:
      counts: how many cells there are along each position in its shape.
      owners: the process that has each cell in its share.
    """

    counts: tuple[int, ...]
    owners: tuple[int, ...]


def grid_of(shape: tuple[int, ...], sharding: jax.sharding.Sharding) -> tuple[Grid, list[Any]]:
    """The grid of an array, and of each cell the device from which its share has it."""
    cell_shape = sharding.shard_shape(shape)
    counts = tuple(size // each for size, each in zip(shape, cell_shape, strict=True))
    devices: dict[int, Any] = {}
    for device, index in sharding.devices_indices_map(shape).items():
        starts = [each.indices(size)[0] for each, size in zip(index or (), shape, strict=True)]
        corner = tuple(start // each for start, each in zip(starts, cell_shape, strict=True))
        devices.setdefault(_number(corner, counts), device)
    found = [devices[cell] for cell in range(math.prod(counts))]
    return Grid(counts, tuple(device.process_index for device in found)), found


def cells_of(shape: tuple[int, ...], counts: tuple[int, ...], index: Index) -> Iterator[int]:
    """The numbers of the cells in which elements of a part of an array lie."""
    ranges = []
    for each, size, count in zip(index, shape, counts, strict=True):
        start, stop, _ = each.indices(size)
        length = size // count
        ranges.append(range(start // length, -(-stop // length)))
    for corner in product(*ranges):
        yield _number(corner, counts)


def assembled(
    shape: tuple[int, ...],
    dtype: str,
    counts: tuple[int, ...],
    index: Index,
    cell: Callable[[int], bytes],
) -> np.ndarray:
    """A part of an array, put together from cells.

    Args:
      shape, dtype: of the whole array.
      cell: gives the elements of a cell, by its number.

    Raises:
      ValueError: a cell has another number of elements.
    """
    cell_shape = tuple(size // count for size, count in zip(shape, counts, strict=True))
    bounds = [each.indices(size)[:2] for each, size in zip(index, shape, strict=True)]
    found = np.empty([stop - start for start, stop in bounds], jnp.dtype(dtype))
    for number in cells_of(shape, counts, index):
        corner = np.unravel_index(number, counts) if counts else ()
        part = np.frombuffer(cell(number), found.dtype).reshape(cell_shape)
        there, here = [], []
        for at, length, (start, stop) in zip(corner, cell_shape, bounds, strict=True):
            low, high = max(start, at * length), min(stop, (at + 1) * length)
            there.append(slice(low - start, high - start))
            here.append(slice(low - at * length, high - at * length))
        found[tuple(there)] = part[tuple(here)]
    return found


def _number(corner: tuple[int, ...], counts: tuple[int, ...]) -> int:
    number = 0
    for at, count in zip(corner, counts, strict=True):
        number = number * count + int(at)
    return number
