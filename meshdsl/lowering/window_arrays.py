"""Windows of a split dim, put together from the pieces that devices send each other.

The elements that a device lacks of its window travel by `ppermute`, piece by piece. Nothing else
travels, so fewer bytes are not possible.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from meshdsl.lowering import collectives
from meshdsl.splits.exchanges import at_home, exchanges
from meshdsl.splits.windows import Piece


def exchanged(
    x,
    at: int,
    axes: collectives.Axes,
    parts: int,
    pieces: Sequence[Piece],
    length: int,
    send: Callable,
    *,
    fill=0,
) -> jax.Array:
    """`length` elements at position `at`, put together from `pieces` of the parts over `axes`.

    Elements that no piece covers are `fill`.

    Args:
      x: this device's part.
      send: called with an array and pairs (source, target) of parts; returns the array that this
        device receives.
    """
    part = collectives.position(axes) if axes else 0
    own = [p for p in pieces if p.source == p.target]
    arrived = [(group, read(x, at, group, part, parts)) for group in at_home(own)]
    for group in exchanges([p for p in pieces if p.source != p.target]):
        piece = read(x, at, group, part, parts)
        arrived.append((group, send(piece, [(p.source, p.target) for p in group])))
    shape = tuple(length if i == at else n for i, n in enumerate(x.shape))
    empty = collectives.vary(jnp.full(shape, fill, x.dtype), collectives.varying(x))
    return assemble(empty, arrived, at, part, parts)


def read(block, at: int, group: list[Piece], part, parts: int):
    """The elements that this device sends: as many as the longest piece of the group has.

    The elements after a shorter piece are ignored by the device that receives it.
    """
    length = max(p.length for p in group)
    begin = {p.source: p.read for p in group}
    if len(set(begin.values())) == 1 and (first := group[0].read) + length <= block.shape[at]:
        return lax.slice_in_dim(block, first, first + length, axis=at)
    missing = max(p.read for p in group) + length - block.shape[at]
    if missing > 0:
        block = jnp.pad(block, [(0, missing if i == at else 0) for i in range(block.ndim)])
    table = jnp.asarray([begin.get(j, 0) for j in range(parts)], jnp.int32)
    return lax.dynamic_slice_in_dim(block, table[part], length, at)


def assemble(empty, arrived: list[tuple[list[Piece], jax.Array]], at: int, part, parts: int):
    """`empty`, which holds the fill, with each piece that `arrived` in its place.

    If the places of pieces do not overlap from part to part, the pieces are concatenated; otherwise
    they are written one by one.
    """
    places = sorted({(p.write, p.write + p.length) for group, _ in arrived for p in group})
    if any(end > begin for (_, end), (begin, _) in pairwise(places)):
        for group, piece in arrived:
            empty = write(empty, piece, at, group, part, parts)
        return empty
    if not places:
        return empty
    joined, reached = [], 0
    for begin, end in places:
        run = lax.slice_in_dim(empty, begin, end, axis=at)
        for group, piece in arrived:
            targets = {p.target for p in group if p.write == begin}
            if targets:
                piece = lax.slice_in_dim(piece, 0, end - begin, axis=at)
                run = (
                    piece
                    if len(targets) == parts
                    else jnp.where(_among(targets, part, parts), piece, run)
                )
        joined += [lax.slice_in_dim(empty, reached, begin, axis=at), run]
        reached = end
    joined = [
        a
        for a in (*joined, lax.slice_in_dim(empty, reached, empty.shape[at], axis=at))
        if a.shape[at]
    ]
    return jnp.concatenate(joined, at) if len(joined) > 1 else joined[0]


def _among(chosen, part, parts: int):
    return jnp.asarray([j in chosen for j in range(parts)])[part]


def write(window, piece, at: int, group: list[Piece], part, parts: int):
    """`window`, with the elements that this device has received, if any, in their place."""
    by_target = {p.target: p for p in group}
    length, begin = piece.shape[at], {p.write for p in group}
    shape = [1] * window.ndim
    if len(begin) == 1 and {p.length for p in group} == {length}:
        (first,) = begin
        written = lax.dynamic_update_slice_in_dim(window, piece, first, at)
        if len(group) == parts:
            return written
        return jnp.where(_among(by_target, part, parts), written, window)
    lengths = jnp.asarray(
        [by_target[j].length if j in by_target else 0 for j in range(parts)], jnp.int32
    )
    starts = jnp.asarray(
        [by_target[j].write if j in by_target else 0 for j in range(parts)], jnp.int32
    )
    size = window.shape[at]
    roomy = jnp.pad(window, [(0, length if i == at else 0) for i in range(window.ndim)])
    shape[at] = length
    inside = (jnp.arange(length) < lengths[part]).reshape(shape)
    there = lax.dynamic_slice_in_dim(roomy, starts[part], length, at)
    roomy = lax.dynamic_update_slice_in_dim(
        roomy, jnp.where(inside, piece, there), starts[part], at
    )
    return lax.slice_in_dim(roomy, 0, size, axis=at)


def whole(array, at: int, start: int, length: int, stop: int, fill):
    """The window of an array that is whole: elements `start` to `start + length`.

    Elements before 0 and from `stop` on are `fill`.
    """
    stop = max(stop, 0)
    low, high = min(max(start, 0), stop), max(min(start + length, stop), 0)
    found = lax.slice_in_dim(array, low, max(low, high), axis=at)
    before = min(max(-start, 0), length)
    after = length - before - found.shape[at]
    widths = [(before, after) if i == at else (0, 0) for i in range(array.ndim)]
    return (
        jnp.pad(found, widths, constant_values=jnp.asarray(fill, array.dtype))
        if before or after
        else found
    )


def resized(array, at: int, size: int) -> Any:
    """The array with `size` elements at position `at`: zeros added at the end, or elements cut."""
    have = array.shape[at]
    if size > have and jnp.issubdtype(array.dtype, jax.dtypes.prng_key):
        words = resized(jax.random.key_data(array), at, size)
        return jax.random.wrap_key_data(words, impl=jax.random.key_impl(array))
    if size > have:
        return jnp.pad(array, [(0, size - have if i == at else 0) for i in range(array.ndim)])
    return lax.slice_in_dim(array, 0, size, axis=at) if size < have else array


def of_words(change: Callable, array) -> jax.Array:
    """`change(array)`; for an array of random keys, `change` gets the words of the keys.

    JAX has fewer functions for random keys than for arrays of numbers.
    """
    if not jnp.issubdtype(array.dtype, jax.dtypes.prng_key):
        return change(array)
    words = change(jax.random.key_data(array))
    return jax.random.wrap_key_data(words, impl=jax.random.key_impl(array))
