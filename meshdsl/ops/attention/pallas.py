"""Attention by a Pallas kernel for GPUs, for the calls that cuDNN cannot serve.

The algorithm is that of FlashAttention-2 (Dao, 2023). A program of the kernel has one block of rows
and goes through the blocks of columns. For the gradients of keys and values it has one block of
columns and goes through the blocks of rows. Which columns a row sees follows from their positions
and document numbers, which are operands. So rows and columns may be any parts of longer ones, in
any order. Each program is told the first and the last block of which it may see an element, and
skips the blocks before and after these: half of all blocks in causal attention, and nearly all
where documents follow one another.

`parts.py` merges the results for parts of the keys and states the derivative. The kernel is written
for JAX's Triton backend; on other platforms than GPU it is interpreted, for tests.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial, reduce
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton

from meshdsl.ops.arrays import as_one, padded
from meshdsl.ops.attention.kernels import Place, products_of, share_of_parts
from meshdsl.ops.attention.operands import Options, Sides, Slopes, Span, may_see
from meshdsl.ops.attention.pallas_kernels import (
    Beside,
    Blocks,
    column_slopes_kernel,
    output_kernel,
    row_slopes_kernel,
)

_LARGEST = 128  # the most rows or columns of a block; lengths are padded to a multiple of it


def _blocks(query, value, backward: bool) -> Blocks:
    """Sizes with which all blocks of a kernel fit the memory that a program has on GPU."""
    wide = max(query.shape[-1], value.shape[-1]) * query.dtype.itemsize
    if wide <= 128:
        return Blocks(64, 64, 4) if backward else Blocks(128, 64, 4)
    if wide <= 256:
        return Blocks(64, 64, 8) if backward else Blocks(128, 64, 8)
    if wide <= 512 and not backward:
        return Blocks(64, 32, 4)
    return Blocks(32, 32, 4)


class _Arrays(NamedTuple):
    """Local arrays, padded to whole blocks.

    Attributes:
      query: [shared, own, rows, features].
      key, value: [shared, columns, features].
      rows, columns: positions, document numbers and padding of the rows and of the columns.
      of_rows: for the backward pass, `normaliser` and `through` of `blocks.backward`, [shared, own,
        rows], and the cotangent, [shared, own, rows, features].
    """

    query: Any
    key: Any
    value: Any
    rows: Beside
    columns: Beside
    of_rows: tuple = ()

    def by_own(self) -> _Arrays:
        """The arrays with the shared dims and the query's own dims merged into one."""
        merged = lambda x: x.reshape(-1, *x.shape[2:])
        return self._replace(query=merged(self.query), of_rows=tuple(map(merged, self.of_rows)))


class _Static(NamedTuple):
    """What is known of a call of a kernel while tracing."""

    options: Options
    interpreted: bool


def forward(options: Options, place: Place, turns: range, query, key, value, sides: Sides):
    """As `blocks.forward`."""
    rows, features = query.shape[-2], value.shape[-1]
    run = partial(_by_rows, _static(options, place), output_kernel, _output_and_normaliser)
    products, _ = _products(options, place, turns, query, key, value)
    given = query, key, value, _needed(sides), ()
    output, normaliser = as_one(place.lowered, run, *given, products=products)
    output = output[..., :rows, :features].reshape(*query.shape[:-1], features)
    return output, normaliser[..., :rows].reshape(query.shape[:-1])


def backward(
    options: Options, place: Place, turns: range, query, key, value, sides: Sides, *of_rows
) -> Slopes:
    """As `blocks.backward`.

    Both kernels compute the scores and the gradients of the weights. These products are stated
    once, as of a kernel that computes all gradients.
    """
    static = _static(options, place)
    _, (*of_columns, by_query, by_key) = _products(options, place, turns, query, key, value)
    given = query, key, value, _needed(sides), of_rows
    run = partial(_column_slopes, static)
    rest = as_one(place.lowered, run, *given, products=(*of_columns, by_key))
    run = partial(_by_rows, static, row_slopes_kernel, _row_slopes)
    (first,) = as_one(place.lowered, run, *given, products=(by_query,))
    some = (
        x[..., : like.shape[-2], : like.shape[-1]].reshape(like.shape)
        for x, like in zip((first, *rest), (query, key, value), strict=True)
    )
    return Slopes(*some)


def _static(options: Options, place: Place) -> _Static:
    return _Static(options, interpreted=place.platform != "gpu")


def _products(options: Options, place: Place, turns: range, query, key, value):
    share = share_of_parts(options, place, turns, query.shape[-2], key.shape[-2])
    return products_of(query, key, value, share)


def _needed(sides: Sides) -> Sides:
    """`sides` without the arrays that the kernels do not use."""
    return sides._replace(bias=None, sinks=None)


def _arrays(options: Options, query, key, value, sides: Sides, of_rows: tuple) -> _Arrays:
    """The operands of the kernels."""
    shared = query.shape[: options.shared]
    programs, own = math.prod(shared), math.prod(query.shape[options.shared : -2])
    rows, columns = query.shape[-2], key.shape[-2]
    to_rows, to_columns = _whole(rows), _whole(columns)

    def wide(x, length: int, *leading: int) -> jax.Array:
        x = x.reshape(*leading, *x.shape[-2:])
        return padded(padded(x, x.ndim - 1, _power(x.shape[-1])), x.ndim - 2, length)

    def beside(x, length: int, to: int, mode: str = "edge") -> jax.Array | None:
        if x is None:
            return None
        x = x.reshape((1,) * (query.ndim - x.ndim) + x.shape)
        x = x.reshape(*x.shape[: options.shared], -1)
        size = max((i + 1 for i, n in enumerate(x.shape[:-1]) if n > 1), default=0)
        x = x.reshape(*x.shape[:size], -1)
        x = jnp.broadcast_to(x, (*shared[:size], length)).reshape(-1, length)
        return padded(x.astype(jnp.int32), 1, to, mode)

    inside = sides.inside
    if inside is None and to_columns > columns:
        inside = jnp.ones(columns, jnp.int32)
    positioned = options.causal or options.window is not None
    if of_rows:
        *numbers, cotangent = of_rows
        numbers = [padded(x.reshape(programs, own, rows), 2, to_rows) for x in numbers]
        of_rows = *numbers, wide(cotangent, to_rows, programs, own)
    return _Arrays(
        wide(query, to_rows, programs, own),
        wide(key, to_columns, programs),
        wide(value, to_columns, programs),
        Beside(
            beside(sides.rows, rows, to_rows) if positioned else None,
            beside(sides.row_segments, rows, to_rows),
        ),
        Beside(
            beside(sides.columns, columns, to_columns) if positioned else None,
            beside(sides.column_segments, columns, to_columns),
            beside(inside, columns, to_columns, "constant"),
        ),
        of_rows,
    )


def _power(features: int) -> int:
    """The power of two that a block has in the place of `features`; products take 16 or more."""
    return max(16, pl.next_power_of_2(features))


def _whole(length: int) -> int:
    return -(-length // _LARGEST) * _LARGEST


# -- which blocks see which ------------------------------------------------------------------------


def _first_and_last(options: Options, arrays: _Arrays, blocks: Blocks, of_columns: bool):
    """For each block of rows the range of blocks of columns in which it may see an element.

    With `of_columns`, for each block of columns the range of blocks of rows.

    Returns:
      The first block of the range, and the one after the last block, each [programs, blocks]. If
      the range is empty, the first is not less than the second.
    """
    rows, columns = arrays.rows, arrays.columns

    def spans(beside: Beside, length: int, size: int, by_row: bool) -> Beside:
        """The least and greatest number in each block."""

        def of(x):
            x = x.reshape(x.shape[0], length // size, size)
            return Span(*(jnp.expand_dims(y, 1 + by_row) for y in (x.min(-1), x.max(-1))))

        return jax.tree.map(of, beside)

    lengths = arrays.query.shape[-2], arrays.key.shape[-2]
    counts = lengths[0] // blocks.rows, lengths[1] // blocks.columns
    rows = spans(arrays.rows, lengths[0], blocks.rows, True)
    columns = spans(arrays.columns, lengths[1], blocks.columns, False)
    conditions = [jnp.ones((1, *counts), bool)]
    if (seen := may_see(options, rows.position, columns.position)) is not None:
        conditions.append(seen)
    if (mine := rows.segment) is not None:
        theirs = columns.segment
        conditions.append(mine.least <= theirs.greatest)
        conditions.append(theirs.least <= mine.greatest)
    if columns.inside is not None:
        conditions.append(columns.inside.greatest > 0)
    programs = max(x.shape[0] for x in conditions)
    seen = reduce(jnp.logical_and, [jnp.repeat(x, programs // x.shape[0], 0) for x in conditions])
    if of_columns:
        seen = jnp.swapaxes(seen, 1, 2)
    number, count = jnp.arange(seen.shape[-1], dtype=jnp.int32), seen.shape[-1]
    return jnp.where(seen, number, count).min(-1), jnp.where(seen, number + 1, 0).max(-1)


# -- calls -----------------------------------------------------------------------------------------


def _by_rows(static: _Static, kernel: Callable, results: Callable, *given):
    """The results of a kernel whose programs have blocks of rows, padded.

    Args:
      results: gives the shapes and dtypes of the results, from query and value.
    """
    arrays = _arrays(static.options, *given)
    leading = arrays.query.shape[:-1]
    arrays = arrays.by_own()
    q, k, v = arrays[:3]
    through, own = (k, v, arrays.columns), (q, arrays.rows, arrays.of_rows)
    found = _call(static, kernel, arrays, through, own, results(q, v), of_columns=False)
    return [x.reshape(*leading, *x.shape[2:]) for x in found]


def _output_and_normaliser(q, v):
    output = jax.ShapeDtypeStruct((*q.shape[:-1], v.shape[-1]), v.dtype)
    return output, jax.ShapeDtypeStruct(q.shape[:-1], jnp.float32)


def _row_slopes(q, _):
    return (jax.ShapeDtypeStruct(q.shape, jnp.float32),)


def _column_slopes(static: _Static, *given):
    """The gradients of keys and values, padded."""
    arrays = _arrays(static.options, *given)
    q, k, v = arrays[:3]
    through, own = (q, arrays.rows, arrays.of_rows), (k, v, arrays.columns)
    results = tuple(jax.ShapeDtypeStruct(x.shape, jnp.float32) for x in (k, v))
    return _call(static, column_slopes_kernel, arrays, through, own, results, of_columns=True)


def _call(static: _Static, kernel, arrays: _Arrays, through, own, results, *, of_columns: bool):
    """Call a kernel: a program has blocks of the arrays `own`, and goes `through` the others."""
    blocks = _blocks(arrays.query, arrays.value, backward=bool(arrays.of_rows))
    seen = _first_and_last(static.options, arrays, blocks, of_columns)
    along, block = (arrays.key, blocks.columns) if of_columns else (arrays.query, blocks.rows)
    whole, some = partial(_spec, along.shape[0], None), partial(_spec, along.shape[0], block)
    through = (seen, *through)
    return pl.pallas_call(
        partial(kernel, static.options, blocks),
        grid=(along.shape[1] // block, along.shape[0]),
        in_specs=[jax.tree.map(whole, through), jax.tree.map(some, own)],
        out_specs=jax.tree.map(some, results),
        out_shape=results,
        compiler_params=triton.CompilerParams(num_warps=blocks.warps, num_stages=2),
        interpret=static.interpreted,
        name=kernel.__name__,
    )(through, own)


def _spec(programs: int, block: int | None, x) -> pl.BlockSpec:
    """The part of `x` [programs, length, ...] of a program: its own block, or the whole length."""
    times = programs // x.shape[0]
    rest = (0,) * (x.ndim - 2)
    if block is None:
        return pl.BlockSpec((None, *x.shape[1:]), lambda _, n: (n // times, 0, *rest))
    return pl.BlockSpec((None, block, *x.shape[2:]), lambda i, n: (n // times, i, *rest))
