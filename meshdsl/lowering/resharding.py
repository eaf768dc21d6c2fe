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
from itertools import groupby
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from meshdsl.dims import Dim, Dims, without
from meshdsl.lowering import block_order, collectives, window_arrays
from meshdsl.lowering.copies import copy_of, with_copy
from meshdsl.lowering.derivatives import cast_and_moved, own_part, with_derivative_of
from meshdsl.lowering.legs import Leg, away_from_home, legs_between
from meshdsl.lowering.turns import at_home, needs_all
from meshdsl.record.collective import crossed
from meshdsl.record.recorder import Move, Op
from meshdsl.splits import zigzag as zigzag_order
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
    zigzag: frozenset[Dim] | None = None,
) -> Tensor:
    """`x` in another split. Whoever asks for the same again gets the same array.

    Args:
      x: a Tensor of this lowering, or one without a placement: a constant, whole on every device.
      split: for each dim of `x` the axes that are to split it.
      op: the op that asks, in whose record the changes are written down; or a function that begins
        an op for them, and is called if there are any to make.
      varies: the axes over which the loop of that op is split, see `reshard_array`.
      pending: the axes over which a sum of `x` is pending that is to be taken on the way.
      zigzag: the dims whose parts are to be in zigzag order, where those are not the layout's. Only
        who asks knows that then: ops take a Tensor to be in the order of the layout.
    """
    if scope.turns:
        x = at_home(x, scope)
    placement = x.placement or whole_placement(x, scope)
    if zigzag is None:
        zigzag = scope.zigzag(x.dims, split)
    made = placement._replace(
        axes=split, pending=tuple([a for a in placement.pending if a not in pending])
    )
    key = (x.dims, placement, split, varies, pending, zigzag)
    # A constant may outlive this trace, so nothing is remembered of one.
    array = None if x.placement is None else scope.remembered(x.stored, key)
    if array is None:
        op = op if isinstance(op, Op) else op()
        array = _array(x, placement, split, op, why, varies, pending, zigzag)
        if x.placement is not None:
            scope.remember(x.stored, key, array)
    return Tensor(array, x.dims, x.role, made)


def settle(
    x: Tensor,
    name: str = "settle",
    *,
    split: Split | None = None,
    level: str | None = None,
    zigzag: frozenset[Dim] | None = None,
) -> Tensor:
    """`x` with nothing pending, in the split that the law gives its own dims.

    It is recorded as an op `name`.

    Args:
      split: the split to bring it to, where that is not the law's.
      level: whose rules are the reason for that split, where they are not those of `x`.
      zigzag: as in `reshard`.
    """
    placement = x.placement
    if placement is None:
        return x
    scope = placement.scope
    target = scope.split(x.dims, placement.level) if split is None else split
    stands = zigzag is None or zigzag == scope.zigzag(x.dims, target)
    if not placement.pending and placement.axes == target and stands:
        return x
    why = lambda change: _rules_behind(x, change, level or placement.level)
    begin = lambda: scope.recorder.begin(name, x.dims, target)
    how = {"pending": placement.pending, "zigzag": zigzag}
    return reshard(x, target, scope, begin, why, **how)


def entered(x: Tensor) -> Tensor:
    """`x`, which comes from outside of the lowering in natural order, in the layout's order."""
    assert x.placement is not None
    scope, axes = x.placement.scope, x.placement.axes
    zigzag = scope.zigzag(x.dims, axes)
    if not zigzag:
        return x
    op = scope.recorder.begin("zigzag", x.dims, axes)
    how = {"varies": frozenset(), "orders": (frozenset(), zigzag)}
    why = lambda change: _rules_behind(x, change, x.placement.level)
    legs = [Leg(x.dims, axes, axes, [])]
    return x.replace(array=reshard_array(x.stored, legs, scope, op, **how, why=why))


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
        x = settle(x)
    if x.placement.axes == split:
        copy = copy_of(x)
        return x if copy is None else with_copy(x, in_turn(copy, dims, op))
    names = ", ".join(f"`{d.name}`" for d in dims)
    return reshard(x, split, x.placement.scope, op, lambda _: f"a loop over {names} needs it whole")


def _array(
    x: Tensor, placement: Placement, split: Split, op: Op, why: Why, varies, pending, zigzag
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
    how = {"varies": varies, "why": why, "orders": (scope.zigzag(x.dims, now), zigzag)}

    def move(array, op: Op) -> jax.Array:
        return reshard_array(array, legs, scope, op, **how, constant=constant)

    def cast_and_move(array, op: Op) -> jax.Array:
        assert dtypes is not None
        with jax.named_scope(op.tag):
            if not changes and varies <= collectives.varying(array):
                return move(array.astype(dtypes.use), op)
            noted, again = op.aside(), op.aside()
            first, second = (lambda a: move(a, noted)), (lambda a: move(a, again))
            made = cast_and_moved(array, first, second, dtypes)
            narrow, wide = dtypes.use.itemsize, dtypes.sums.itemsize
            op.moves += [replace(m, backward_bytes=m.bytes * wide // narrow) for m in noted.moves]
            return made

    moved = cast_and_move if dtypes else move
    copy = copy_of(x)
    if copy is None:
        if not dtypes and (home := away_from_home(legs, scope)) is not None:
            scope.turn_of(a for axes in split for a in axes).closures.met(x, home)
        return moved(x.stored, op)
    noted = op.aside()
    like = jax.eval_shape(lambda a: moved(a, noted), x.stored)
    op.moves += [replace(m, operation="hold") for m in noted.moves if m.backward]
    value = without_gradient(copy, split, op, why, varies=varies, zigzag=zigzag)
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
    zigzag: frozenset[Dim] | None = None,
) -> jax.Array:
    """The array of `x` in its dtype of use, in another split, for which no gradient is recorded."""
    scope, now = x.placement.scope, x.placement.axes
    then = scope.zigzag(x.dims, split) if zigzag is None else zigzag
    how = {"varies": varies, "why": why, "orders": (scope.zigzag(x.dims, now), then)}
    legs = legs_between(x.dims, now, split, scope)
    return reshard_array(x.array, legs, scope, op, **how, constant=True)


def reshard_array(
    array,
    legs: list[Leg],
    scope,
    op: Op,
    *,
    varies: frozenset[str],
    why: Why,
    constant: bool = False,
    orders: tuple[frozenset[Dim], frozenset[Dim]] | None = None,
) -> jax.Array:
    """Bring the array that a device has all `legs` of its way; the record of `op` has each change.

    Args:
      varies: the axes over which the loop of the consumer is split. The array is made to vary over
        them before anything is gathered: then the gradient of a gathered tensor is reduce-scattered
        first, and summed over the other axes on what is left. A gather over one of these axes has a
        result that varies over it, a gather over any other axis one that does not.
      constant: the array has no gradient, so nothing is recorded of the backward pass.
      orders: the dims whose parts are in zigzag order before, and those that are to be so after;
        by default as the layout says. Where the two differ in a dim that is split before and after,
        its parts exchange their blocks first. The whole of a dim is in natural order always.
    """
    changes = [change for leg in legs for change in leg.changes]
    sliced = {a for c in changes if c.operation == "slice" for a in c.axes}
    summed = {a for c in changes if c.operation in ("psum", "psum_scatter") for a in c.axes}
    missing = varies - collectives.varying(array) - sliced - summed
    before, after = orders or (
        scope.zigzag(legs[0].dims, legs[0].now),
        scope.zigzag(legs[-1].dims, legs[-1].then),
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
    both = [scope.parts(a) > 1 < scope.parts(b) for a, b in zip(now, then, strict=True)]
    zigzag = [
        d in after if stays else d in before | after for d, stays in zip(dims, both, strict=True)
    ]
    for i, d in enumerate(dims):
        if both[i] and (d in before) != zigzag[i]:
            change = Change("ppermute", now[i], i, order=now[i])
            array = _reordered(array, change, zigzag[i], scope, op, why, constant)
    for change in (part for whole in leg.changes for part in _gathers_apart(whole, varies)):
        if not scope.turns.keys().isdisjoint(change.axes):
            array = _in_turn(array, change, scope, op, why)
            continue
        splits_dim = change.operation in ("slice", "psum_scatter", "all_to_all")
        if splits_dim and not axes[change.dim]:
            size = scope.padded(dims[change.dim], then[change.dim])
            array = resized(array, change.dim, size)
        for part in _slices_apart(change, array):
            array = _changed(array, part, zigzag, scope, op, varies, why, constant)
        joined = {"all_to_all": change.source, "all_gather": change.dim}.get(change.operation)
        if joined is not None:
            axes[joined] = axes[joined][: -len(change.axes)]
            if not axes[joined]:
                array = resized(array, joined, dims[joined].size)
        if splits_dim:
            axes[change.dim] = (*axes[change.dim], *change.axes)
    return array


def _reordered(
    array, change: Change, to_zigzag: bool, scope, op: Op, why: Why, constant: bool
) -> Any:
    """The array after parts of a dim have exchanged their blocks, to zigzag order or from it."""
    axes, parts = change.axes, scope.parts(change.axes)
    backward = "" if constant else "ppermute"

    def send(piece, pairs):
        across = crossed(pairs, axes, scope.sizes)
        record(op, scope, "ppermute", across, nbytes(piece), why(change), backward)
        return collectives.ppermute(piece, axes, pairs)

    def exchange(array):
        size = array.shape[change.dim]
        pieces = zigzag_order.pieces(parts, size // 2, to_zigzag=to_zigzag)
        return window_arrays.exchanged(array, change.dim, axes, parts, pieces, size, send)

    if not array.size or parts == 1:
        return array
    return block_order.of_words(exchange, array)


def _changed(
    array, change: Change, zigzag: list[bool], scope, op: Op, varies, why: Why, constant: bool
) -> jax.Array:
    """The array after one change, which is written down in the record of `op`.

    Args:
      zigzag: for each dim whether its parts are in zigzag order.
    """
    before, crosses, axes = nbytes(array), change.axes, change.axes
    parts, splits = scope.parts(axes), change.operation in ("psum_scatter", "all_to_all")
    if splits and zigzag[change.dim]:
        array = block_order.in_zigzag(array, change.dim, parts)
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
            backward = "all_gather" if collectives.varying(array).isdisjoint(axes) else ""
            blocks = zigzag[change.dim] and parts > 1
            array = own_part(array, axes, change.dim, scope.sizes, zigzag=blocks)
        case "all_gather":
            backward = "" if varies.isdisjoint(axes) else "psum_scatter"
            array = collectives.all_gather(array, axes, change.dim, varies=bool(backward))
        case unknown:
            raise AssertionError(unknown)
    joined = {"all_to_all": change.source, "all_gather": change.dim}.get(change.operation)
    if joined is not None and zigzag[joined]:
        array = block_order.in_natural(array, joined, parts)
    size = max(before, nbytes(array))
    if change.operation in ("psum", "psum_scatter"):
        size = size // array.dtype.itemsize * collectives.sum_dtype(array.dtype).itemsize
    record(op, scope, change.operation, crosses, size, why(change), "" if constant else backward)
    return array


def _in_turn(array, change: Change, scope, op: Op, why: Why) -> jax.Array:
    """The part of an array that is there in this turn of a loop, see `Scope.taking_turns`.

    Raises:
      MeshDSLError: the change asks for what is there in other turns.
    """
    if change.operation == "slice":
        turn = scope.turn_of(change.axes)
        size = array.shape[change.dim] // turn.count
        return lax.dynamic_slice_in_dim(array, turn.number * size, size, change.dim)
    raise needs_all(op.name, why(change))


def _gathers_apart(change: Change, varies: frozenset[str]) -> list[Change]:
    """A gather over axes of which the loop varies over some is several, the innermost first."""
    if change.operation != "all_gather":
        return [change]
    return [change._replace(axes=axes) for axes in reversed(runs_alike(change.axes, varies))]


def _slices_apart(change: Change, array) -> list[Change]:
    """A slice over axes of which the array varies over some is several.

    In the backward pass a slice is free over axes that the array varies over, and an all_gather
    over others. Over some of both at once it would be a psum of the whole.
    """
    if change.operation != "slice":
        return [change]
    have = collectives.varying(array)
    return [change._replace(axes=axes) for axes in runs_alike(change.axes, have)]


def runs_alike(axes: tuple[str, ...], have: frozenset[str]) -> list[tuple[str, ...]]:
    """`axes` in runs, of each of which all axes are among `have`, or none."""
    return [tuple(run) for _, run in groupby(axes, have.__contains__)]


def _reordering(change: Change, sizes) -> list[tuple[int, int]]:
    """The pairs (source, target) of a ppermute by which the axes of a dim change their order.

    Positions are counted in the order that the axes had.
    """
    shape = [sizes[a] for a in change.axes]
    blocks = np.arange(math.prod(shape)).reshape([sizes[a] for a in change.order])
    wanted = blocks.transpose([change.order.index(a) for a in change.axes]).ravel()
    return [(int(source), target) for target, source in enumerate(wanted)]


def resized(array, at: int, size: int) -> Any:
    """The array with `size` elements at position `at`: zeros added at the end, or elements cut."""
    have = array.shape[at]
    if size > have and jnp.issubdtype(array.dtype, jax.dtypes.prng_key):
        words = resized(jax.random.key_data(array), at, size)
        return jax.random.wrap_key_data(words, impl=jax.random.key_impl(array))
    if size > have:
        return jnp.pad(array, [(0, size - have if i == at else 0) for i in range(array.ndim)])
    return lax.slice_in_dim(array, 0, size, axis=at) if size < have else array


def nbytes(x) -> int:
    return x.size * x.dtype.itemsize


def record(op: Op, scope, operation, axes, size: int, why: str, backward: str) -> None:
    """Write a move down, unless nothing travels: over axes of size 1, or of no elements."""
    if size and scope.parts(axes) > 1:
        op.moves.append(Move(operation, axes, size, why, backward))


def _rules_behind(x: Tensor, change: Change, level: str) -> str:
    """Why a result is resharded: the rules that made its sum pending, and those that split it."""
    scope, reasons = x.placement.scope, dict(x.placement.reasons)
    taken = change.axes if change.operation in ("psum", "psum_scatter") else ()
    summed = [reasons[a] for a in taken if a in reasons]
    split = [str(r) for r in (scope.rule(x.dims, level, a) for a in change.axes) if r]
    return "; then ".join(dict.fromkeys(summed + split)) or "no rule splits the result over it"
