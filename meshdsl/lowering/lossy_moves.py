"""Changes of split whose sums are taken in few bits: those of a gradient, and those of a backward
pass in which the gradient of a parameter is summed.

What runs is in `lossy_sums`. Here each of its collectives is written in the record of an op.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import jax

from meshdsl.lowering import collectives
from meshdsl.lowering.collectives import Axes
from meshdsl.lowering.derivatives import linear
from meshdsl.lowering.lossy_sums import LossySums
from meshdsl.lowering.moves.move import record
from meshdsl.lowering.scope import Scope
from meshdsl.lowering.wires import Wired
from meshdsl.program.recorder import Move, Op
from meshdsl.splits.changes import SUMS, Change
from meshdsl.tensor import Tensor


def is_lossy(wired: Wired, axes: Axes) -> bool:
    """Whether a sum over `axes` is taken in few bits."""
    return any(axis in axes for axis, _ in wired)


def exact_first(changes: Sequence[Change], of_sums: Wired, of_gathers: Wired) -> list[Change]:
    """`changes`, in an order in which exact sums are taken before those in few bits.

    So what is rounded is a sum over all other axes, however these are split. Neighbours that change
    places are sums, or gathers, of different dims. A gather is a sum in the backward pass, which
    runs the other way.

    Args:
      of_sums: the axes over which sums on the way are in few bits.
      of_gathers: those over which the sums are that gathers are in the backward pass.
    """

    def wrong(this: Change, that: Change) -> bool:
        if this.dim == that.dim:
            return False
        if this.operation in SUMS and that.operation in SUMS:
            return is_lossy(of_sums, this.axes) and not is_lossy(of_sums, that.axes)
        if this.operation == that.operation == "all_gather":
            return is_lossy(of_gathers, that.axes) and not is_lossy(of_gathers, this.axes)
        return False

    found = list(changes)
    for end in range(len(found) - 1, 0, -1):
        for at in range(end):
            if wrong(found[at], found[at + 1]):
                found[at : at + 2] = found[at + 1], found[at]
    return found


def summed(x, change: Change, last: Axes, wired: Wired, scope: Scope, op: Op, why: str):
    """`x` after a sum in few bits.

    Args:
      last: the axes of the mesh that split the last dim of `x`.
    """
    note = lambda operation, axes, size: record(op, scope, operation, axes, size, why, "")
    return _sum(x, change, last, wired, scope, note)


def summed_of_rest(
    x: Tensor, axes: Axes, dropped, wired: Wired, why: str
) -> tuple[jax.Array, jax.Array]:
    """The array of `x` summed over `axes`, see `LossySums.psum_of_rest`; recorded as an op."""
    placement = x.placement
    assert placement is not None
    scope = placement.scope
    op = scope.recorder.begin("gradient", x.dims, placement.axes)
    note = lambda operation, axes, size: record(op, scope, operation, axes, size, why, "")
    scope.lossy.update(axes)
    with jax.named_scope(op.tag):
        sums = LossySums(wired, scope.sizes, note)
        return sums.psum_of_rest(x.stored, axes, placement.axes[-1], dropped)


def gathered(x, change: Change, last: Axes, wired: Wired, scope: Scope, op: Op, why: str):
    """The parts of `x` joined over axes; in the backward pass a psum_scatter in few bits.

    Args:
      last: as in `summed`, of the result.
    """
    gather = lambda x: collectives.all_gather(x, change.axes, change.dim, varies=True)
    backward = change._replace(operation="psum_scatter")
    return _with_sum_behind(gather, x, backward, last, wired, scope, op, why)


def varied(x, axes: Axes, last: Axes, wired: Wired, scope: Scope, op: Op, why: str):
    """`x` with a type that varies over `axes`; in the backward pass a psum in few bits."""
    backward = Change("psum", axes)
    vary = lambda x: collectives.vary(x, axes)
    return _with_sum_behind(vary, x, backward, last, wired, scope, op, why)


def _with_sum_behind(
    fn: Callable, x, change: Change, last: Axes, wired: Wired, scope: Scope, op: Op, why: str
) -> jax.Array:
    """`fn(x)`, a linear function, whose transpose is a sum in few bits."""
    silent = lambda operation, axes, size: None
    transpose = lambda ct: _sum(ct, change, last, wired, scope, silent)

    def note(operation: str, axes: Axes, size: int) -> None:
        # Exact parts are in the dtype of sums, which the caller knows better.
        own = 0 if operation in SUMS else size
        if size and scope.parts(axes) > 1:
            op.moves.append(Move("hold", axes, size, why, operation, own))

    result = linear(fn, transpose, x)
    jax.eval_shape(lambda ct: _sum(ct, change, last, wired, scope, note), result)
    return result


def _sum(x, change: Change, last: Axes, wired: Wired, scope: Scope, note: Callable) -> jax.Array:
    scope.lossy.update(axis for axis, _ in wired if axis in change.axes)
    sums = LossySums(wired, scope.sizes, note)
    if change.operation == "psum":
        return sums.psum(x, change.axes, last)
    return sums.psum_scatter(x, change.axes, change.dim, last)
