"""Sums over devices whose terms travel in few bits, by a wire (`lowering.wires`).

With n devices along the axis, each device cuts its term into n chunks:

    psum_scatter    each chunk is encoded and sent to its device by an all_to_all; there the n
                    terms of a chunk are decoded and added up in float32, in the order of the
                    devices
    psum            and the sum of each chunk is encoded once more, and gathered by all devices

All devices decode the same bytes, so they get the same bits. Over other axes the sum is exact and
is taken first. A psum over axes of both kinds scatters its exact part, so that only one device of
those that have the same sum sends it, and gathers at the end over these axes too.

What is rounded is defined by the dims of the gradient and not by the split. A *block* is a run of
128 elements of the last dim: elements 0 to 127, 128 to 255, and so on. An array of *pieces* has two
positions for the last dim: the number of the piece, and the place in it. Mostly a piece is a block.
Where the parts of devices, or chunks, end within blocks, pieces are as large as possible, and the
devices that have pieces of one block find its largest magnitude together, by a pmax.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import groupby
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from meshdsl.lowering import collectives
from meshdsl.lowering.collectives import Axes
from meshdsl.lowering.derivatives import with_derivative_of
from meshdsl.lowering.magnitudes import largest
from meshdsl.lowering.wires import BLOCK, WIRES, Wire, Wired

# Called for each collective with its name, its axes, and the bytes of the larger of what goes in
# and what comes out.
Note = Callable[[str, Axes, int], None]


class _Run(NamedTuple):
    """Neighbouring axes of a dim to which one wire applies; None: their sum is exact."""

    wire: Wire | None
    axes: Axes
    size: int


class Blocks(NamedTuple):
    """How an array of pieces lies in the blocks of the last dim.

    Attributes:
      indices: for each piece the number of its block; None where each piece is a block.
      count: how many blocks the whole dim has.
      axes: the axes along which other devices have pieces of the same blocks.
    """

    indices: Any = None
    count: int = 0
    axes: Axes = ()


class LossySums:
    """Sums in few bits over some of the axes of a mesh.

    Args:
      wired: these axes, with the wires.
      sizes: those of all axes of the mesh.
    """

    def __init__(self, wired: Wired, sizes: Mapping[str, int], note: Note):
        self._wires = {axis: WIRES[name] for axis, name in wired}
        self._sizes, self._note = sizes, note

    def psum(self, x, axes: Axes, last: Axes) -> jax.Array:
        """The sum over `axes`, of which some are wired; its derivative is that of the exact sum.

        Args:
          last: the axes that split the last dim of `x`.
        """
        if not self._is_lossy(x, axes):
            return self._ran("psum", collectives.psum, x, axes)
        value, _ = self._psum(lax.stop_gradient(x), axes, last)
        return with_derivative_of(value.astype(x.dtype), lambda x: collectives.psum(x, axes), x)

    def psum_of_rest(self, x, axes: Axes, last: Axes, dropped) -> tuple[jax.Array, jax.Array]:
        """The sum over `axes`, all of one wire, of `x` and of what earlier sums have dropped.

        Args:
          dropped: float32, of the shape of `x`: what this device has of that.

        Returns:
          The sum, and what this one has dropped: of what this device has sent first, and of the
          chunk that it has summed.
        """
        total, dropped = self._psum(x.astype(jnp.float32) + dropped, axes, last, keeps=True)
        return total.astype(x.dtype), dropped

    def psum_scatter(self, x, axes: Axes, dim: int, last: Axes) -> jax.Array:
        """As `psum`, of which each device keeps its part along `dim`.

        Args:
          axes: major first, as they are to split `dim`.
        """
        if not self._is_lossy(x, axes):
            return self._ran("psum_scatter", collectives.psum_scatter, x, axes, dim)
        value = self._psum_scatter(lax.stop_gradient(x), axes, dim, last).astype(x.dtype)
        return with_derivative_of(value, lambda x: collectives.psum_scatter(x, axes, dim), x)

    def _is_lossy(self, x, axes: Axes) -> bool:
        is_float = x.ndim > 0 and jnp.issubdtype(x.dtype, jnp.floating)
        return bool(x.size) and is_float and any(a in self._wires for a in axes)

    def _parts(self, axes: Axes) -> int:
        return math.prod(self._sizes[a] for a in axes)

    def _ran(self, operation: str, collective: Callable, x, axes: Axes, *args, **how) -> jax.Array:
        """The result of a collective that is written down."""
        result = collective(x, axes, *args, **how)
        self._note(operation, axes, max(a.size * a.dtype.itemsize for a in (x, result)))
        return result

    # -- the sum of all ----------------------------------------------------------------------------

    def _psum(self, x, axes: Axes, last: Axes, keeps: bool = False) -> tuple[jax.Array, Any]:
        """The sum; and with `keeps`, what it has dropped, of one wire and no exact axes."""
        exact = tuple(a for a in axes if a not in self._wires)
        lossy = [a for a in axes if a in self._wires]
        runs = self._runs(sorted(lossy, key=lambda a: self._wires[a].name))
        whole = self._parts(last) == 1
        pieces = _pieces(x, whole)
        *_, count, width = pieces.shape
        blocks = self._blocks(count, width, whole, last)
        # Chunks are runs of rows. What may be pieces of one block stays in one row.
        rows = pieces.reshape(-1, 1 if blocks.indices is None else count, width)
        found = self._rows_summed(rows, exact, runs, blocks, keeps)
        as_before = lambda x_: x_.reshape(*x.shape[:-1], count * width)[..., : x.shape[-1]]
        total, dropped = jax.tree.map(as_before, found)
        return total, dropped

    def _rows_summed(
        self, rows, exact: Axes, runs: Sequence[_Run], blocks: Blocks, keeps: bool = False
    ) -> tuple[jax.Array, Any]:
        """The sum of rows of pieces over `exact`, and then over each run of wired axes.

        With `keeps`, also what it has dropped, of one run and no exact axes.
        """
        (run, *rest), count = runs, len(rows)
        assert run.wire is not None
        if exact and count < self._parts(exact) * run.size:  # there is not a row for each device
            rows, exact = self._ran("psum", collectives.psum, rows, exact), ()
        rows = jnp.pad(rows, ((0, -count % (self._parts(exact) * run.size)), (0, 0), (0, 0)))
        if exact:
            rows = self._ran("psum_scatter", collectives.psum_scatter, rows, exact, 0)
        rows = rows.astype(jnp.float32)
        sent = _encoded(rows, self._largest(rows, blocks), run.wire)
        total = self._exchanged(sent, (run.size, -1, *rows.shape[1:]), run)
        dropped = rows - _decoded(sent, rows.shape, run.wire) if keeps else None
        if rest:
            total, _ = self._rows_summed(total, (), rest, blocks)
        sent = _encoded(total, self._largest(total, blocks), run.wire)
        if dropped is not None:
            chunk = total - _decoded(sent, total.shape, run.wire)
            start = collectives.position(run.axes) * len(total)
            chunk += lax.dynamic_slice_in_dim(dropped, start, len(total))
            dropped = lax.dynamic_update_slice_in_dim(dropped, chunk, start, 0)[:count]
        gather = partial(self._ran, "all_gather", collectives.all_gather)
        for axes in filter(None, (run.axes, exact)):  # first over the slow network
            sent = _moved(lambda x, axes=axes: gather(x, axes, 0, varies=False), sent)
        everywhere = _decoded(sent, (-1, *rows.shape[1:]), run.wire)
        return everywhere[:count], dropped

    # -- the sum of which each device keeps a part -------------------------------------------------

    def _psum_scatter(self, x, axes: Axes, dim: int, last: Axes) -> jax.Array:
        runs, part = self._runs(axes), x.shape[dim] // self._parts(axes)
        before, after = x.shape[:dim], x.shape[dim + 1 :]
        # A position for each run, in front of the dim. Exact sums are scattered along theirs.
        x = x.reshape(*before, *(run.size for run in runs), part, *after)
        for i, run in reversed(list(enumerate(runs))):
            if run.wire is None:
                x = self._ran("psum_scatter", collectives.psum_scatter, x, run.axes, dim + i)
                x = jnp.squeeze(x, dim + i)
        whole = bool(after) and self._parts(last) == 1
        pieces = _pieces(x.astype(jnp.float32), whole)
        for i, run in enumerate(runs):
            if run.wire is None:
                continue
            *_, count, width = pieces.shape
            blocks = self._blocks(count, width, whole, last, () if after else runs)
            top = self._largest(pieces, blocks)
            # The first run whose sum has not been taken has the position `dim`.
            chunks, top = jnp.moveaxis(pieces, dim, 0), jnp.moveaxis(top, dim, 0)
            pieces = self._exchanged(_encoded(chunks, top, run.wire), chunks.shape, run)
            runs[i] = run._replace(wire=None)
        found = pieces.reshape(*pieces.shape[:-2], -1)
        return found[..., : x.shape[-1]].reshape(*before, part, *after)

    # -- what both have ----------------------------------------------------------------------------

    def _runs(self, axes: Sequence[str]) -> list[_Run]:
        """`axes` in runs of neighbours to which the same wire applies, or none."""
        runs = [(wire, tuple(run)) for wire, run in groupby(axes, self._wires.get)]
        return [_Run(wire, run, self._parts(run)) for wire, run in runs]

    def _blocks(
        self, count: int, width: int, whole: bool, last: Axes, runs: Sequence[_Run] = ()
    ) -> Blocks:
        """How pieces lie in blocks.

        Args:
          count, width: how many pieces lie along the last position but one, and of what size.
          whole: whether each row has all elements of the last dim.
          last: the axes that split the last dim.
          runs: those that are to split it within the axes of `last`. A run whose sum has not been
            taken has a position of its own in front of the pieces.
        """
        if whole or width == BLOCK:
            return Blocks()
        position = lambda axes: collectives.position(axes) if axes else 0
        number = jnp.asarray(position(last), jnp.int32)
        size = count * width * math.prod(run.size for run in runs)
        axes = last if size % BLOCK else ()
        for run in runs:
            if run.wire is None:
                number, axes = number * run.size + position(run.axes), (*axes, *run.axes)
            else:
                number = number[..., None] * run.size + jnp.arange(run.size)
        indices = (number[..., None] * count + jnp.arange(count)) * width // BLOCK
        axes = tuple(a for a in axes if self._sizes[a] > 1)
        return Blocks(indices, -(-size * self._parts(last) // BLOCK), axes)

    def _largest(self, pieces, blocks: Blocks) -> jax.Array:
        """For each piece the largest magnitude in its block; infinite if the block has a NaN."""
        top = largest(pieces, -1)
        if blocks.indices is None:
            return top[..., None]
        axes = collectives.varying(top) | collectives.varying(blocks.indices)
        shape = (*top.shape[: top.ndim - blocks.indices.ndim], blocks.count)
        of_blocks = collectives.vary(jnp.zeros(shape, top.dtype), axes)
        of_blocks = of_blocks.at[..., blocks.indices].max(top)
        if blocks.axes:
            of_blocks = self._ran("pmax", collectives.pmax, of_blocks, blocks.axes)
        return of_blocks[..., blocks.indices][..., None]

    def _exchanged(self, sent, shape: tuple[int, ...], run: _Run) -> jax.Array:
        """The sum over a run of this device's chunk of what all devices have.

        Args:
          sent: pieces, encoded.
          shape: theirs, with a position in front for the device that each chunk is for.
        """
        assert run.wire is not None
        exchange = lambda x: self._ran("all_to_all", collectives.all_to_all, x, run.axes, 0, 0)
        terms = _decoded(_moved(exchange, sent), shape, run.wire)
        total = terms[0]
        for i in range(1, run.size):
            total += terms[i]
        return total


def _pieces(x, whole: bool) -> jax.Array:
    """`x` with its last position cut in two: the number of a piece, and the place in it.

    Args:
      whole: whether there are all elements of the last dim. Then the last piece may be padded.
    """
    size = x.shape[-1]
    width = min(size, BLOCK) if whole else math.gcd(size, BLOCK)
    x = jnp.pad(x, [*[(0, 0)] * (x.ndim - 1), (0, -size % width)])
    return x.reshape(*x.shape[:-1], -1, width)


def _moved(move: Callable, sent) -> Any:
    """What is sent after a collective, to which a number of 8 or 16 bits is a whole number.

    The compiler for CPUs would send a bfloat16 as a float32, and fp8 as float16.
    """

    def moved(x):
        if x.dtype.itemsize > 2 or not jnp.issubdtype(x.dtype, jnp.floating):
            return move(x)
        bits = jnp.dtype(f"uint{8 * x.dtype.itemsize}")
        return lax.bitcast_convert_type(move(lax.bitcast_convert_type(x, bits)), x.dtype)

    return jax.tree.map(moved, sent)


def _encoded(pieces, top, wire: Wire) -> Any:
    return wire.encode(pieces.reshape(-1, pieces.shape[-1]), top.reshape(-1, 1))


def _decoded(sent, shape: tuple[int, ...], wire: Wire) -> jax.Array:
    """Pieces from what was encoded, in an array of this shape."""
    return wire.decode(sent, shape[-1]).reshape(shape)
