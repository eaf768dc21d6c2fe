"""Attention to the parts of the keys that a device sees, with one derivative for all kernels.

A kernel gives the output and the log-sum-exp of the scores of some keys. Two such results make one:
each output is scaled by its share of the sum of both. That is how parts of the keys that come one
after the other (`moves.ring`; Liu et al., "Ring Attention with Blockwise Transformers", 2023)
and parts that lie on several devices (Dao et al., "Flash-Decoding", 2023) are put together.

The backward pass takes the log-sum-exp of all keys, so that the gradients of each part need no
other part. On a ring it goes round once more: keys, values and their gradients travel together.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import ad_checkpoint, lax

from meshdsl.dims import Dim
from meshdsl.lowering import collectives
from meshdsl.lowering.device_loop import DeviceLoop
from meshdsl.lowering.moves.ring import Ring
from meshdsl.ops.arrays import varying_as
from meshdsl.ops.attention import blocks
from meshdsl.ops.attention.blocks import (
    HIDDEN,
    SAVED,
    Options,
    Sides,
    Slopes,
    if_seen,
    may_see,
    span,
    summed_to,
)

_SOME = HIDDEN / 2  # above it lies the log-sum-exp of a row that sees a column


class Kernel(NamedTuple):
    """How a device attends to the keys that are here.

    Attributes:
      forward: called with a range of turns, query, key, value and `Sides`; returns what
        `blocks.forward` does. The range has the turns of the ring on which the result may
        be used.
      backward: called with the range and what `blocks.backward` is called with.
    """

    forward: Callable
    backward: Callable


def by_blocks(options: Options) -> Kernel:
    """The kernel of plain JAX."""
    return Kernel(
        lambda turns, *arrays: blocks.forward(options, *arrays),
        lambda turns, *arrays: blocks.backward(options, *arrays),
    )


class Way(NamedTuple):
    """What is known of a call while tracing.

    Attributes:
      options: of the call.
      kernel: how each part is attended to.
      at: the loop.
      memory: the dim of the keys.
      counted: whether positions of the keys are counted here, part by part.
      ring: that of the keys, or None where there is one part only.
      travels: which of `Sides` travel with the keys; the others are whole along the ring.
    """

    options: Options
    kernel: Kernel
    at: DeviceLoop
    memory: Dim
    counted: bool
    ring: Ring | None
    travels: tuple[str, ...]


def whole(options: Options) -> Way:
    """By blocks, with all keys at hand."""
    return Way(options, by_blocks(options), DeviceLoop({}), Dim("memory", 0), False, None, ())


class Parts(NamedTuple):
    """What travels: a part of the keys and values, and of what stands beside them."""

    key: Any
    value: Any
    columns: Any
    column_segments: Any
    bias: Any


def attend(way: Way, query, key, value, sides: Sides) -> jax.Array:
    """The output: shared dims, the query's own dims, rows and the features of `value`.

    A row that sees no column gets 0, and gradients of 0. Where the keys are split over devices,
    what each of them gives is a term of a sum.
    """
    varying = collectives.vary_together((query, key, value, sides))
    _note(way, *varying)
    return _attend(way._replace(at=way.at.aside), *varying)


def attend_whole(options: Options, query, key, value, sides: Sides) -> jax.Array:
    """As `attend`, by blocks, with all keys at hand."""
    return _attend_whole(options, *collectives.vary_together((query, key, value, sides)))


@partial(jax.jit, static_argnums=0)
def _attend_whole(options: Options, query, key, value, sides: Sides) -> jax.Array:
    """Under `jit`, so that JAX traces and differentiates layers that are alike only once."""
    return _attend(whole(options), query, key, value, sides)


def merged(one, other):
    """The output and log-sum-exp of the columns of both."""
    top = jnp.maximum(one[1], other[1])
    first, second = (jnp.where(x[1] > _SOME, jnp.exp(x[1] - top), 0) for x in (one, other))
    total = first + second
    divisor = jnp.where(total > 0, total, 1)
    output = one[0] * (first / divisor)[..., None] + other[0] * (second / divisor)[..., None]
    return output, jnp.where(total > 0, top + jnp.log(divisor), HIDDEN)


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _attend(way, query, key, value, sides):
    return _forward(way, query, key, value, sides)[0]


def _attend_forward(way, query, key, value, sides):
    result = _forward(way, query, key, value, sides)
    output, normaliser = (ad_checkpoint.checkpoint_name(x, SAVED) for x in result)
    return output, (query, key, value, sides, output, normaliser)


def _forward(way: Way, query, key, value, sides: Sides):
    """The output, and of each row the log-sum-exp of its scores: `HIDDEN` where it sees nothing."""
    wide, of_rows = jnp.promote_types(query.dtype, jnp.float32), span(sides.rows)

    def attended(turns, turn, here: Parts, state):
        beside = _beside(way, here, sides, turn)

        def seen(state):
            result = way.kernel.forward(turns, query, here.key, here.value, beside)
            return result if 0 in turns else merged(state, result)

        condition = _may_see(way, turns, of_rows, beside)
        return if_seen(condition, seen, lambda state: state, state)

    rows = query.shape[:-1]
    zeros = jnp.zeros((*rows, value.shape[-1]), wide), jnp.full(rows, HIDDEN, wide)
    parts = _parts(way, key, value, sides)
    output, normaliser = _around(way, parts, attended, varying_as(query, zeros))
    output, normaliser = _over_devices(way, output, normaliser, sides)
    return output.astype(value.dtype), normaliser


def _attend_backward(way, saved, cotangent):
    query, key, value, sides, output, normaliser = saved
    wide = normaliser.dtype
    own = jnp.sum(cotangent.astype(wide) * output.astype(wide), -1)
    through = collectives.vary(way.at.psum(own, way.memory), collectives.varying(own))
    known = jnp.where(normaliser > _SOME, normaliser, 0), through, cotangent
    parts = _parts(way, key, value, sides)
    travels, of_rows = "bias" in way.travels, span(sides.rows)

    def attended(turns, turn, here: Parts, state: Slopes):
        beside = _beside(way, here, sides, turn)

        def seen(stays: Slopes):
            """Adds to what stays here, and gives what follows the part, which is added outside:
            while this computes, the sum so far may still travel.
            """
            arrays = query, here.key, here.value, beside
            result = way.kernel.backward(turns, *arrays, *known)
            if 0 not in turns:
                result = result._replace(query=stays.query + result.query)
            if stays.bias is not None and way.ring is not None:
                at = result.bias.ndim - 1
                result = result._replace(bias=way.ring.put(stays.bias, result.bias, at, turn))
            return result

        def unseen(stays: Slopes):
            zeros = {name: zeros_like(x) for name, x in _following(way, state).items()}
            return stays._replace(**zeros)

        follows = _following(way, state)
        stays = state._replace(**dict.fromkeys(follows))
        result = if_seen(_may_see(way, turns, of_rows, beside), seen, unseen, stays)
        if 0 in turns:
            return result
        arrived = way.ring.hop(follows)
        return result._replace(**{name: x + getattr(result, name) for name, x in arrived.items()})

    zeros_like = lambda x: varying_as(query, jnp.zeros(x.shape, wide))
    of_bias = None if sides.bias is None else (parts.bias if travels else sides.bias)
    like = Slopes(query, parts.key, parts.value, of_bias)
    slopes = _around(way, parts, attended, jax.tree.map(zeros_like, like))
    cast = lambda slope, x: None if slope is None else slope.astype(x.dtype)
    slopes = Slopes(*map(cast, slopes, (query, key, value, sides.bias)))
    if way.ring is not None:
        slopes = slopes._replace(**way.ring.hop(_following(way, slopes)))
    sinks_bar = None
    if sides.sinks is not None:
        # Of this device's term of the output alone: the sum over devices is that of all of it.
        shares = jnp.exp(sides.sinks.astype(wide) - normaliser[..., None])
        sinks_bar = -summed_to(shares * own[..., None], sides.sinks).astype(sides.sinks.dtype)
    return *slopes[:3], Sides(bias=slopes.bias, sinks=sinks_bar)


_attend.defvjp(_attend_forward, _attend_backward)


# -- parts that come one after the other -----------------------------------------------------------


def _around(way: Way, parts: Parts, attended: Callable, state):
    """The state after all parts: `attended(turns, turn, parts, state)` on each turn.

    Before a device computes with a part it sends it on, so that the next one travels meanwhile. The
    first and the last turn stand outside of the loop: the first part needs no hop to get here, and
    the last one none to leave.
    """
    ring = way.ring
    if ring is None:
        return attended(range(1), 0, parts, state)
    last = ring.count - 1
    then = ring.hop(parts)
    state = attended(range(1), 0, parts, state)

    def turn(carry, number):
        here, state = carry
        then = ring.hop(here)
        return (then, attended(range(1, last), number, here, state)), None

    if last > 1:
        (then, state), _ = lax.scan(turn, (then, state), jnp.arange(1, last))
    return attended(range(last, last + 1), last, then, state)


def _following(way: Way, slopes: Slopes) -> dict[str, Any]:
    """The gradients that go round with their parts; back where these are at rest after `count`
    hops.
    """
    names = ["key", "value", *(["bias"] if "bias" in way.travels else [])]
    return {name: getattr(slopes, name) for name in names}


def _parts(way: Way, key, value, sides: Sides) -> Parts:
    """What is here on the first turn, of all that travels."""
    named = {name: getattr(sides, name) for name in ("columns", "column_segments", "bias")}
    if way.ring is not None:
        named = {name: x if name in way.travels else None for name, x in named.items()}
    return Parts(key, value, **named)


def _beside(way: Way, here: Parts, sides: Sides, turn) -> Sides:
    """What stands beside the part that is here."""
    ring = way.ring
    if ring is None:
        return sides

    def here_of(name: str):
        travelling, whole = getattr(here, name), getattr(sides, name)
        if travelling is not None or whole is None or whole.shape[-1] == 1 < way.memory.size:
            return whole if travelling is None else travelling
        return ring.part_of(whole, whole.ndim - 1, turn)

    result = {name: here_of(name) for name in ("columns", "column_segments", "bias")}
    indices = ring.indices(turn)
    if way.counted:
        result["columns"] = indices.reshape((1,) * (sides.rows.ndim - 1) + (-1,))
    inside = indices < way.memory.size if ring.padded else None
    return sides._replace(**result, inside=inside)


def _may_see(way: Way, turns, of_rows, beside: Sides):
    """Whether a row of the span may see one of the columns, see `may_see`.

    The part of the first turn is asked for without a look: mostly, each row sees itself.
    """
    return None if 0 in turns else may_see(way.options, of_rows, span(beside.columns))


# -- parts that lie on several devices -------------------------------------------------------------


def _over_devices(way: Way, output, normaliser, sides: Sides):
    """The output as a term of a sum, and the log-sum-exp of the columns of all devices.

    Sinks, which are the same for all of them, count once.
    """
    at, memory, axes = way.at, way.memory, collectives.varying(normaliser)
    if sides.sinks is None and not at.axes(memory):
        return output, normaliser
    top = collectives.vary(at.pmax(normaliser, memory), axes)
    sinks = None
    if sides.sinks is not None:
        sinks = sides.sinks[..., 0].astype(normaliser.dtype)
        top = jnp.maximum(top, sinks)
    share = jnp.where(normaliser > _SOME, jnp.exp(normaliser - top), 0)
    total = collectives.vary(at.psum(share, memory), axes)
    if sinks is not None:
        total = total + jnp.exp(sinks - top)
    divisor = jnp.where(total > 0, total, 1)
    output = output * (share / divisor)[..., None]
    return output, jnp.where(total > 0, top + jnp.log(divisor), HIDDEN)


# -- the record ------------------------------------------------------------------------------------


def _note(way: Way, query, key, value, sides: Sides) -> None:
    """Write down what moves, here, where JAX comes by once."""
    wide = jnp.promote_types(query.dtype, jnp.float32)
    rows = query.size // max(query.shape[-1], 1) * wide.itemsize
    way.at.note_move("pmax", way.memory, rows)
    way.at.note_move("psum", way.memory, rows, backward="psum")
    if way.ring is None:
        return
    for x in jax.tree.leaves(_parts(way, key, value, sides)):
        way.ring.note(x, way.ring.count - 1, in_backward=True)
        if jnp.issubdtype(x.dtype, jnp.floating):
            # Added up in float32; home goes what it came to, in the dtype of the part.
            way.ring.note(x, way.ring.count - 1, in_backward=True, alone=True, dtype=wide)
            way.ring.note(x, 1, in_backward=True, alone=True)
