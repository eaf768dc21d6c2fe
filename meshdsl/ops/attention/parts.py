"""Attention to keys in parts, with one derivative for all kernels.

For some of the keys, a kernel computes the output and the log-sum-exp of the scores. Two such
results for different keys are merged: each output is scaled by its share of the sum of
exponentials of both. Keys come in parts for two reasons. They may go round a ring, so that a device
sees one part after the other (`moves.ring`; Liu et al., "Ring Attention with Blockwise
Transformers", 2023). Or they may be split, so that each device sees only its own part (Dao et al.,
"Flash-Decoding", 2023).

The backward pass takes the log-sum-exp of all keys, so that the gradients of each part need no
other part. On a ring the keys and values go round once more, together with their gradients.
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
from meshdsl.ops.attention.blocks import if_seen, summed_to
from meshdsl.ops.attention.operands import (
    HIDDEN,
    SAVED,
    Options,
    Sides,
    Slopes,
    may_see,
    span,
)

_SOME = HIDDEN / 2  # a row that sees at least one column has a larger log-sum-exp


class Kernel(NamedTuple):
    """How a device attends to one part of the keys.

    Attributes:
      forward: called with a range of turns, query, key, value and `Sides`; returns the same as
        `blocks.forward`. The range has the turns of the ring on which the call may run.
      backward: called with the range of turns and the arguments of `blocks.backward`.
    """

    forward: Callable
    backward: Callable


def by_blocks(options: Options) -> Kernel:
    """The kernel of plain JAX."""
    return Kernel(
        lambda turns, *arrays: blocks.forward(options, *arrays),
        lambda turns, *arrays: blocks.backward(options, *arrays),
    )


class Static(NamedTuple):
    """What is known of a call while tracing.

    Attributes:
      options: the options of the call.
      kernel: how each part of the keys is attended to.
      at: the loop of the op, as this device sees it.
      memory: the dim of the keys.
      counted: whether the positions of the keys are not given, and so counted here, part by part.
      ring: the ring on which the keys go round; None if all keys of this device are one part.
      travels: the names of those of `Sides` that travel with the keys. The others are whole along
        the ring.
    """

    options: Options
    kernel: Kernel
    at: DeviceLoop
    memory: Dim
    counted: bool
    ring: Ring | None
    travels: tuple[str, ...]


def whole(options: Options) -> Static:
    """The call by blocks, on a device that has all keys."""
    return Static(options, by_blocks(options), DeviceLoop({}), Dim("memory", 0), False, None, ())


class Travelling(NamedTuple):
    """The arrays that go round a ring: a part of the keys and values, and of `Sides`.

    An array of `Sides` is None if the call has none, or if it does not travel.
    """

    key: Any
    value: Any
    columns: Any
    column_segments: Any
    bias: Any


def attend(static: Static, query, key, value, sides: Sides) -> jax.Array:
    """The output, with shared dims, the query's own dims, rows and the features of `value`.

    A row that sees no column gets 0, and gradients of 0. If the keys are split over devices, the
    output of each device is a term of a sum.
    """
    varying = collectives.vary_together((query, key, value, sides))
    _note(static, *varying)
    return _attend(static._replace(at=static.at.aside), *varying)


def attend_whole(options: Options, query, key, value, sides: Sides) -> jax.Array:
    """As `attend`, by blocks, on a device that has all keys."""
    return _attend_whole(options, *collectives.vary_together((query, key, value, sides)))


@partial(jax.jit, static_argnums=0)
def _attend_whole(options: Options, query, key, value, sides: Sides) -> jax.Array:
    """Under `jit`, so that JAX traces and differentiates layers that are alike only once."""
    return _attend(whole(options), query, key, value, sides)


def merged(one, other):
    """The output and log-sum-exp for all columns, from those for some (`one`) and the `other`."""
    top = jnp.maximum(one[1], other[1])
    first, second = (jnp.where(x[1] > _SOME, jnp.exp(x[1] - top), 0) for x in (one, other))
    total = first + second
    divisor = jnp.where(total > 0, total, 1)
    output = one[0] * (first / divisor)[..., None] + other[0] * (second / divisor)[..., None]
    return output, jnp.where(total > 0, top + jnp.log(divisor), HIDDEN)


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _attend(static, query, key, value, sides):
    return _forward(static, query, key, value, sides)[0]


def _attend_forward(static, query, key, value, sides):
    result = _forward(static, query, key, value, sides)
    output, normaliser = (ad_checkpoint.checkpoint_name(x, SAVED) for x in result)
    return output, (query, key, value, sides, output, normaliser)


def _forward(static: Static, query, key, value, sides: Sides):
    """The output, and the log-sum-exp of each row: `HIDDEN` for a row that sees no column."""
    wide, of_rows = jnp.promote_types(query.dtype, jnp.float32), span(sides.rows)

    def attended(turns, turn, here: Travelling, state):
        beside = _beside(static, here, sides, turn)

        def seen(state):
            result = static.kernel.forward(turns, query, here.key, here.value, beside)
            return result if 0 in turns else merged(state, result)

        condition = _may_see(static, turns, of_rows, beside)
        return if_seen(condition, seen, lambda state: state, state)

    rows = query.shape[:-1]
    zeros = jnp.zeros((*rows, value.shape[-1]), wide), jnp.full(rows, HIDDEN, wide)
    parts = _travelling(static, key, value, sides)
    output, normaliser = _around(static, parts, attended, varying_as(query, zeros))
    output, normaliser = _over_devices(static, output, normaliser, sides)
    return output.astype(value.dtype), normaliser


def _attend_backward(static, saved, cotangent):
    query, key, value, sides, output, normaliser = saved
    wide = normaliser.dtype
    own = jnp.sum(cotangent.astype(wide) * output.astype(wide), -1)
    through = collectives.vary(static.at.psum(own, static.memory), collectives.varying(own))
    known = jnp.where(normaliser > _SOME, normaliser, 0), through, cotangent
    parts = _travelling(static, key, value, sides)
    travels, of_rows = "bias" in static.travels, span(sides.rows)

    def attended(turns, turn, here: Travelling, state: Slopes):
        beside = _beside(static, here, sides, turn)

        def seen(stays: Slopes):
            """The gradients after this part of the keys.

            This part's terms are added to the gradients that stay on the device. Its terms of the
            gradients that follow the keys are returned as they are, and added later: while this
            function computes, the sums so far may still travel.
            """
            arrays = query, here.key, here.value, beside
            result = static.kernel.backward(turns, *arrays, *known)
            if 0 not in turns:
                result = result._replace(query=stays.query + result.query)
            if stays.bias is not None and static.ring is not None:
                at = result.bias.ndim - 1
                result = result._replace(bias=static.ring.put(stays.bias, result.bias, at, turn))
            return result

        def unseen(stays: Slopes):
            zeros = {name: zeros_like(x) for name, x in _following(static, state).items()}
            return stays._replace(**zeros)

        follows = _following(static, state)
        stays = state._replace(**dict.fromkeys(follows))
        result = if_seen(_may_see(static, turns, of_rows, beside), seen, unseen, stays)
        if 0 in turns:
            return result
        arrived = static.ring.hop(follows)
        return result._replace(**{name: x + getattr(result, name) for name, x in arrived.items()})

    zeros_like = lambda x: varying_as(query, jnp.zeros(x.shape, wide))
    of_bias = None if sides.bias is None else (parts.bias if travels else sides.bias)
    like = Slopes(query, parts.key, parts.value, of_bias)
    slopes = _around(static, parts, attended, jax.tree.map(zeros_like, like))
    cast = lambda slope, x: None if slope is None else slope.astype(x.dtype)
    slopes = Slopes(*map(cast, slopes, (query, key, value, sides.bias)))
    if static.ring is not None:
        slopes = slopes._replace(**static.ring.hop(_following(static, slopes)))
    sinks_bar = None
    if sides.sinks is not None:
        # This device's term of a sum over devices, because `own` is from its term of the output.
        shares = jnp.exp(sides.sinks.astype(wide) - normaliser[..., None])
        sinks_bar = -summed_to(shares * own[..., None], sides.sinks).astype(sides.sinks.dtype)
    return *slopes[:3], Sides(bias=slopes.bias, sinks=sinks_bar)


_attend.defvjp(_attend_forward, _attend_backward)


# -- parts that come one after the other -----------------------------------------------------------


def _around(static: Static, parts: Travelling, attended: Callable, state):
    """The state after `state = attended(turns, turn, part, state)` for each part in its turn.

    A device first sends a part on, and then computes with it, so that the next part travels
    meanwhile. The first and the last turn are outside of the loop: the first part is on this device
    already, and the last one is not sent on.
    """
    ring = static.ring
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


def _following(static: Static, slopes: Slopes) -> dict[str, Any]:
    """The gradients that travel with the keys. After `count` hops they are home with their part."""
    names = ["key", "value", *(["bias"] if "bias" in static.travels else [])]
    return {name: getattr(slopes, name) for name in names}


def _travelling(static: Static, key, value, sides: Sides) -> Travelling:
    """The arrays that go round, as this device has them on the first turn."""
    named = {name: getattr(sides, name) for name in ("columns", "column_segments", "bias")}
    if static.ring is not None:
        named = {name: x if name in static.travels else None for name, x in named.items()}
    return Travelling(key, value, **named)


def _beside(static: Static, here: Travelling, sides: Sides, turn) -> Sides:
    """`Sides` for the part of the keys that is here on a turn."""
    ring = static.ring
    if ring is None:
        return sides

    def here_of(name: str):
        travelling, whole = getattr(here, name), getattr(sides, name)
        if travelling is not None or whole is None or whole.shape[-1] == 1 < static.memory.size:
            return whole if travelling is None else travelling
        return ring.part_of(whole, whole.ndim - 1, turn)

    result = {name: here_of(name) for name in ("columns", "column_segments", "bias")}
    indices = ring.indices(turn)
    if static.counted:
        result["columns"] = indices.reshape((1,) * (sides.rows.ndim - 1) + (-1,))
    inside = indices < static.memory.size if ring.padded else None
    return sides._replace(**result, inside=inside)


def _may_see(static: Static, turns, of_rows, beside: Sides):
    """Whether a row of the span may see one of the columns, see `may_see`.

    On the first turn nothing is checked (None): most often, each row sees itself.
    """
    return None if 0 in turns else may_see(static.options, of_rows, span(beside.columns))


# -- parts that lie on several devices -------------------------------------------------------------


def _over_devices(static: Static, output, normaliser, sides: Sides):
    """The output as a term of a sum, and the log-sum-exp of the columns of all devices.

    Sinks, which are the same for all of them, count once.
    """
    at, memory, axes = static.at, static.memory, collectives.varying(normaliser)
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


def _note(static: Static, query, key, value, sides: Sides) -> None:
    """Write down the moves. Here and not where they are made, because JAX may trace those twice."""
    wide = jnp.promote_types(query.dtype, jnp.float32)
    rows = query.size // max(query.shape[-1], 1) * wide.itemsize
    static.at.note_move("pmax", static.memory, rows)
    static.at.note_move("psum", static.memory, rows, backward="psum")
    if static.ring is None:
        return
    for x in jax.tree.leaves(_travelling(static, key, value, sides)):
        static.ring.note(x, static.ring.count - 1, in_backward=True)
        if jnp.issubdtype(x.dtype, jnp.floating):
            # Gradients go round in float32. The last hop, home, is in the dtype of the part.
            static.ring.note(x, static.ring.count - 1, in_backward=True, alone=True, dtype=wide)
            static.ring.note(x, 1, in_backward=True, alone=True)
