"""A tensor brought to any placement that a program names, pending sums included.

An op may leave a sum pending by the law. Here a whole tensor is turned into a pending sum, which
costs nothing. Over an axis along which the devices hold copies, all devices but the first get
zeros. Over an axis that splits a dim, each device puts its part among zeros.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import lax

from meshdsl.dims import Dim, Dims
from meshdsl.lowering import collectives
from meshdsl.lowering.moves.gather import runs_alike
from meshdsl.lowering.moves.move import NATURAL, nbytes, record
from meshdsl.lowering.moves.turns import Leg
from meshdsl.lowering.scope import Scope
from meshdsl.lowering.way import Way
from meshdsl.lowering.window_arrays import resized
from meshdsl.program.recorder import Op
from meshdsl.splits.changes import Split, changes, padded_changes
from meshdsl.tensor import Tensor

_WHY = "placed by hand"


def place(x: Tensor, split: Split, pending: tuple[str, ...]) -> Tensor:
    """`x` in this split and with exactly these sums pending, recorded as an op `reshard`.

    A dim that loses an axis to a pending sum keeps this axis as the innermost until everything else
    has moved. Then each device puts its part among zeros, which stand for the rest of a larger
    part. Where padding keeps the smaller parts from lying within the larger ones, each device's
    part is put among the zeros of the whole dim instead, before anything moves.
    """
    now, scope = x.placement, x.placement.scope
    dims, before = scope.in_turn(x.dims, now.axes)
    if before == split and now.pending == pending:
        return x
    added = [a for a in pending if a not in now.pending]
    op = scope.recorder.begin("reshard", dims, split)
    array, start, placed = _unnested_made_whole(x.array, dims, before, split, added, scope, op)
    own = [tuple(a for a in axes if a in added) for axes in start]
    between = tuple((*then, *inner) for then, inner in zip(split, own, strict=True))
    summed = tuple(a for a in now.pending if a not in pending)
    steps = padded_changes(dims, start, between, scope, summed)
    array = _moved(array, Leg(dims, start, between, steps), scope, op)
    for i, inner in enumerate(own):
        if inner:
            size = scope.part(dims[i], split[i])
            array = _among_zeros(array, dims[i], i, inner, size, scope, op)
            placed += inner
    held = tuple(a for a in added if a not in placed)
    for run in runs_alike(held, collectives.varying(array)):
        array = _first_alone(array, run, scope, op)
    # A dim in turns of a loop stays in turns.
    turns = [tuple(a for a in axes if a in scope.turns) for axes in now.axes]
    axes = tuple((*own, *turn) for own, turn in zip(split, turns, strict=True))
    return Tensor(array, x.dims, x.role, now._replace(axes=axes, pending=pending))


def _unnested_made_whole(
    array, dims: Dims, now: Split, split: Split, added: list[str], scope: Scope, op: Op
) -> tuple[jax.Array, Split, tuple[str, ...]]:
    """The array, after putting parts among the zeros of a whole dim, where dims need that.

    Returns:
      The array, its split, and those of the axes `added` over which it is a sum now.
    """

    def nests(i: int) -> bool:
        own = tuple(a for a in now[i] if a in added)
        splits = [s for s in (now[i], (*split[i], *own), split[i]) if s]
        return not own or len({scope.padded(dims[i], s) for s in splits}) == 1

    unnested = [i for i in range(len(now)) if not nests(i)]
    if not unnested:
        return array, now, ()
    outer = tuple(_leading(axes, added) if i in unnested else axes for i, axes in enumerate(now))
    array = _moved(array, Leg(dims, now, outer, changes(now, outer)), scope, op)
    for i in unnested:
        if outer[i]:
            array = _among_zeros(array, dims[i], i, outer[i], dims[i].size, scope, op)
    start = tuple(() if i in unnested else axes for i, axes in enumerate(outer))
    return array, start, tuple(a for i in unnested for a in outer[i])


def _moved(array, leg: Leg, scope: Scope, op: Op) -> jax.Array:
    return Way([leg], scope, lambda _: _WHY).go(array, op)


def _leading(axes: tuple[str, ...], wanted: list[str]) -> tuple[str, ...]:
    """The axes at the beginning of `axes` that are all `wanted`."""
    length = next((n for n, a in enumerate(axes) if a not in wanted), len(axes))
    return axes[:length]


def _first_alone(array, axes: tuple[str, ...], scope: Scope, op: Op) -> jax.Array:
    """The array on the first device along `axes`, and zeros on the others."""
    backward = "psum" if collectives.varying(array).isdisjoint(axes) else ""
    record(op, scope, "mask", axes, nbytes(array), _WHY, backward)
    with jax.named_scope(op.tag):
        return jnp.where(collectives.position(axes) == 0, array, jnp.zeros((), array.dtype))


def _among_zeros(
    array, dim: Dim, at: int, axes: tuple[str, ...], size: int, scope: Scope, op: Op
) -> jax.Array:
    """`size` elements of `dim`, at position `at`: this device's part over `axes` among zeros."""
    with jax.named_scope(op.tag):
        start = collectives.position(axes) * array.shape[at]
        shape = list(array.shape)
        shape[at] *= scope.parts(axes)
        zeros = collectives.vary(jnp.zeros(shape, array.dtype), collectives.varying(array))
        array = lax.dynamic_update_slice_in_dim(zeros, array, start, at)
        order = scope.orders((dim,), (axes,)).get(dim, NATURAL)
        array = order.joined(array, at, scope.parts(axes))
        array = resized(array, at, size)
    record(op, scope, "place", axes, nbytes(array), _WHY, "")
    return array
