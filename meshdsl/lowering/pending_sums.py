"""Sums that stay pending through an op: a linear op passes them on, and others need the sum.

`resharding.take_sums` takes a sum. A sum over turns of a loop cannot be taken within the loop.
"""

from __future__ import annotations

from collections.abc import Sequence

import jax.numpy as jnp

from meshdsl.lowering import resharding
from meshdsl.lowering.moves.move import without_axes
from meshdsl.lowering.scope import Scope
from meshdsl.tensor import Tensor


def stays_pending(operands: Sequence[Tensor], linear: bool | tuple[int, ...]) -> tuple[str, ...]:
    """The axes over which all operands are pending sums, if these may stay pending."""
    if linear is not True:
        return ()
    pending = {t.pending for t in operands}
    if len(pending) != 1:
        return ()
    (axes,) = pending
    dtypes = {t.dtype for t in operands} if axes else ()
    alike = len(dtypes) <= 1 or all([jnp.issubdtype(d, jnp.inexact) for d in dtypes])
    return axes if alike else ()


def over_turns(
    operands: Sequence[Tensor], linear: bool | tuple[int, ...], scope: Scope
) -> tuple[Sequence[Tensor], tuple[str, ...]]:
    """The operands, after which only a sum over turns of a loop is pending; and its axis, if any.

    No device has the other turns, so this sum cannot be taken within the loop. It passes through an
    op that is linear in the operands that are such sums. Where the op adds to it what is no such
    sum, the first turn adds that.
    """
    axes = tuple(dict.fromkeys(a for t in operands for a in t.pending if a in scope.turns))
    sums = [i for i, t in enumerate(operands) if axes and axes[0] in t.pending]
    passes = linear is True or (linear and len(sums) == 1 and sums[0] in linear)
    if len(axes) != 1 or not passes:
        return operands, ()
    first = scope.turns[axes[0]].number == 0
    found = []
    for i, t in enumerate(operands):
        if t.placement is not None:
            left = tuple(a for a in t.pending if a not in axes)
            t = t.replace(placement=t.placement._replace(pending=left))
            t = resharding.take_sums(
                t, split=without_axes(scope.split(t.dims, t.placement.level), axes)
            )
        if linear is True and i not in sums:
            t = t.replace(array=jnp.where(first, t.stored, jnp.zeros((), t.stored.dtype)))
        found.append(t)
    return found, axes


def sums_alike(before, after) -> bool:
    """Whether a sum over devices may be taken after a cast from the dtype `before` to `after`.

    Sums of integers wrap around, and those of bools are bools: they are taken before the cast.
    """
    return before == after or all(jnp.issubdtype(d, jnp.inexact) for d in (before, after))
