"""Blocks of consecutive elements of a dim that have one scale.

A dim of `size` elements has `size / block` blocks, of which the last may be shorter. Which elements
share a block depends on their indices in the whole dim, never on a layout: so a part of the dim has
to be whole blocks. The scales have a dim of the same name with an element for each block, so that
the rules that split a dim split its scales too.
"""

from __future__ import annotations

from math import gcd

import jax
import jax.numpy as jnp
from jax import lax

from meshdsl.dims import Dim, Dims
from meshdsl.errors import MeshDSLError
from meshdsl.lowering.magnitudes import largest
from meshdsl.lowering.moves.move import NATURAL
from meshdsl.lowering.scope import Scope
from meshdsl.ops.arrays import padded


def blocks_of(dim: Dim, block: int) -> Dim:
    """The dim of the scales of the blocks of `dim`."""
    return Dim(dim.name, -(-dim.size // block))


def check_uncut(
    name: str, scope: Scope, dims: Dims, level: str, blocked: Dims, block: int, *, fixed: bool
) -> None:
    """Raise a MeshDSLError if the parts of a dim cut a block, where the rules split `dims`.

    Args:
      name: of the op.
      level: whose rules.
      blocked: those of `dims` that are in blocks.
      fixed: whether the format has no other block.
    """
    for dim, axes in zip(dims, scope.split(dims, level), strict=True):
        parts = scope.parts(axes)
        if dim not in blocked or parts == 1:
            continue
        order = scope.orders((dim,), (axes,)).get(dim, NATURAL)
        run, turn = scope.part(dim, axes) // order.blocks, scope.turn_of(axes)
        run = gcd(run, turn.block(dim, scope)) if turn else run
        whole = scope.part(blocks_of(dim, block), axes) * block == scope.part(dim, axes)
        if run % block or not whole:
            fits = max(n for n in range(1, min(run, block) + 1) if run % n == 0)
            rest = "the format has no others" if fixed else f"blocks of {fits} are not cut"
            raise MeshDSLError(
                f"{name}: `{dim.name}`={dim.size} is in {parts} parts "
                f"({scope.rule(dims, level, axes[0])}), each with {run} consecutive elements, "
                f"which cut blocks of {block}; {rest}"
            )


def largest_of(x, position: int, block: int) -> jax.Array:
    """The largest magnitude in each block along a position, see `magnitudes.largest`."""
    count = -(-x.shape[position] // block)
    x = padded(x, position, count * block)
    shape = (*x.shape[:position], count, block, *x.shape[position + 1 :])
    return largest(x.reshape(shape), position + 1)


def spread(scale, position: int, block: int, size: int) -> jax.Array:
    """The scale of each of `size` elements along a position."""
    shape = scale.shape[:position], scale.shape[position + 1 :]
    scale = jnp.expand_dims(scale, position + 1)
    scale = jnp.broadcast_to(scale, (*shape[0], scale.shape[position], block, *shape[1]))
    scale = scale.reshape(*shape[0], -1, *shape[1])
    return lax.slice_in_dim(scale, 0, size, axis=position)
