"""Attention by JAX's splash kernel, for the parts of the keys that a device sees.

The kernel is called as one operation on local arrays, see `lowering.kernels`, in the forward and in
the backward pass; `parts.py` merges the results and states the derivative.

The kernel is built for one mask. Where the queries are split and a device sees all keys, each
device gets its part of the kernel's tables about the mask. Where the keys come in parts, the mask
of a run of queries and a run of keys depends on the distance between their beginnings. There is a
kernel for each distance that occurs; often there are three: all keys are seen, none is, or the mask
is causal.
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

from meshdsl.ops.arrays import as_one, padded, varying_as
from meshdsl.ops.attention.kernels import (
    LANES,
    Place,
    distances,
    products_of,
    seen_of,
    visible_share,
)
from meshdsl.ops.attention.operands import HIDDEN, Options, Sides, Slopes
from meshdsl.ops.attention.parts import merged

# Rows and columns of a block. The fused backward kernel writes the gradient of the queries once for
# each block of columns, so its blocks have more columns: 2,048, because blocks with 4,096 columns
# do not fit the memory of a kernel on v5p. Those of heads wider than 128 have fewer.
ROWS, COLUMNS, BACKWARD_COLUMNS = 512, 512, 2048
# The kernel would sum these gradients over the blocks of columns, which takes 2.4 ms on v5p in a
# layer of 4 x 4,096 tokens and 32 heads. Instead each block is a kernel of its own, if there are at
# most 8, and their results are added in 0.3 ms.
_BACKWARD_KERNELS = 8


class Arrays(NamedTuple):
    """Local arrays with one dim of heads. The query may have several heads for each of the key's.

    Attributes:
      query, key, value: [batch, heads, length, features].
      segments: the segments of rows and of columns, [batch, length] each; or None.
      of_rows: other arrays that have rows: [batch, heads, length] or with features after these.
    """

    query: Any
    key: Any
    value: Any
    segments: Any
    of_rows: tuple = ()

    def cut(self, row: int, rows: int, column: int, columns: int) -> Arrays:
        """The arrays cut to a run of rows and a run of columns: for each the start and the size."""
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
        """The arrays padded to whole blocks of rows and columns. No row sees an added column."""
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
    """The segments, in which columns that are not inside have a number that no row has."""
    rows, columns = segments
    return rows, jnp.where(inside, columns, rows.max() + 1)


def _whole(length: int) -> int:
    """The next length of whole blocks: of large blocks, if it has at least four of these."""
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
    """The runs of a part, joined along its length."""
    return jnp.concatenate(runs, 2) if len(runs) > 1 else runs[0]


def _of_all(options: Options, place: Place, arrays: Arrays, backward: bool) -> list:
    """The results of the kernel for each run of this device's rows and all columns."""
    rows, columns = place.rows.size, arrays.key.shape[2]
    share = visible_share(options, rows * place.parts, columns, True)
    run = Run(options, place.platform != "tpu", place.lowered, backward, 0, place.parts)
    numbers = [None] if place.part is None else place.part()
    if run.sees_all(rows, columns):
        # The kernel cannot cut a full mask into parts.
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
    """The results of the kernel for a run of rows and a run of columns.

    Devices, and turns of a ring, may need different kernels, of which one is chosen when the
    program runs. The FLOPs stated of each kernel are weighted by how often it is chosen, so that
    their sum is that of an average device.

    Args:
      row, column: the numbers of the runs.
    """
    rows, columns = place.rows.size, place.columns.size
    some = arrays.cut(row * rows, rows, column * columns, columns)
    far = distances(place, turns, row, column)
    pairs, kinds = far.total(), {}
    for distance, times in far.items():
        kind = seen_of(options, rows, columns, distance)
        kinds[kind] = kinds.get(kind, 0) + times
    if 0 not in turns and place.rows.count == place.columns.count == 1:
        kinds.pop((0.0, None), None)  # parts that are not seen are skipped by the caller
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
    """The results for rows that see no column."""
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
      backward: whether the call computes the gradients of query, key and value. Otherwise it
        computes the output and the log-sum-exp of each row.
      distance: how far behind the first column the first of all rows is; None if any will do.
      parts: into how many parts all rows are split; a device has one of them.
    """

    options: Options
    interpreted: bool
    lowered: bool
    backward: bool
    distance: int | None
    parts: int

    @property
    def all_see(self) -> bool:
        """Whether the mask, without segments, lets every row see at least one column."""
        if self.options.window is not None:
            return False
        return not self.options.causal or self.distance is None or self.distance >= 0

    def sees_all(self, rows: int, columns: int) -> bool:
        """Whether the mask, without segments, lets the rows of every part see all columns.

        Args:
          rows: how many rows one part has.
        """
        distance = self.distance or 0
        return seen_of(self.options, rows * self.parts, columns, distance) == (1.0, None)

    def of(self, arrays: Arrays, share: float, part):
        """The results of the kernel for local arrays, which are padded for it.

        Args:
          share: the share of the scores that count.
          part: the number of this device's part of the rows, if there are several.
        """
        rows, columns = arrays.query.shape[2], arrays.key.shape[2]
        arrays = arrays.padded()
        # Work on padding is not counted.
        share *= rows * columns / (arrays.query.shape[2] * arrays.key.shape[2])
        call = self._by_columns if self.backward else self._call
        lengths = (rows, columns, columns) if self.backward else (rows, rows)
        return tuple(
            lax.slice_in_dim(x, 0, n, axis=2)
            for x, n in zip(call(arrays, share, part), lengths, strict=True)
        )

    def _by_columns(self, arrays: Arrays, share: float, part):
        """The gradients, computed for one block of columns after the other."""
        rows, columns = arrays.query.shape[2], arrays.key.shape[2]
        size = backward_columns(columns, arrays.query.shape[-1])
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
        """The types of the results of the kernel."""
        if self.backward:
            return tuple(jax.ShapeDtypeStruct(x.shape, x.dtype) for x in arrays[:3])
        *shape, _ = arrays.query.shape
        output = jax.ShapeDtypeStruct((*shape, arrays.value.shape[-1]), arrays.query.dtype)
        return output, jax.ShapeDtypeStruct(shape, jnp.float32)


def _run(run: Run, arrays: Arrays, part):
    from meshdsl.ops.attention import splash_kernels  # with Pallas, which takes long to import

    return (splash_kernels.slopes if run.backward else splash_kernels.output)(run, arrays, part)


def backward_columns(length: int, features: int) -> int:
    """The columns of a block of the backward kernel, for heads with so many features."""
    wide = -(-features // LANES)
    return block_size(length, max(BACKWARD_COLUMNS // wide, LANES))


def block_size(length: int, most: int) -> int:
    """The largest block of whole lanes, up to `most`, of which `length` is a multiple."""
    return max(n for n in range(LANES, min(length, most) + 1, LANES) if length % n == 0)
