"""Attention by JAX's splash kernel, for the parts of the keys that a device sees.

The kernel is called as one operation of local arrays, see `lowering.kernels`, forward and backward;
`parts.py` puts the results together and states the derivative. Where the queries are split
and all keys are at hand, each device is given its part of what the kernel knows of the mask. Where
the keys come in parts, what a run of queries sees of a run of keys depends on how far apart they
begin, and there is a kernel for each such distance: often all, nothing, or what is causal.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from functools import partial, reduce
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from meshdsl.later import imported
from meshdsl.ops.arrays import as_one, padded, varying_as
from meshdsl.ops.attention.blocks import HIDDEN, Options, Sides, Slopes
from meshdsl.ops.attention.kernels import (
    LANES,
    Place,
    distances,
    products_of,
    seen_of,
    visible_share,
)
from meshdsl.ops.attention.parts import merged

# Rows and columns of the blocks. The fused backward kernel writes the gradient of the queries once
# for each block of columns, so these are large there: blocks of 4,096 do not fit the memory that a
# kernel has on v5p.
ROWS, COLUMNS, BACKWARD_COLUMNS = 512, 512, 2048
# The kernel would add those gradients by a sum that takes the compiler for v5p 2.4 ms of a layer
# of 4 x 4,096 tokens and 32 heads. Up to so many blocks are kernels of their own instead, whose
# results are added in 0.3 ms.
_BACKWARD_KERNELS = 8


class Arrays(NamedTuple):
    """Local arrays with one dim of heads; the query has those of its own beside the shared ones.

    Attributes:
      query, key, value: [batch, heads, length, features].
      segments: of rows and of columns, [batch, length] each, or None.
      of_rows: what else has rows: [batch, heads, length], and features or not.
    """

    query: Any
    key: Any
    value: Any
    segments: Any
    of_rows: tuple = ()

    def cut(self, row: int, rows: int, column: int, columns: int) -> Arrays:
        """A run of rows, and of columns, by where it begins and how many there are."""
        of_rows = lambda x, at=2: lax.slice_in_dim(x, row, row + rows, axis=at)
        of_columns = lambda x, at=2: lax.slice_in_dim(x, column, column + columns, axis=at)
        segments = self.segments
        if segments is not None:
            segments = of_rows(segments[0], 1), of_columns(segments[1], 1)
        return Arrays(
            of_rows(self.query),
            of_columns(self.key),
            of_columns(self.value),
            segments,
            tuple(map(of_rows, self.of_rows)),
        )

    def padded(self) -> Arrays:
        """With whole blocks of rows and of columns. No row sees a column that is added."""
        rows, columns = self.query.shape[2], self.key.shape[2]
        to_rows, to_columns = _whole(rows), _whole(columns)
        segments = self.segments
        if segments is None and to_columns > columns:
            segments = _one_segment(len(self.query), rows, columns)
        if segments is not None:
            segments = padded(segments[0], 1, to_rows), padded(segments[1], 1, to_columns)
        if to_columns > columns:
            segments = _hidden(segments, jnp.arange(to_columns) < columns)
        by_row = lambda x: padded(x, 2, to_rows)
        by_column = lambda x: padded(x, 2, to_columns)
        return Arrays(
            by_row(self.query),
            by_column(self.key),
            by_column(self.value),
            segments,
            tuple(map(by_row, self.of_rows)),
        )


def _one_segment(batch: int, rows: int, columns: int) -> tuple[jax.Array, jax.Array]:
    return jnp.zeros((batch, rows), jnp.int32), jnp.zeros((batch, columns), jnp.int32)


def _hidden(segments, inside) -> tuple[jax.Array, jax.Array]:
    """The segments, with one that no row has for the columns that are not inside."""
    rows, columns = segments
    return rows, jnp.where(inside, columns, rows.max() + 1)


def _whole(length: int) -> int:
    """The next length of whole blocks. That of many blocks is one of large ones."""
    unit = COLUMNS if length >= 4 * COLUMNS else LANES
    return -(-length // unit) * unit if length % LANES else length


def _arrays(options: Options, query, key, value, sides: Sides, *of_rows) -> Arrays:
    leading, shared = query.shape[:-2], query.shape[: options.shared]
    batch, heads = math.prod(shared[:-1]), math.prod(shared[-1:])
    group = math.prod(leading[options.shared :])

    def by_batch(x: Any, length: int) -> jax.Array:
        x = x.reshape(*x.shape[: len(shared[:-1])], length)
        return jnp.broadcast_to(x, (*shared[:-1], length)).reshape(batch, length)

    rows, columns, segments = query.shape[-2], key.shape[-2], None
    if sides.row_segments is not None:
        segments = by_batch(sides.row_segments, rows), by_batch(sides.column_segments, columns)
    if sides.inside is not None:
        segments = _hidden(segments or _one_segment(batch, rows, columns), sides.inside.reshape(-1))
    with_own = lambda x: x.reshape(batch, heads * group, *x.shape[len(leading) :])
    with_shared = lambda x: x.reshape(batch, heads, *x.shape[-2:])
    arrays = with_own(query), with_shared(key), with_shared(value)
    return Arrays(*arrays, segments, tuple(map(with_own, of_rows)))


def forward(options: Options, place: Place, turns: range, query, key, value, sides: Sides):
    """As `blocks.forward`."""
    arrays, leading = _arrays(options, query, key, value, sides), query.shape[:-2]

    def of_rows(row: int):
        found = None
        for column in range(place.columns.count):
            output, normaliser = _of_runs(options, place, turns, arrays, sides, row, column, False)
            wide = output.astype(jnp.float32), normaliser
            found = wide if found is None else merged(found, wide)
        return found

    if place.whole:
        result = _of_all(options, place, arrays, False)
    else:
        result = [of_rows(row) for row in range(place.rows.count)]
    output, normaliser = (_joined(x) for x in zip(*result, strict=True))
    output = output.reshape(*leading, *output.shape[-2:])
    return output, normaliser.reshape(*leading, normaliser.shape[-1])


def backward(
    options: Options, place: Place, turns: range, query, key, value, sides: Sides, *of_rows
) -> Slopes:
    """As `blocks.backward`."""
    arrays = _arrays(options, query, key, value, sides, *of_rows)
    if place.whole:
        by_query, by_key, by_value = zip(*_of_all(options, place, arrays, True), strict=True)
        found = _joined(by_query), reduce(jnp.add, by_key), reduce(jnp.add, by_value)
    else:
        by_row: list = [0] * place.rows.count
        by_column: list = [(0, 0)] * place.columns.count
        for row in range(place.rows.count):
            for column in range(place.columns.count):
                result = _of_runs(options, place, turns, arrays, sides, row, column, True)
                by_query, by_key, by_value = (x.astype(jnp.float32) for x in result)
                by_row[row] += by_query
                before = by_column[column]
                by_column[column] = before[0] + by_key, before[1] + by_value
        found = _joined(by_row), *map(_joined, zip(*by_column, strict=True))
    shaped = (x.reshape(y.shape) for x, y in zip(found, (query, key, value), strict=True))
    return Slopes(*shaped)


def _joined(runs) -> jax.Array:
    """The runs of a part, put together again."""
    return jnp.concatenate(runs, 2) if len(runs) > 1 else runs[0]


def _of_all(options: Options, place: Place, arrays: Arrays, backward: bool) -> list:
    """What the kernel gives of each run of the rows of this device and all columns."""
    rows, columns = place.rows.size, arrays.key.shape[2]
    share = visible_share(options, rows * place.parts, columns, True)
    run = Run(options, place.platform != "tpu", place.lowered, backward, 0, place.parts)
    numbers = [None] if place.part is None else place.part()
    if run.sees_all(rows, columns):
        # The kernel has no parts of such a mask.
        run, numbers = run._replace(distance=None, parts=1), [None] * len(numbers)
    some = [arrays.cut(i * rows, rows, 0, columns) for i in range(len(numbers))]
    return [run.of(x, share, n) for x, n in zip(some, numbers, strict=True)]


def _of_runs(
    options: Options,
    place: Place,
    turns: range,
    arrays: Arrays,
    sides: Sides,
    row: int,
    column: int,
    backward: bool,
):
    """What the kernel gives of a run of rows and a run of columns, by their numbers.

    The FLOPs that are stated of each kernel are those of an average device: they count as often as
    there are pairs of runs for it.
    """
    rows, columns = place.rows.size, place.columns.size
    some = arrays.cut(row * rows, rows, column * columns, columns)
    far = distances(place, turns, row, column)
    pairs, kinds = far.total(), {}
    for distance, times in far.items():
        kind = seen_of(options, rows, columns, distance)
        kinds[kind] = kinds.get(kind, 0) + times
    if 0 not in turns and place.rows.count == place.columns.count == 1:
        kinds.pop((0.0, None), None)  # then this is not called
        far = Counter({d: n for d, n in far.items() if seen_of(options, rows, columns, d)[0]})

    def branch(kind) -> Callable:
        share, distance = kind
        if not share:
            return partial(_nothing, backward)
        run = Run(options, place.platform != "tpu", place.lowered, backward, distance, 1)
        counted = share * kinds[kind] / pairs
        return lambda arrays: run.of(arrays, counted, None)

    branches = [branch(kind) for kind in kinds] or [partial(_nothing, backward)]
    if len(branches) == 1:
        return branches[0](some)
    known = sorted(far)
    numbers = [list(kinds).index(seen_of(options, rows, columns, d)) for d in known]
    first = lambda x, at: x.reshape(-1)[at]
    distance = first(sides.rows, row * rows) - first(sides.columns, column * columns)
    number = jnp.asarray(numbers)[jnp.sum(jnp.asarray(known) < distance)]
    return lax.switch(number, branches, some)


def _nothing(backward: bool, arrays: Arrays):
    """What the kernel would give of rows that see no column."""
    if backward:
        return tuple(map(jnp.zeros_like, arrays[:3]))
    *shape, _ = arrays.query.shape
    zeros = jnp.zeros((*shape, arrays.value.shape[-1]), arrays.query.dtype)
    return varying_as(arrays.query, (zeros, jnp.full(shape, HIDDEN, jnp.float32)))


class Run(NamedTuple):
    """What is known of a call of the kernel while tracing.

    Attributes:
      interpreted: whether the kernel is interpreted.
      lowered: whether this is one device of a lowering.
      backward: whether it gives the gradients of query, key and value, or else the output and the
        log-sum-exp of each row.
      distance: of the first of all rows from the first column; None where it does not matter.
      parts: of all rows, of which a device has one.
    """

    options: Options
    interpreted: bool
    lowered: bool
    backward: bool
    distance: int | None
    parts: int

    @property
    def all_see(self) -> bool:
        """Whether the mask, without segments, lets every row see a column."""
        if self.options.window is not None:
            return False
        return not self.options.causal or self.distance is None or self.distance >= 0

    def sees_all(self, rows: int, columns: int) -> bool:
        """Whether the mask, without segments, lets the rows of every part see all columns.

        Args:
          rows: of one part.
        """
        distance = self.distance or 0
        return seen_of(self.options, rows * self.parts, columns, distance) == (1.0, None)

    def of(self, arrays: Arrays, share: float, part):
        """What the kernel gives of local arrays, which are padded for it.

        Args:
          share: of the scores that count.
          part: the number of the part of the rows, where there are several.
        """
        rows, columns = arrays.query.shape[2], arrays.key.shape[2]
        arrays = arrays.padded()
        # Work on what is added is not counted.
        share *= rows * columns / (arrays.query.shape[2] * arrays.key.shape[2])
        call = self._by_columns if self.backward else self._call
        lengths = (rows, columns, columns) if self.backward else (rows, rows)
        return tuple(
            lax.slice_in_dim(x, 0, n, axis=2)
            for x, n in zip(call(arrays, share, part), lengths, strict=True)
        )

    def _by_columns(self, arrays: Arrays, share: float, part):
        """The gradients, one block of columns after the other."""
        rows, columns = arrays.query.shape[2], arrays.key.shape[2]
        size = block_size(columns, BACKWARD_COLUMNS)
        if size == columns or columns > size * _BACKWARD_KERNELS:
            return self._call(arrays, share, part)
        found = []
        for start in range(0, columns, size):
            run, number = self, part
            if self.distance is not None:
                run = self._replace(distance=self.distance - start)
            if run.parts > 1 and run.sees_all(rows, size):
                run, number = run._replace(distance=None, parts=1), None
            found.append(run._call(arrays.cut(0, rows, start, size), share, number))
        by_query, *others = zip(*found, strict=True)
        total = reduce(jnp.add, [x.astype(jnp.float32) for x in by_query])
        return total.astype(arrays.query.dtype), *(jnp.concatenate(x, 2) for x in others)

    def _call(self, arrays: Arrays, share: float, part):
        products = products_of(arrays.query, arrays.key, arrays.value, share)[self.backward]
        call, results = partial(_run, self), self._results(arrays)
        return as_one(self.lowered, call, arrays, part, products=products, results=results)

    def _results(self, arrays: Arrays) -> tuple[jax.ShapeDtypeStruct, ...]:
        """The types of what the kernel gives."""
        if self.backward:
            return tuple(jax.ShapeDtypeStruct(x.shape, x.dtype) for x in arrays[:3])
        *shape, _ = arrays.query.shape
        output = jax.ShapeDtypeStruct((*shape, arrays.value.shape[-1]), arrays.query.dtype)
        return output, jax.ShapeDtypeStruct(shape, jnp.float32)


def _run(run: Run, arrays: Arrays, part):
    name = "slopes" if run.backward else "output"
    return imported("meshdsl.ops.attention.splash_kernels", name)(run, arrays, part)


def block_size(length: int, most: int) -> int:
    """The largest block of whole lanes, up to `most`, of which `length` is a multiple."""
    return max(n for n in range(LANES, min(length, most) + 1, LANES) if length % n == 0)
