"""Resharding: a Tensor brought from one split to another, by the cheapest collectives.

Every change of split is made by `reshard`, whichever op asks for it. The algebra of splits says
which changes lead there (`splits.changes`); here they run on the array of a device, and each is
written down in the record of the op that asked.

The type of an array says over which axes its value may differ between devices. To let it differ
over one more axis, `vary`, costs nothing, and is a psum in the backward pass: that is why it is
written down too.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax
import numpy as np

from meshdsl.dims import Dims, without
from meshdsl.lowering import collectives
from meshdsl.lowering.copies import copy_of, with_copy
from meshdsl.lowering.derivatives import cast_and_moved, with_derivative_of
from meshdsl.lowering.moves.gather import GATHER
from meshdsl.lowering.moves.move import IN_ORDER, NATURAL, Move, Orders, nbytes, record
from meshdsl.lowering.moves.turns import (
    Leg,
    at_home,
    away_from_home,
    legs_between,
    needs_all,
)
from meshdsl.lowering.window_arrays import resized
from meshdsl.program.collective import crossed
from meshdsl.program.recorder import Op
from meshdsl.splits.changes import Change, Split
from meshdsl.tensor import Placement, Tensor

Why = Callable[[Change], str]  # the reason of a change, for the record: the rule that asked for it


def reshard(
    x: Tensor,
    split: Split,
    scope,
    op: Op | Callable[[], Op],
    why: Why,
    *,
    varies: frozenset[str] = frozenset(),
    pending: tuple[str, ...] = (),
    orders: Orders | None = None,
) -> Tensor:
    """`x` in another split. Whoever asks for the same again gets the same array.

    Args:
      x: a Tensor of this lowering, or one without a placement: a constant, whole on every device.
      split: for each dim of `x` the axes that are to split it.
      op: the op that asks, in whose record the changes are written down; or a function that begins
        an op for them, and is called if there are any to make.
      varies: the axes over which the loop of that op is split, see `reshard_array`.
      pending: the axes over which a sum of `x` is pending that is to be taken on the way.
      orders: of parts, where these are not to be in the orders that the layout gives them. Only who
        asks knows them then: ops take a Tensor to be in the layout's order.
    """
    if scope.turns:
        x = at_home(x, scope)
    placement = x.placement or whole_placement(x, scope)
    wanted: Orders = scope.orders(x.dims, split) if orders is None else orders
    target = placement._replace(
        axes=split, pending=tuple([a for a in placement.pending if a not in pending])
    )
    key = (x.dims, placement, split, varies, pending, frozenset(wanted.items()))
    # A constant may outlive this trace, so nothing is remembered of one.
    array = None if x.placement is None else scope.remembered(x.stored, key)
    if array is None:
        op = op if isinstance(op, Op) else op()
        array = _array(x, placement, split, op, why, varies, pending, wanted)
        if x.placement is not None:
            scope.remember(x.stored, key, array)
    return Tensor(array, x.dims, x.role, target)


def take_sums(
    x: Tensor,
    name: str = "settle",
    *,
    split: Split | None = None,
    level: str | None = None,
    orders: Orders | None = None,
) -> Tensor:
    """`x` with nothing pending, in the split that the law gives its own dims.

    It is recorded as an op `name`.

    Args:
      split: the split to bring it to, where that is not the law's.
      level: whose rules are the reason for that split, where they are not those of `x`.
      orders: as in `reshard`.
    """
    placement = x.placement
    if placement is None:
        return x
    scope = placement.scope
    target = scope.split(x.dims, placement.level) if split is None else split
    stands = orders is None or orders == scope.orders(x.dims, target)
    if not placement.pending and placement.axes == target and stands:
        return x
    why = lambda change: _rules_behind(x, change, level or placement.level)
    begin = lambda: scope.recorder.begin(name, x.dims, target)
    return reshard(x, target, scope, begin, why, pending=placement.pending, orders=orders)


def entered(x: Tensor) -> Tensor:
    """`x`, which comes from outside of the lowering in natural order, in the layout's order."""
    assert x.placement is not None
    scope, axes = x.placement.scope, x.placement.axes
    orders = scope.orders(x.dims, axes)
    if not orders:
        return x
    first = next(iter(orders.values()))
    array = reshard_array(
        x.stored,
        [Leg(x.dims, axes, axes, [])],
        scope,
        scope.recorder.begin(first.name, x.dims, axes),
        varies=frozenset(),
        why=lambda change: _rules_behind(x, change, x.placement.level),
        orders=(IN_ORDER, orders),
    )
    return x.replace(array=array)


def whole_placement(x: Tensor, scope, level: str = "rules") -> Placement:
    """The placement of a constant: whole on every device."""
    return Placement(scope, ((),) * len(x.dims), (), level)


def placed(x: Tensor, scope, level: str = "rules") -> Tensor:
    """`x` in the lowering; a constant is whole on every device."""
    return x if x.placement else Tensor(x.array, x.dims, x.role, whole_placement(x, scope, level))


def plain(x: Tensor) -> Tensor:
    """`x` as one array in the dtype in which it is used, as it crosses the boundary of a body."""
    if copy_of(x) is None and not (x.placement and x.placement.dtypes):
        return x
    level = "parameters" if x.placement.level == "gradients" else x.placement.level
    return Tensor(x.array, x.dims, x.role, x.placement._replace(dtypes=None, level=level))


def in_turn(x: Tensor, dims: Dims, op: Op) -> Tensor:
    """`x` for a loop over `dims`: these whole, and the others split by the law for one element."""
    if x.placement is None:
        return x
    rest = iter(x.placement.scope.split(without(x.dims, dims), x.placement.level))
    split = tuple(() if d in dims else next(rest) for d in x.dims)
    if x.placement.axes != split or x.placement.pending:
        x = take_sums(x)
    if x.placement.axes == split:
        copy = copy_of(x)
        return x if copy is None else with_copy(x, in_turn(copy, dims, op))
    names = ", ".join(f"`{d.name}`" for d in dims)
    return reshard(x, split, x.placement.scope, op, lambda _: f"a loop over {names} needs it whole")


def _array(
    x: Tensor, placement: Placement, split: Split, op: Op, why: Why, varies, pending, orders
) -> jax.Array:
    """The array of `x` in its dtype of use, in another split; see `reshard`.

    A parameter is cast on the way, and its gradient summed in the dtype that it says. Where a copy
    of it is at hand that one is resharded, and the gradient takes the way back that `x` would have
    gone.
    """
    dtypes, constant = placement.dtypes, x.placement is None
    scope, now = placement.scope, placement.axes
    legs = legs_between(x.dims, now, split, scope, pending)
    changes = [change for leg in legs for change in leg.changes]
    before_and_after = scope.orders(x.dims, now), orders

    def move(array, op: Op) -> jax.Array:
        return reshard_array(
            array,
            legs,
            scope,
            op,
            varies=varies,
            why=why,
            constant=constant,
            orders=before_and_after,
        )

    def cast_and_move(array, op: Op) -> jax.Array:
        assert dtypes is not None
        with jax.named_scope(op.tag):
            if not changes and varies <= collectives.varying(array):
                return move(array.astype(dtypes.use), op)
            noted, again = op.aside(), op.aside()
            first, second = (lambda a: move(a, noted)), (lambda a: move(a, again))
            result = cast_and_moved(array, first, second, dtypes)
            narrow, wide = dtypes.use.itemsize, dtypes.sums.itemsize
            op.moves += [replace(m, backward_bytes=m.bytes * wide // narrow) for m in noted.moves]
            return result

    moved = cast_and_move if dtypes else move
    copy = copy_of(x)
    if copy is None:
        if not dtypes and (home := away_from_home(legs, scope)) is not None:
            scope.turn_of(a for axes in split for a in axes).closures.met(x, home)
        return moved(x.stored, op)
    noted = op.aside()
    like = jax.eval_shape(lambda a: moved(a, noted), x.stored)
    op.moves += [replace(m, operation="hold") for m in noted.moves if m.backward]
    value = without_gradient(copy, split, op, why, varies=varies, orders=orders)
    axes = collectives.varying(value) | collectives.varying(like)
    derivative = lambda t: collectives.vary(moved(t, op.aside()), axes)
    return with_derivative_of(collectives.vary(value, axes), derivative, x.stored)


def without_gradient(
    x: Tensor,
    split: Split,
    op: Op,
    why: Why,
    *,
    varies: frozenset[str] = frozenset(),
    orders: Orders | None = None,
) -> jax.Array:
    """The array of `x` in its dtype of use, in another split, for which no gradient is recorded."""
    scope, now = x.placement.scope, x.placement.axes
    then = scope.orders(x.dims, split) if orders is None else orders
    legs = legs_between(x.dims, now, split, scope)
    return reshard_array(
        x.array,
        legs,
        scope,
        op,
        varies=varies,
        why=why,
        constant=True,
        orders=(scope.orders(x.dims, now), then),
    )


def reshard_array(
    array,
    legs: list[Leg],
    scope,
    op: Op,
    *,
    varies: frozenset[str],
    why: Why,
    constant: bool = False,
    orders: tuple[Orders, Orders] | None = None,
) -> jax.Array:
    """Bring the array that a device has all `legs` of its way; the record of `op` has each change.

    Args:
      varies: the axes over which the loop of the consumer is split. The array is made to vary over
        them before anything is gathered: then the gradient of a gathered tensor is reduce-scattered
        first, and summed over the other axes on what is left. A gather over one of these axes has a
        result that varies over it, a gather over any other axis one that does not.
      constant: the array has no gradient, so nothing is recorded of the backward pass.
      orders: of the parts before, and after; by default as the layout says. Where the two differ in
        a dim that is split before and after, its parts exchange their blocks first. The whole of a
        dim is in natural order.
    """
    changes = [change for leg in legs for change in leg.changes]
    sliced = {a for c in changes if c.operation == "slice" for a in c.axes}
    summed = {a for c in changes if c.operation in ("psum", "psum_scatter") for a in c.axes}
    missing = varies - collectives.varying(array) - sliced - summed
    before, after = orders or (
        scope.orders(legs[0].dims, legs[0].now),
        scope.orders(legs[-1].dims, legs[-1].then),
    )
    with jax.named_scope(op.tag):
        if missing:
            missing = scope.in_mesh_order(missing)
            if not constant:
                reason = "the loop is split over it"
                record(op, scope, "vary", missing, nbytes(array), reason, "psum")
            array = collectives.vary(array, missing)
        for leg in legs:
            array = _on_a_leg(array, leg, (before, after), scope, op, varies, why, constant)
            before = after
    return array


def _on_a_leg(
    array, leg: Leg, orders, scope, op: Op, varies: frozenset[str], why: Why, constant: bool
) -> jax.Array:
    """The array at the end of a leg. For `orders` and the other arguments see `reshard_array`."""
    dims, now, then, _ = leg
    before, after = orders
    axes = list(now)
    order_at = []  # for each dim the order of its parts
    for i, d in enumerate(dims):
        old, new = before.get(d, NATURAL), after.get(d, NATURAL)
        stays_split = scope.parts(now[i]) > 1 < scope.parts(then[i])
        order_at.append(new if stays_split or new is not NATURAL else old)
        if stays_split and old is not new:
            array = _reordered(array, i, now[i], old, False, scope, op, why, constant)
            array = _reordered(array, i, now[i], new, True, scope, op, why, constant)
    for change in leg.changes:
        if turn := scope.turn_of(change.axes):
            if change.operation != "slice":
                raise needs_all(op.name, why(change))
            array = turn.part(array, change.dim)
            continue
        splits_dim = change.operation in ("slice", "psum_scatter", "all_to_all")
        if splits_dim and not axes[change.dim]:
            size = scope.padded(dims[change.dim], then[change.dim])
            array = resized(array, change.dim, size)
        for run in GATHER.in_runs(change, array, varies):
            array = _changed(array, run, order_at, scope, op, varies, why, constant)
        joined = _joined(change)
        if joined is not None:
            axes[joined] = axes[joined][: -len(change.axes)]
            if not axes[joined]:
                array = resized(array, joined, dims[joined].size)
        if splits_dim:
            axes[change.dim] = (*axes[change.dim], *change.axes)
    return array


def _joined(change: Change) -> int | None:
    """The position of the dim whose parts a change puts together."""
    return {"all_to_all": change.source, "all_gather": change.dim}.get(change.operation)


def _reordered(
    array, at: int, axes, order: Move, into: bool, scope, op: Op, why: Why, constant: bool
) -> Any:
    """The array after the parts at position `at` have exchanged blocks, into an order or back."""
    if order is NATURAL:
        return array
    reason = why(Change("ppermute", axes, at, order=axes))
    backward = "" if constant else order.backward["ppermute"]

    def send(piece, pairs):
        across = crossed(pairs, axes, scope.sizes)
        record(op, scope, "ppermute", across, nbytes(piece), reason, backward)
        return collectives.ppermute(piece, axes, pairs)

    return order.reordered(array, at, axes, scope.sizes, send, into=into)


def _changed(
    array, change: Change, order_at: list[Move], scope, op: Op, varies, why: Why, constant: bool
) -> jax.Array:
    """The array after one change, which is written down in the record of `op`.

    Args:
      order_at: for each dim the order of its parts.
    """
    before, crosses, axes = nbytes(array), change.axes, change.axes
    parts = scope.parts(axes)
    if change.operation in ("psum_scatter", "all_to_all"):
        array = order_at[change.dim].cut(array, change.dim, parts)
    backward = ""  # the collective that this is in the backward pass, where that is not free
    match change.operation:
        case "psum":
            array = collectives.psum(array, axes)
        case "psum_scatter":
            array, backward = collectives.psum_scatter(array, axes, change.dim), "all_gather"
        case "all_to_all":
            array = collectives.all_to_all(array, axes, change.dim, change.source)
            backward = "all_to_all"
        case "ppermute":
            pairs = _reordering(change, scope.sizes)
            crosses = crossed(pairs, axes, scope.sizes)
            array, backward = collectives.ppermute(array, axes, pairs), "ppermute"
        case "slice":
            array, backward = GATHER.own(array, change.dim, axes, scope.sizes, order_at[change.dim])
        case "all_gather":
            array, backward = GATHER.whole(array, change.dim, axes, varies)
        case unknown:
            raise AssertionError(unknown)
    joined = _joined(change)
    if joined is not None:
        array = order_at[joined].joined(array, joined, parts)
    size = max(before, nbytes(array))
    if change.operation in ("psum", "psum_scatter"):
        size = size // array.dtype.itemsize * collectives.sum_dtype(array.dtype).itemsize
    record(op, scope, change.operation, crosses, size, why(change), "" if constant else backward)
    return array


def _reordering(change: Change, sizes) -> list[tuple[int, int]]:
    """The pairs (source, target) of a ppermute by which the axes of a dim change their order.

    Positions are counted in the order that the axes had.
    """
    shape = [sizes[a] for a in change.axes]
    blocks = np.arange(math.prod(shape)).reshape([sizes[a] for a in change.order])
    wanted = blocks.transpose([change.order.index(a) for a in change.axes]).ravel()
    return [(int(source), target) for target, source in enumerate(wanted)]


def _rules_behind(x: Tensor, change: Change, level: str) -> str:
    """Why a result is resharded: the rules that made its sum pending, and those that split it."""
    scope, reasons = x.placement.scope, dict(x.placement.reasons)
    taken = change.axes if change.operation in ("psum", "psum_scatter") else ()
    summed = [reasons[a] for a in taken if a in reasons]
    split = [str(r) for r in (scope.rule(x.dims, level, a) for a in change.axes) if r]
    return "; then ".join(dict.fromkeys(summed + split)) or "no rule splits the result over it"
