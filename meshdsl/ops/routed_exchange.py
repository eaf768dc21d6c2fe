"""Rows that travel to the devices that have their experts, and back; see `md.routed`.

Where a rule with `move = "exchange"` splits the experts, elements stay on their devices. For each
*choice*, a row and one of its experts, a device sends the row to the device that has the expert,
which sends the expert's result back.

This happens in rounds. In each round a device can send to each device somewhat more rows than
there would be if all experts had the same load. Choices beyond this *room* wait for the next round.
So no choice is dropped, and an unequal load costs time but no memory.

The backward pass goes through the same rounds, and computes the results of the experts again. So
only the operands are kept for it.
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

ROOM = 1.25  # the room, as a multiple of the rows to a device if all experts had the same load
_ROWS = 8  # the room is a multiple of 8 rows, because a TPU has arrays in tiles of 8 rows


def room_of(choices: int, parts: int) -> int:
    """How many of a device's `choices` can go to each of the devices in one round."""
    fair = math.ceil(ROOM * choices / parts)
    return max(1, min(-(-fair // _ROWS) * _ROWS, choices))


class Places(NamedTuple):
    """To which device each choice of this device goes, and when.

    Attributes:
      to: for each choice the number of the device that has its expert; how many devices there are,
        if the choice has no expert.
      rank: for each choice its number among the choices that go to the same device.
      order: the numbers of all choices, sorted by the devices to which they go.
      starts: where in `order` the choices to each device begin; and at last, where all end.
      local: for each choice the number of its expert among the experts of that device.
      rounds: how many rounds there are until every device has sent all its choices; equal on all.
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
    """For each of `rows` the weighted sum of its experts' results, on whatever devices these are.

    Args:
      name: what errors call the op.
      parts: the parts of the dim of the experts.
      run: a function that applies the experts of this device. It is called with rows; the number of
        each row's expert on this device, [rows, 1]; each row's weight, [rows, 1]; and `arrays`.
        Where it is traced again, it gets `noted=False`.
      chosen: the numbers of the experts of each row, [rows, choices].
      share: the weights of these experts, [rows, choices].
      arrays: the parameters of the experts of this device.
      experts: how many experts there are on all devices.
      axes: the axes over which the operands vary.

    Raises:
      MeshDSLError: `run` closes over arrays that are traced.
    """
    if not chosen.size or not rows.size:
        return rows * 0
    axes = axes | {*parts.axes}
    room = room_of(chosen.size, parts.count)
    places = _places(parts, chosen.T.reshape(-1), experts, room, axes)
    rows, share = (collectives.vary(a, axes) for a in (rows, share))
    pieces = jax.ShapeDtypeStruct((parts.count * room, rows.shape[1]), rows.dtype)
    parts.note_swap(pieces, 2)
    parts.note_swap(pieces, 1)
    parts.note_swap(jax.ShapeDtypeStruct(pieces.shape[:1], share.dtype), 2)
    parts.note_swap(jax.ShapeDtypeStruct(pieces.shape[:1], jnp.int32), 1)
    _refuse_closures(name, run, pieces, share.dtype, tuple(arrays), axes)
    run = partial(run, noted=False)  # which has been traced once already
    result: jax.Array = _all_rounds(parts, run, room, rows, share, tuple(arrays), places)
    return result.astype(rows.dtype)


def _refuse_closures(name: str, run: Callable, pieces, share, arrays: tuple, axes) -> None:
    """Raise a MeshDSLError if `run` closes over traced arrays, whose gradients would be lost.

    `_all_rounds` states its own derivative, which is one by its arguments alone.

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


class _Round(NamedTuple):
    """Which choices a device sends in one round.

    It sends one piece of `room` slots to each device. The pieces are one array: the slots to the
    first device, then those to the second, and so on.

    Attributes:
      choice: for each slot the number of the choice in it; the number of all choices if empty. The
        first choices of all rows come before all second ones.
      row: for each slot the number of the row in it; the number of all rows if empty.
      slot: for each choice the number of its slot, [choices, rows]; the number of all slots if it
        is not sent.
    """

    choice: jax.Array
    row: jax.Array
    slot: jax.Array


def _round(parts: Visited, room: int, number, rows: int, places: Places) -> _Round:
    """Round `number`, of a device with so many `rows`."""
    count = len(places.to)
    rank = places.rank - number * room
    goes = (rank >= 0) & (rank < room) & (places.to < parts.count)
    slot = jnp.where(goes, places.to * room + rank, parts.count * room)
    place = places.starts[:-1, None] + number * room + jnp.arange(room, dtype=jnp.int32)
    filled = place < places.starts[1:, None]
    choice = jnp.where(filled, jnp.take(places.order, place, mode="clip"), count).reshape(-1)
    row = jnp.where(filled.reshape(-1), choice % rows, rows)
    return _Round(choice, row, slot.reshape(-1, rows))


def _by_experts(parts: Visited, run: Callable, of: _Round, places: Places, rows, share, arrays):
    """The results of this device's experts for the rows that other devices send in a round."""
    sent = looked_up(False, rows, of.row, of.slot)
    weights: Any = looked_up(False, share.T.reshape(-1, 1), of.choice, of.slot.reshape(1, -1))
    local = jnp.take(places.local, of.choice, mode="clip")
    local = jnp.where(of.choice < len(places.to), local, parts.size)
    sent, weights, local = parts.swap((sent, weights[:, 0], local))
    return run(sent, local[:, None], weights[:, None], arrays)


@partial(jax.custom_vjp, nondiff_argnums=(0, 1, 2))
def _all_rounds(parts: Visited, run: Callable, room: int, rows, share, arrays, places: Places):
    wide = jnp.promote_types(rows.dtype, jnp.float32)

    def add(number, total):
        of = _round(parts, room, number, len(rows), places)
        back = parts.swap(_by_experts(parts, run, of, places, rows, share, arrays))
        return total + added_up(False, back, of.slot, of.row)

    return _while(places.rounds, add, _zeros(rows, wide))


def _backward(parts: Visited, run: Callable, room: int, saved, cotangent):
    rows, share, arrays, places = saved
    cotangent = cotangent.astype(rows.dtype)

    def add(number, total):
        of = _round(parts, room, number, len(rows), places)
        forward = lambda *given: _by_experts(parts, run, of, places, *given)
        backward = jax.vjp(forward, rows, share, arrays)[1]
        slopes = backward(parts.swap(looked_up(False, cotangent, of.row, of.slot)))
        return jax.tree.map(jnp.add, total, slopes)

    total = _while(places.rounds, add, jax.tree.map(_zeros, (rows, share, arrays)))
    return *total, None


_all_rounds.defvjp(
    lambda parts, run, room, *given: (_all_rounds(parts, run, room, *given), given), _backward
)


def _while(rounds, add: Callable, total):
    """`total` after `total = add(number, total)` for each number of a round."""
    run = lambda state: (state[0] + 1, add(*state))
    return lax.while_loop(lambda state: state[0] < rounds, run, (jnp.int32(0), total))[1]


def _zeros(like, dtype: Any = None):
    zeros = jnp.zeros(like.shape, dtype or like.dtype)
    return collectives.vary(zeros, collectives.varying(like))


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def looked_up(within: bool, x, at, uses):
    """The rows of `x [n, features]` with the numbers `at [m]`; zeros where such a number is n.

    The derivative is `added_up`, so it is a lookup too, and no scatter.

    Args:
      within: whether no number is n, in `at`, and none is m, in `uses`.
      uses: the inverse of `at`: for each row of `x` the positions in `at` with its number, [times,
        n]; m for no position.
    """
    found = jnp.take(x, at, axis=0, mode="clip")
    return found if within else jnp.where((at < len(x))[:, None], found, 0)


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def added_up(within: bool, x, uses, at):
    """For each column of `uses [times, n]` the sum of the rows of `x [m, features]` at its numbers.

    Nothing is added for a number m. The derivative is `looked_up`, whose arguments these are.
    """
    wide = jnp.promote_types(x.dtype, jnp.float32)
    found = jnp.take(x, uses, axis=0, mode="clip")
    found = found if within else jnp.where((uses < len(x))[..., None], found, 0)
    # One after the other: for a TPU a sum along the first dim takes 17 times as long.
    total: Any = sum(one.astype(wide) for one in found)
    return total.astype(x.dtype)


def _saving(fn: Callable) -> Callable:
    return lambda within, x, to, back: (fn(within, x, to, back), (to, back))


looked_up.defvjp(
    _saving(looked_up), lambda within, saved, ct: (added_up(within, ct, *saved[::-1]), None, None)
)
added_up.defvjp(
    _saving(added_up), lambda within, saved, ct: (looked_up(within, ct, *saved[::-1]), None, None)
)
