"""Resharding: a Tensor brought from one split to another, by the cheapest collectives.

`reshard` changes the split of a Tensor, whichever op asks for it. The algebra of splits
(`splits.changes`) says which changes lead from one split to the other. Here these changes run on
the array of a device, and each is written down in the record of the op that asked.

The type of an array says over which axes its value may differ between devices. `vary` changes the
type, so that the value may differ over one more axis. That costs nothing in the forward pass and is
a psum in the backward pass. Because of the psum it is written down too.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import jax

from meshdsl.dims import Dims, without
from meshdsl.lowering import collectives
from meshdsl.lowering.derivatives import cast_and_moved, with_derivative_of
from meshdsl.lowering.moves.turns import Leg, at_home, legs_between, note_closure
from meshdsl.lowering.scope import IN_ORDER, Orders, Scope, copy_of, with_copy
from meshdsl.lowering.way import Way, Why
from meshdsl.lowering.wires import Wired
from meshdsl.program.recorder import Op
from meshdsl.splits.changes import SUMS, Change, Split
from meshdsl.tensor import Dtypes, Placement, Tensor


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
    wire: Wired = (),
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
      wire: the axes over which pending sums are taken in few bits.
    """
    if scope.turns:
        x = at_home(x, scope)
    placement = x.placement or whole_placement(x, scope)
    # What has been brought home is a copy of which the sums have been taken.
    pending = tuple([a for a in pending if a in placement.pending])
    then = scope.orders(x.dims, split) if orders is None else orders
    key = (x.dims, placement, split, varies, pending, frozenset(then.items()), placement.wire, wire)
    # A constant may outlive this trace, so the scope does not remember what became of it.
    array = None if x.placement is None else scope.remembered(x.stored, key)
    if array is None:
        op = op if isinstance(op, Op) else op()
        legs = legs_between(x.dims, placement.axes, split, scope, pending)
        ordered = scope.orders(x.dims, placement.axes), then
        constant = x.placement is None
        way = Way(legs, scope, why, varies, ordered, constant, placement.wire, wire)
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
    wire: Wired = (),
) -> Tensor:
    """`x` with no sum pending, in the split that the law gives its own dims.

    The changes are recorded as an op called `name`.

    Args:
      split: another split to bring `x` to.
      level: the level whose rules are the reason for the split; by default that of `x`.
      orders, wire: as in `reshard`.
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
    how = {"pending": placement.pending, "orders": orders, "wire": wire}
    return reshard(x, target, scope, begin, why, **how)


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
    op.moves += [
        m if m.backward_bytes else replace(m, backward_bytes=m.bytes * wide // narrow)
        for m in forward.moves
    ]
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


def _rules_behind(x: Tensor, change: Change, level: str) -> str:
    """Why a result is resharded: the rules that left its sums pending, and those that split it."""
    scope, reasons = x.placement.scope, dict(x.placement.reasons)
    taken = change.axes if change.operation in SUMS else ()
    summed = [reasons[a] for a in taken if a in reasons]
    split = [str(r) for r in (scope.rule(x.dims, level, a) for a in change.axes) if r]
    return "; then ".join(dict.fromkeys(summed + split)) or "no rule splits the result over it"
