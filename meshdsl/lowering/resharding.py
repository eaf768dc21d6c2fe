"""Resharding: a Tensor brought from one split to another, by the cheapest collectives.

`reshard` changes the split of a Tensor, whichever op asks for it. The algebra of splits
(`splits.changes`) says which changes lead from one split to the other. Here these changes run on
the array of a device, and each is written down in the record of the op that asked.

The type of an array says over which axes its value may differ between devices. `vary` changes the
type, so that the value may differ over one more axis. That costs nothing in the forward pass and is
a psum in the backward pass. Because of the psum it is written down too.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import jax
import numpy as np

from meshdsl.dims import Dims, without
from meshdsl.lowering import collectives
from meshdsl.lowering.derivatives import cast_and_moved, with_derivative_of
from meshdsl.lowering.moves.gather import GATHER
from meshdsl.lowering.moves.move import NATURAL, Move, nbytes, record
from meshdsl.lowering.moves.turns import Leg, at_home, legs_between, needs_all, note_closure
from meshdsl.lowering.scope import IN_ORDER, Orders, Scope, copy_of, with_copy
from meshdsl.lowering.window_arrays import resized
from meshdsl.program.collective import crossed
from meshdsl.program.recorder import Op
from meshdsl.splits.changes import Change, Split
from meshdsl.tensor import Dtypes, Placement, Tensor

Why = Callable[[Change], str]  # gives the reason of a change, for the record: a rule, most often
_SUMS = ("psum", "psum_scatter")


def reshard(
    x: Tensor,
    split: Split,
    scope: Scope,
    op: Op | Callable[[], Op],
    why: Why,
    *,
    varies: frozenset[str] = frozenset(),
    pending: tuple[str, ...] = (),
    orders: Orders | None = None,
) -> Tensor:
    """`x` in another split. A second call with the same arguments gives the same array.

    Args:
      x: a Tensor of this lowering, or one without a placement: a constant, whole on every device.
      split: for each dim of `x` the axes that are to split it.
      op: the op that asks, in whose record the changes are written down. Or a function that begins
        an op; it is called if there are any changes to write down.
      varies: the axes over which the loop of that op is split, see `Way`.
      pending: the axes whose pending sums are taken on the way. Other sums stay pending.
      orders: the orders that the parts of dims are to have in `split`; by default those of the
        layout. The Tensor does not say that it has other orders: the caller has to know.
    """
    if scope.turns:
        x = at_home(x, scope)
    placement = x.placement or whole_placement(x, scope)
    # What has been brought home is a copy of which the sums have been taken.
    pending = tuple([a for a in pending if a in placement.pending])
    then = scope.orders(x.dims, split) if orders is None else orders
    key = (x.dims, placement, split, varies, pending, frozenset(then.items()))
    # A constant may outlive this trace, so the scope does not remember what became of it.
    array = None if x.placement is None else scope.remembered(x.stored, key)
    if array is None:
        op = op if isinstance(op, Op) else op()
        legs = legs_between(x.dims, placement.axes, split, scope, pending)
        ordered = scope.orders(x.dims, placement.axes), then
        way = Way(legs, scope, why, varies, ordered, constant=x.placement is None)
        copy = copy_of(x)
        if copy is not None:
            array = _from_copy(x, copy, split, way, op)
        else:
            if placement.dtypes is None:
                note_closure(x, legs, split, scope)
            array = _in_dtype_of_use(x.stored, placement.dtypes, way, op)
        if x.placement is not None:
            scope.remember(x.stored, key, array)
    left = tuple([a for a in placement.pending if a not in pending])
    return Tensor(array, x.dims, x.role, placement._replace(axes=split, pending=left))


def take_sums(
    x: Tensor,
    name: str = "settle",
    *,
    split: Split | None = None,
    level: str | None = None,
    orders: Orders | None = None,
) -> Tensor:
    """`x` with no sum pending, in the split that the law gives its own dims.

    The changes are recorded as an op called `name`.

    Args:
      split: another split to bring `x` to.
      level: the level whose rules are the reason for the split; by default that of `x`.
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
    """`x`, an argument of the lowered function, brought from natural order to the layout's."""
    assert x.placement is not None
    scope, axes = x.placement.scope, x.placement.axes
    orders = scope.orders(x.dims, axes)
    if not orders:
        return x
    first = next(iter(orders.values()))
    op = scope.recorder.begin(first.name, x.dims, axes)
    why = lambda change: _rules_behind(x, change, x.placement.level)
    way = Way([Leg(x.dims, axes, axes, [])], scope, why, orders=(IN_ORDER, orders))
    return x.replace(array=way.go(x.stored, op))


def leaf(x: Tensor) -> Tensor:
    """`x` as a leaf of a pytree: its array, as `jax.tree.map` and optax get it on one device.

    These functions combine the arrays of several Tensors with the same dims. So the split of the
    array must follow from the dims alone: no sum is pending, and the split is the law's for the
    dims. For parameters, and for all that is computed from parameters alone, it is the split of
    optimizer state. So `jax.tree.map` of parameters, gradients and the state of an optimizer gets
    parts that belong together, and under ZeRO-1 each update is computed once.
    """
    if not isinstance(x.stored, jax.Array):
        return x  # JAX also flattens trees whose leaves are no arrays
    scope, placement = x.placement.scope, x.placement
    scope.note_use(placement.origin, ())
    level = "rules" if placement.level == "rules" else "optimizer"
    x = plain(take_sums(x, "tree_leaf", split=scope.split(x.dims, level), level=level))
    return x.replace(placement=x.placement._replace(origin=frozenset()))


def whole_placement(x: Tensor, scope: Scope, level: str = "rules") -> Placement:
    """The placement of a constant: whole on every device."""
    return Placement(scope, ((),) * len(x.dims), (), level)


def placed(x: Tensor, scope: Scope, level: str = "rules") -> Tensor:
    """`x` with a placement in this lowering; a constant gets that of a whole on every device."""
    return x if x.placement else Tensor(x.array, x.dims, x.role, whole_placement(x, scope, level))


def plain(x: Tensor) -> Tensor:
    """`x` with one array, in the dtype in which ops use it: as it enters or leaves a body."""
    if copy_of(x) is None and not (x.placement and x.placement.dtypes):
        return x
    level = "parameters" if x.placement.level == "gradients" else x.placement.level
    return Tensor(x.array, x.dims, x.role, x.placement._replace(dtypes=None, level=level))


def whole_along(x: Tensor, dims: Dims, op: Op) -> Tensor:
    """`x` as a loop over `dims` takes it: whole along `dims`, each element split by the law."""
    if x.placement is None:
        return x
    rest = iter(x.placement.scope.split(without(x.dims, dims), x.placement.level))
    split = tuple(() if d in dims else next(rest) for d in x.dims)
    if x.placement.axes != split or x.placement.pending:
        x = take_sums(x)
    if x.placement.axes == split:
        copy = copy_of(x)
        return x if copy is None else with_copy(x, whole_along(copy, dims, op))
    names = ", ".join(f"`{d.name}`" for d in dims)
    return reshard(x, split, x.placement.scope, op, lambda _: f"a loop over {names} needs it whole")


def _in_dtype_of_use(array, dtypes: Dtypes | None, way: Way, op: Op) -> jax.Array:
    """The array at the end of its way, in the dtype of use; it moves as its dtypes say.

    Its gradient goes the same way back in the dtype of sums. Each move is written down with its
    bytes in both passes.
    """
    if dtypes is None:
        return way.go(array, op)
    with jax.named_scope(op.tag):
        if not way.changes and way.varies <= collectives.varying(array):
            return way.go(array.astype(dtypes.use), op)
        forward, backward = op.aside(), op.aside()
        run, again = (lambda a: way.go(a, forward)), (lambda a: way.go(a, backward))
        result = cast_and_moved(array, run, again, dtypes)
    narrow, wide = dtypes.travels.itemsize, dtypes.sums.itemsize
    op.moves += [replace(m, backward_bytes=m.bytes * wide // narrow) for m in forward.moves]
    return result


def _from_copy(x: Tensor, copy: Tensor, split: Split, way: Way, op: Op) -> jax.Array:
    """The array of `copy`, which is used in the place of `x`, brought to this split.

    Its gradient goes back the way that `x` itself would have come, see `parameter_copies`.
    """
    dtypes = x.placement.dtypes and x.placement.dtypes._replace(moves=None)  # it moves tangents
    moved = lambda a, op: _in_dtype_of_use(a, dtypes, way, op)
    noted = op.aside()
    like = jax.eval_shape(lambda a: moved(a, noted), x.stored)
    op.moves += [replace(m, operation="hold") for m in noted.moves if m.backward]
    orders = way.orders and way.orders[1]
    value = without_gradient(copy, split, op, way.why, varies=way.varies, orders=orders)
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
    """The array of `x` in its dtype of use and in another split; no backward pass is recorded."""
    scope, now = x.placement.scope, x.placement.axes
    then = scope.orders(x.dims, split) if orders is None else orders
    legs = legs_between(x.dims, now, split, scope)
    way = Way(legs, scope, why, varies, (scope.orders(x.dims, now), then), constant=True)
    return way.go(x.array, op)


class Way(NamedTuple):
    """The way of an array from one split to another.

    Attributes:
      legs: the legs of the way, with the changes to make.
      why: gives the reason of each change.
      varies: the axes over which the loop of the op is split that asked for the array. The array is
        made to vary over them before anything is gathered. Then the gradient is reduce-scattered
        over the axes of the gather first, and only the part that is left is summed over the other
        axes. The result of a gather varies over the axes of the gather that are among these.
      orders: the orders of parts before and after; by default those of the layout. Where a dim is
        split before and after, in two different orders, its parts exchange blocks before any other
        change. A dim that is whole is in natural order.
      constant: whether the array has no gradient, so that no backward pass is recorded.
    """

    legs: list[Leg]
    scope: Scope
    why: Why
    varies: frozenset[str] = frozenset()
    orders: tuple[Orders, Orders] | None = None
    constant: bool = False

    @property
    def changes(self) -> list[Change]:
        """All changes, in the order in which they are made."""
        return [change for leg in self.legs for change in leg.changes]

    def go(self, array, op: Op) -> jax.Array:
        """This device's array at the end of the way; the changes are in the record of `op`.

        First the array is made to vary over those axes of `varies` over which it does not yet. The
        axes of slices and sums are left out: it varies over the former afterwards in any case, and
        a sum goes over axes over which it varies already.
        """
        scope, changes = self.scope, self.changes
        free = {a for c in changes if c.operation in ("slice", *_SUMS) for a in c.axes}
        missing = scope.in_mesh_order(self.varies - collectives.varying(array) - free)
        before, after = self.orders or (
            scope.orders(self.legs[0].dims, self.legs[0].now),
            scope.orders(self.legs[-1].dims, self.legs[-1].then),
        )
        with jax.named_scope(op.tag):
            if missing and not self.constant:
                reason = "the loop is split over it"
                record(op, scope, "vary", missing, nbytes(array), reason, "psum")
            array = collectives.vary(array, missing)
            for leg in self.legs:
                array = self._leg(array, leg, before, after, op)
                before = after
        return array

    def _leg(self, array, leg: Leg, before: Orders, after: Orders, op: Op) -> jax.Array:
        """The array at the end of a leg; its parts are in these orders before and after."""
        (dims, now, then, _), scope = leg, self.scope
        axes = list(now)
        order_at = []  # for each dim the order of its parts
        for i, d in enumerate(dims):
            old, new = before.get(d, NATURAL), after.get(d, NATURAL)
            stays_split = scope.parts(now[i]) > 1 < scope.parts(then[i])
            order_at.append(new if stays_split or new is not NATURAL else old)
            if stays_split and old is not new:
                array = self._reordered(array, i, now[i], old, op, into=False)
                array = self._reordered(array, i, now[i], new, op, into=True)
        for change in leg.changes:
            if turn := scope.turn_of(change.axes):
                if change.operation != "slice":
                    raise needs_all(op.name, self.why(change), self.scope)
                array = turn.slice_of(array, change.dim)
                continue
            splits_dim = change.operation in ("slice", "psum_scatter", "all_to_all")
            if splits_dim and not axes[change.dim]:
                size = scope.padded(dims[change.dim], then[change.dim])
                array = resized(array, change.dim, size)
            for run in GATHER.in_runs(change, array, self.varies):
                array = self._changed(array, run, order_at, op)
            joined = _joined(change)
            if joined is not None:
                axes[joined] = axes[joined][: -len(change.axes)]
                if not axes[joined]:
                    array = resized(array, joined, dims[joined].size)
            if splits_dim:
                axes[change.dim] = (*axes[change.dim], *change.axes)
        return array

    def _reordered(self, array, at: int, axes, order: Move, op: Op, *, into: bool) -> Any:
        """The array after the parts of a dim have exchanged blocks, into an order or back.

        Args:
          at, axes: the position of the dim, and the axes that split it.
          into: from the natural order into `order`; otherwise back.
        """
        if order is NATURAL:
            return array
        scope, reason = self.scope, self.why(Change("ppermute", axes, at, order=axes))
        backward = "" if self.constant else order.backward["ppermute"]

        def send(piece, pairs):
            across = crossed(pairs, axes, scope.sizes)
            record(op, scope, "ppermute", across, nbytes(piece), reason, backward)
            return collectives.ppermute(piece, axes, pairs)

        return order.reordered(array, at, axes, scope.sizes, send, into=into)

    def _changed(self, array, change: Change, order_at: list[Move], op: Op) -> jax.Array:
        """The array after one change; `order_at` has the order of the parts of each dim."""
        scope, before, axes = self.scope, nbytes(array), change.axes
        crosses, parts = axes, scope.parts(axes)
        if change.operation in ("psum_scatter", "all_to_all"):
            array = order_at[change.dim].cut(array, change.dim, parts)
        backward = ""  # what this change is in the backward pass: a collective, or nothing
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
                order = order_at[change.dim]
                array, backward = GATHER.own(array, change.dim, axes, scope.sizes, order)
            case "all_gather":
                array, backward = GATHER.whole(array, change.dim, axes, self.varies)
            case unknown:
                raise AssertionError(unknown)
        joined = _joined(change)
        if joined is not None:
            array = order_at[joined].joined(array, joined, parts)
        size = max(before, nbytes(array))
        if change.operation in _SUMS:
            size = size // array.dtype.itemsize * collectives.sum_dtype(array.dtype).itemsize
        backward = "" if self.constant else backward
        record(op, scope, change.operation, crosses, size, self.why(change), backward)
        return array


def _joined(change: Change) -> int | None:
    """The position of the dim whose parts a change joins; None for a change that joins none."""
    return {"all_to_all": change.source, "all_gather": change.dim}.get(change.operation)


def _reordering(change: Change, sizes) -> list[tuple[int, int]]:
    """The pairs (source, target) of devices of a ppermute that changes the order of a dim's axes.

    Devices are counted along the axes in the order that these had before.
    """
    shape = [sizes[a] for a in change.axes]
    blocks = np.arange(math.prod(shape)).reshape([sizes[a] for a in change.order])
    wanted = blocks.transpose([change.order.index(a) for a in change.axes]).ravel()
    return [(int(source), target) for target, source in enumerate(wanted)]


def _rules_behind(x: Tensor, change: Change, level: str) -> str:
    """Why a result is resharded: the rules that left its sums pending, and those that split it."""
    scope, reasons = x.placement.scope, dict(x.placement.reasons)
    taken = change.axes if change.operation in _SUMS else ()
    summed = [reasons[a] for a in taken if a in reasons]
    split = [str(r) for r in (scope.rule(x.dims, level, a) for a in change.axes) if r]
    return "; then ".join(dict.fromkeys(summed + split)) or "no rule splits the result over it"
