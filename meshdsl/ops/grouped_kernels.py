"""Products of groups of rows by Pallas kernels for GPUs, for `grouped_dot.py`.

A program of a kernel computes one tile of the result. Which rows it reads follows from numbers that
it is given, so there are as many programs as the largest number of tiles, and those without rows
end at once. The kernels are written for JAX's Triton backend; on other platforms than GPU they are
interpreted, for tests.
"""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton

from meshdsl.ops.kernel_choice import compute_capability


class Tile(NamedTuple):
    """The part of a result that a program computes, and how.

    Attributes:
      rows, columns: the size of the tile, powers of two of at least 16.
      depth: how much of the contracted dim a turn of the program's loop multiplies.
      warps: how many warps work on the tile.
      stages: for how many turns operands are on their way or in use at once.
      band: how many tiles of rows take turns before the next tile of columns, so that what they
        read is still in the cache.
    """

    rows: int
    columns: int
    depth: int
    warps: int
    stages: int
    band: int = 16


# By the bytes of an element, and whether a program has the shared memory of Hopper. The largest
# take 192 KiB there, and 96 KiB on other GPUs; see benchmarks/grouped_products.py.
_TILES = {
    (2, True): Tile(128, 256, 64, warps=8, stages=4),
    (2, False): Tile(128, 256, 64, warps=8, stages=3),
    (4, True): Tile(128, 128, 32, warps=8, stages=3),
    (4, False): Tile(128, 128, 32, warps=8, stages=3),
}
# Where groups have few rows, by the bytes of an element.
_SMALL_TILES = {
    2: Tile(128, 128, 64, warps=4, stages=3),
    4: Tile(64, 64, 32, warps=4, stages=3),
}


def tile_of(dtype, rows: int) -> Tile:
    """The tile for products of `dtype` on the GPU of this machine.

    Without one it is a tile that all GPUs have the memory for.

    Args:
      rows: about how many rows a group has; a power of two.
    """
    # Chips of capability 8 have 99 to 163 KiB for a program, Hopper has 227, and 12 has 99.
    hopper = 9 <= (compute_capability() or 0) < 12
    size = jnp.dtype(dtype).itemsize
    tile = _TILES[size, hopper] if rows > 128 else _SMALL_TILES[size]
    return tile._replace(rows=min(max(rows, 16), tile.rows))


def dot(tile: Tile, interpret: bool, transposed: bool, dtype: str, rows, weight, blocks):
    """Each row times the matrix of its group, or times the `transposed` matrix.

    Args:
      blocks: `grouped_dot.blocks_of` for blocks of `tile.rows`.
    """
    features = weight.shape[1 if transposed else 2]
    shape = jax.ShapeDtypeStruct((len(rows), features), jnp.dtype(dtype))
    columns = pl.cdiv(features, tile.columns)
    return pl.pallas_call(
        partial(_dot_kernel, tile, transposed, blocks.shape[1], columns),
        grid=(blocks.shape[1] * columns,),
        out_shape=shape,
        compiler_params=triton.CompilerParams(num_warps=tile.warps, num_stages=tile.stages),
        interpret=interpret,
        name="grouped_dot",
    )(blocks, rows, weight)


def outer(tile: Tile, interpret: bool, dtype: str, rows, others, starts):
    """For each group the product of its `rows [m, k]` and its `others [m, n]`: `[groups, k, n]`."""
    groups, inner, features = len(starts) - 1, rows.shape[1], others.shape[1]
    counts = pl.cdiv(inner, tile.rows), pl.cdiv(features, tile.columns)
    return pl.pallas_call(
        partial(_outer_kernel, tile, *counts),
        grid=(groups * counts[0] * counts[1],),
        out_shape=jax.ShapeDtypeStruct((groups, inner, features), jnp.dtype(dtype)),
        compiler_params=triton.CompilerParams(num_warps=tile.warps, num_stages=tile.stages),
        interpret=interpret,
        name="grouped_outer",
    )(starts, rows, others)


class _Part(NamedTuple):
    """Consecutive elements of a dim.

    Attributes:
      inside: which of them count; None if all do.
    """

    begin: jax.Array
    size: int
    inside: jax.Array | None

    @property
    def at(self) -> slice | pl.Slice:
        return pl.ds(self.begin, self.size)

    @property
    def numbers(self) -> jax.Array:
        return self.begin + lax.iota(jnp.int32, self.size)


def _dot_kernel(tile: Tile, transposed: bool, count: int, columns: int, *refs):
    blocks_ref, rows_ref, weight_ref, result_ref = refs
    block, column = _place(tile, pl.program_id(0), count, columns)
    group, first, left = (blocks_ref[i, block] for i in range(3))
    inner = rows_ref.shape[1]

    @pl.when(left > 0)
    def _():
        own = _some_of(first, tile.rows, left)
        features = _part_of(column, tile.columns, result_ref.shape[1])

        def turn(number, total):
            deep = _part_of(number, tile.depth, inner)
            if transposed:
                matrix = _loaded_turned(weight_ref, features, deep, group)
            else:
                matrix = _loaded(weight_ref, deep, features, group)
            return total + _product(_loaded(rows_ref, own, deep), matrix)

        start = jnp.zeros((tile.rows, tile.columns), jnp.float32)
        total = lax.fori_loop(0, pl.cdiv(inner, tile.depth), turn, start)
        _store(result_ref, total, own, features)


def _outer_kernel(tile: Tile, count: int, columns: int, *refs):
    starts_ref, rows_ref, others_ref, result_ref = refs
    number = pl.program_id(0)
    group, place = _divided(number, count * columns)
    row, column = _place(tile, place, count, columns)
    first, end = starts_ref[group], starts_ref[group + 1]
    inner = _part_of(row, tile.rows, rows_ref.shape[1])
    features = _part_of(column, tile.columns, others_ref.shape[1])

    def turn(number, total):
        begin = first + number * tile.depth
        deep = _some_of(begin, tile.depth, end - begin)
        some = _loaded_turned(rows_ref, deep, inner)
        return total + _product(some, _loaded(others_ref, deep, features))

    start = jnp.zeros((tile.rows, tile.columns), jnp.float32)
    turns, _ = _divided(end - first + (tile.depth - 1), tile.depth)
    total = lax.fori_loop(0, turns, turn, start)
    _store(result_ref, total, inner, features, group)


def _place(tile: Tile, number, count: int, columns: int):
    """The tile of rows and the tile of columns of a program.

    Args:
      count: how many tiles of rows there are, and `columns` of columns.
    """
    band, within = _divided(number, tile.band * columns)
    first = band * tile.band
    column, row = _divided(within, jnp.minimum(count - first, tile.band))
    return first + row, column


def _divided(number, by):
    """The quotient and the remainder of numbers that are not negative."""
    by = np.int32(by) if isinstance(by, int) else by.astype(jnp.int32)
    return lax.div(number, by), lax.rem(number, by)


def _some_of(begin, size: int, left) -> _Part:
    """The part that begins at `begin`, of which `left` elements count."""
    return _Part(begin, size, lax.iota(jnp.int32, size) < left)


def _part_of(number, size: int, whole: int) -> _Part:
    """The part `number` of a dim of size `whole`."""
    begin = number * size
    return _some_of(begin, size, whole - begin) if whole % size else _Part(begin, size, None)


def _loaded(ref, rows: _Part, columns: _Part, *first):
    """Rows and columns of a matrix, or of the `first` of several; zeros for what does not count."""
    mask = _mask(rows, columns)
    return triton.load(
        ref.at[*first, rows.at, columns.at], mask=mask, other=None if mask is None else 0.0
    )


def _loaded_turned(ref, rows: _Part, columns: _Part, *first):
    """As `_loaded`, transposed. The order of loads is that of memory, as it is for `_loaded`.

    A transposition after the load would keep Triton from loading ahead, on GPUs before Hopper.
    """
    shape, mask = (columns.size, rows.size), _mask(columns, rows)
    down, across = rows.numbers[None, :], columns.numbers[:, None]
    at = *first, jnp.broadcast_to(down, shape), jnp.broadcast_to(across, shape)
    return triton.load(ref.at[at], mask=mask, other=None if mask is None else 0.0)


def _store(ref, tile, rows: _Part, columns: _Part, *first):
    at = ref.at[*first, rows.at, columns.at]
    triton.store(at, tile.astype(ref.dtype), mask=_mask(rows, columns))


def _mask(rows: _Part, columns: _Part) -> jax.Array | None:
    """The elements of a tile that count; None if all do."""
    if rows.inside is None and columns.inside is None:
        return None
    down = True if rows.inside is None else rows.inside[:, None]
    across = True if columns.inside is None else columns.inside[None, :]
    return jnp.broadcast_to(jnp.logical_and(down, across), (rows.size, columns.size))


def _product(a, b) -> jax.Array:
    return jnp.dot(a, b, preferred_element_type=jnp.float32)
