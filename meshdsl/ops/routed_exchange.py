"""Rows that travel to the devices that have their experts, and back; see `md.routed`.

Where a rule with `move = "exchange"` splits the experts, a device keeps the elements that it has.
It sends each of its rows to the device with the row's expert, which sends back what the expert
makes of it. A device has room for somewhat more rows to each other device than there would be if
all experts had the same load. What finds no room goes in a second round, and so on: nothing is
dropped, and a load that is unequal costs time and no memory.

The backward pass makes the same rounds, and computes again what the experts have made. So all that
is kept for it is what went in.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.core import Tracer

from meshdsl.errors import MeshDSLError
from meshdsl.lowering import collectives
from meshdsl.lowering.moves.exchange import Visited

ROOM = 1.25  # times the rows to a device that there would be if all experts had the same load
_ROWS = 8  # the room is a multiple of it, as a TPU has arrays in tiles of so many rows


def room_of(choices: int, parts: int) -> int:
    """How many of a device's `choices` have room in one round, to each of the devices."""
    fair = math.ceil(ROOM * choices / parts)
    return max(1, min(-(-fair // _ROWS) * _ROWS, choices))


class Places(NamedTuple):
    """Where each choice goes, and in which round.

    Attributes:
      to: the number of the device that has its expert; one beyond the last for none.
      rank: its number among those that go to the same device.
      order: the numbers of the choices, those to the first device first.
      starts: where those to each device begin in `order`, and where the last ones end.
      local: the number of its expert among those of the device.
      rounds: how many rounds it takes until all devices have sent all; the same everywhere.
    """

    to: jax.Array
    rank: jax.Array
    order: jax.Array
    starts: jax.Array
    local: jax.Array
    rounds: jax.Array


def by_exchange(
    name: str,
    parts: Visited,
    run: Callable,
    rows,
    chosen,
    share,
    arrays,
    experts: int,
    axes: frozenset[str],
):
    """The weighted sum, for each of `rows`, of what its experts give, wherever these are.

    Args:
      name: what errors call the op.
      parts: those of the experts.
      run: called with rows, for each the number of its expert among those here, [rows, 1], and its
        weight, [rows, 1], and the arrays of the experts here.
      chosen: the numbers of the experts of each row; [rows, choices].
      share: their weights; [rows, choices].
      arrays: those of the experts here.
      experts: how many there are on all devices.
      axes: over which the operands vary.

    Raises:
      MeshDSLError: `run` closes over arrays that are traced.
    """
    if not chosen.size or not rows.size:
        return rows * 0
    axes = axes | {*parts.axes}
    room = room_of(chosen.size, parts.count)
    places = _places(parts, chosen.reshape(-1), experts, room, axes)
    rows, share = (collectives.vary(a, axes) for a in (rows, share))
    pieces = jax.ShapeDtypeStruct((parts.count * room, rows.shape[1]), rows.dtype)
    parts.note_swap(pieces, 2)
    parts.note_swap(pieces, 1)
    parts.note_swap(jax.ShapeDtypeStruct(pieces.shape[:1], share.dtype), 2)
    parts.note_swap(jax.ShapeDtypeStruct(pieces.shape[:1], jnp.int32), 1)
    _refuse_closures(name, run, pieces, share.dtype, tuple(arrays), axes)
    result: jax.Array = _all_rounds(parts, run, room, rows, share, tuple(arrays), places)
    return result.astype(rows.dtype)


def _refuse_closures(name: str, run: Callable, pieces, share, arrays: tuple, axes) -> None:
    """A function with derivatives of its own, as `_all_rounds`, may not close over what has some.

    Args:
      pieces: the shape and dtype of the rows that `run` is called with.
      share: the dtype of their weights.
    """
    example = lambda shape, dtype: collectives.vary(jnp.zeros(shape, dtype), axes)
    alone = (pieces.shape[0], 1)
    rows = example(pieces.shape, pieces.dtype)
    given = rows, example(alone, jnp.int32), example(alone, share), arrays
    consts = jax.make_jaxpr(run)(*given).consts
    if closed := [x for x in consts if isinstance(x, Tracer)]:
        shapes = " and ".join(f"{x.dtype} {x.shape}" for x in closed)
        raise MeshDSLError(
            f"{name}: the function closes over {shapes}, which it may not where rows are exchanged "
            '(move = "exchange"); make it inside of the function, or give it as one of the '
            "parameters"
        )


def _places(parts: Visited, chosen, experts: int, room: int, axes) -> Places:
    count = parts.count
    chosen = collectives.vary(chosen, axes)
    to = jnp.where((chosen >= 0) & (chosen < experts), chosen // parts.size, count)
    numbers = lax.iota(jnp.int32, len(to)) + to * 0
    in_order, order = lax.sort((to, numbers), num_keys=1, is_stable=True)
    edges = jnp.arange(count + 1, dtype=jnp.int32)
    starts = jnp.searchsorted(in_order, edges, method="sort").astype(jnp.int32)
    starts = collectives.vary(starts, axes)  # whose type a search loses
    _, place = lax.sort((order, numbers), num_keys=1)
    rank = place - jnp.take(starts, to)
    most = jnp.max(starts[1:] - starts[:-1])
    rounds = -(-parts.most(most, axes) // room)
    return Places(to, rank, order, starts, chosen - to * parts.size, rounds)


class _Turn(NamedTuple):
    """Which rows travel in a round: those of a piece for each device, one after the other.

    Attributes:
      choice: for each row of the pieces the number of its choice, beyond the last for none.
      row: the same of the row that it is of.
      piece: for each choice the number of its row in the pieces, beyond the last for none.
    """

    choice: jax.Array
    row: jax.Array
    piece: jax.Array


def _of_turn(parts: Visited, room: int, turn, choices: int, places: Places) -> _Turn:
    count = len(places.to)
    rank = places.rank - turn * room
    goes = (rank >= 0) & (rank < room) & (places.to < parts.count)
    piece = jnp.where(goes, places.to * room + rank, parts.count * room)
    first = places.starts[:-1, None] + turn * room + jnp.arange(room, dtype=jnp.int32)
    there = first < places.starts[1:, None]
    choice = jnp.where(there, jnp.take(places.order, first, mode="clip"), count).reshape(-1)
    return _Turn(choice, choice // choices, piece)


def _by_experts(parts: Visited, run: Callable, of: _Turn, places: Places, rows, share, arrays):
    """What the experts here make of the rows that come in a round."""
    sent = looked_up(rows, of.row, of.piece.reshape(share.shape))
    weights = looked_up(share.reshape(-1, 1), of.choice, of.piece[:, None])
    local = jnp.take(places.local, of.choice, mode="clip")
    local = jnp.where(of.choice < len(of.piece), local, parts.size)
    sent, weights, local = parts.swap((sent, weights[:, 0], local))
    return run(sent, local[:, None], weights[:, None], arrays)


@partial(jax.custom_vjp, nondiff_argnums=(0, 1, 2))
def _all_rounds(parts: Visited, run: Callable, room: int, rows, share, arrays, places: Places):
    wide = jnp.promote_types(rows.dtype, jnp.float32)

    def add(turn, total):
        of = _of_turn(parts, room, turn, share.shape[1], places)
        back = parts.swap(_by_experts(parts, run, of, places, rows, share, arrays))
        found = looked_up(back, of.piece, of.choice[:, None])
        return total + jnp.sum(found.reshape(*share.shape, -1), axis=1, dtype=wide)

    return _while(places.rounds, add, _zeros(rows, wide))


def _backward(parts: Visited, run: Callable, room: int, saved, cotangent):
    rows, share, arrays, places = saved
    cotangent = cotangent.astype(rows.dtype)

    def add(turn, total):
        of = _of_turn(parts, room, turn, share.shape[1], places)
        forward = lambda *given: _by_experts(parts, run, of, places, *given)
        backward = jax.vjp(forward, rows, share, arrays)[1]
        slopes = backward(parts.swap(looked_up(cotangent, of.row, of.piece.reshape(share.shape))))
        return jax.tree.map(jnp.add, total, slopes)

    total = _while(places.rounds, add, jax.tree.map(_zeros, (rows, share, arrays)))
    return *total, None


_all_rounds.defvjp(
    lambda parts, run, room, *given: (_all_rounds(parts, run, room, *given), given), _backward
)


def _while(rounds, add: Callable, total):
    run = lambda state: (state[0] + 1, add(*state))
    return lax.while_loop(lambda state: state[0] < rounds, run, (jnp.int32(0), total))[1]


def _zeros(like, dtype: Any = None):
    zeros = jnp.zeros(like.shape, dtype or like.dtype)
    return collectives.vary(zeros, collectives.varying(like))


@jax.custom_vjp
def looked_up(x, at, uses):
    """The rows of `x [n, features]` at `at [m]`, and zeros where it is beyond the last.

    Args:
      uses: for each row of `x` where in `at` it is, beyond the last where nowhere: [n, times]. So
        the derivative is a lookup too.
    """
    found = jnp.take(x, at, axis=0, mode="clip")
    return jnp.where((at < len(x))[:, None], found, 0)


def _added_up(uses, cotangent):
    wide = jnp.promote_types(cotangent.dtype, jnp.float32)
    found = jnp.take(cotangent, uses, axis=0, mode="clip")
    found = jnp.where((uses < len(cotangent))[..., None], found, 0)
    return jnp.sum(found, axis=1, dtype=wide).astype(cotangent.dtype), None, None


looked_up.defvjp(lambda x, at, uses: (looked_up(x, at, uses), uses), _added_up)
