"""The law: how any op runs on a mesh.

An op states its *loop nest*, which is every dim that it touches, the dims of its results, and a
function of local arrays. The rules of the layout decide the rest, in four steps:

1. `split_loop` (`lowering.nest`): the rules give the dims of the loop nest the axes of the mesh.
2. `bring` each operand to the split of the loop, restricted to the operand's own dims.
3. `compute` on what each device has. A dim that is split and that no result has, because it is
   contracted, leaves a sum pending over its axes.
4. `place` each result in the split that the rules give its own dims. Sums stay pending: an op that
   needs the sum itself takes it, by `resharding.take_sums`.

For example, with the rules `batch -> data` and `d_ff -> model`,

    einsum(h, down, out=(batch, d_model))   # h [batch_data, d_ff_model], down [d_ff_model, d_model]

has the loop nest `batch, d_ff, d_model`, of which `batch` is split over `data` and `d_ff` over
`model`. Both operands are already split as the loop is. Each device multiplies its parts of them,
and the result [batch_data, d_model] is a sum pending over `model`.

Outside of a lowering the same function runs on whole arrays: that is the reference that every
lowering equals.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from math import prod
from types import MappingProxyType
from typing import Any

import jax
import jax.numpy as jnp

from meshdsl.dims import Dim, Dims
from meshdsl.lowering import collectives, resharding
from meshdsl.lowering.derivatives import together
from meshdsl.lowering.device_loop import DeviceLoop
from meshdsl.lowering.moves.move import NATURAL, Move, Parts, without_axes
from meshdsl.lowering.moves.turns import legs_between
from meshdsl.lowering.nest import Nest, Work, reason_of, split_loop
from meshdsl.lowering.pending_sums import over_turns, stays_pending
from meshdsl.lowering.scope import IN_ORDER, Scope, common, copy_of, with_copy
from meshdsl.lowering.way import Way
from meshdsl.program.recorder import Op
from meshdsl.rules import LEVELS
from meshdsl.splits.changes import Split
from meshdsl.tensor import Dtypes, Parameter, Placement, Tensor
from meshdsl.values import array_of

_NO_AXES: Mapping[Dim, tuple[str, ...]] = MappingProxyType({})
_NO_PARTS: Mapping[Dim, Parts] = MappingProxyType({})
_NOTHING: frozenset = frozenset()


def apply_op(
    name: str,
    local: Callable,
    operands: Sequence[Tensor],
    *,
    loop: Dims,
    out: Dims,
    linear: bool | tuple[int, ...] = False,
    like: Tensor | None = None,
    fill: Any = 0,
    choose_splits: Callable | None = None,
    **nest,
) -> Tensor:
    """Run one op with one result by the law; see `apply_op_many`.

    `local` returns one array, which has the local shape of `out`. The other keyword arguments are
    fields of `Nest`.
    """
    one = lambda at, *arrays: (local(at, *arrays),)
    result = apply_op_many(
        name,
        one,
        operands,
        Nest(loop, (out,), **nest),
        linear=linear,
        like=like,
        fill=fill,
        choose_splits=choose_splits,
    )
    return result[0]


def apply_op_many(
    name: str,
    local: Callable,
    operands: Sequence[Tensor],
    nest: Nest,
    *,
    linear: bool | tuple[int, ...] = False,
    like: Tensor | None = None,
    fill: Any = 0,
    choose_splits: Callable | None = None,
) -> tuple[Tensor, ...]:
    """Run one op by the law.

    Args:
      name: what the record and errors call the op.
      local: called with a `DeviceLoop` and the local arrays of the operands; returns one array for
        each of the results.
      nest: what the op states of its loop nest.
      linear: the op is linear in its operands taken together. A sum that is pending in all of them
        may then stay pending in the results. Or the numbers of the operands in each of which alone
        it is linear: that lets a sum over turns stay pending, which nothing can take, see
        `pending_sums.over_turns`.
      like: for an op without operands, a Tensor of the lowering in which the op is to run.
      fill: what `local` finds in the padding of operands whose dims are split unevenly: one number
        for all operands, or a tuple with a number for each; None where the padding does not matter.
        The padding of results may hold anything.
      choose_splits: for an op with one operand and one result for which the split of the loop would
        move too much. It is called with the split of the operand, the law's split of the result
        and the scope, and returns two splits: the one to which the operand is brought, and the one
        in which the result comes out.
    """
    scope = common(name, operands) or (
        like.placement.scope if like is not None and like.placement else None
    )
    if scope is None:
        return _on_one_device(name, local, operands, nest.outs)
    how = {"linear": linear, "fill": fill, "choose_splits": choose_splits}
    if scope.rest is not None and scope.rest.is_free(operands, nest.outs):
        with scope.rest.once():
            return apply_op_many(name, local, operands, nest, **how)
    if choose_splits is not None and not operands[0].size:  # there is nothing to move
        choose_splits, nest = None, nest._replace(unsplit=nest.loop)

    level, pending = _level(operands), stays_pending(operands, linear)
    if not pending and scope.turns:
        operands, pending = over_turns(operands, linear, scope)
    if not pending:
        operands = [resharding.take_sums(t) if t.pending else t for t in operands]
    chosen = None
    if choose_splits is not None:
        law = without_axes(scope.split(nest.outs[0], level), pending)
        chosen = choose_splits(operands[0].placement.axes, law, scope)

    work = split_loop(scope, nest, level, pending, chosen)
    op = _begin(name, nest, work, scope)
    in_parts, of_result = _NO_PARTS, _NO_PARTS
    if work.move is not None:
        in_parts = _parts(work.in_parts, nest, work, scope, op)
        of_result = _parts(work.result_in_parts, nest, work, scope, op)
    at = DeviceLoop(work.axes_of, scope, op, work.orders, in_parts, of_result)
    if chosen is not None:
        at.result = DeviceLoop(dict(zip(nest.outs[0], chosen[1], strict=True)), scope, op)
    fills = fill if op.waste or nest.same_split or in_parts else None
    arrays = bring(operands, work, at, op, fills)
    if level == "rules" and len(arrays) > 1 and not in_parts:  # parts are shared by their arrays
        arrays = _with_gradients_together(operands, arrays, nest.outs, at)
    results = compute(local, at, arrays, op)
    result = place(results, operands, work, scope, op)
    if scope.copies and level != "rules":
        again = partial(apply_op_many, name, local, nest=nest, **how)
        result = _with_copies(result, operands, again)
    return result


def _parts(axes_of, nest: Nest, work: Work, scope: Scope, op: Op) -> dict[Dim, Parts]:
    """The `Parts` of each dim of `axes_of`, over its axes, which the local function asks for."""
    assert work.move is not None
    found = {}
    for d, axes in axes_of.items():
        outer = work.axes_of[d]
        orders = IN_ORDER if d in nest.ordered else scope.orders((d,), ((*outer, *axes),))
        order = orders.get(d, NATURAL)
        found[d] = work.move.view(d, outer, axes, scope, work.level, op, order)
    return found


def bring(operands: Sequence[Tensor], work: Work, at: DeviceLoop, op: Op, fill) -> list[jax.Array]:
    """The local arrays of the operands, in the split of the loop, with `fill` in their padding."""
    fills = fill if isinstance(fill, tuple) else (fill,) * len(operands)
    scope, arrays = at.scope, []
    assert scope is not None
    for t, value in zip(operands, fills, strict=True):
        wanted, placement = work.split_of(t.dims), t.placement
        if placement is not None and placement.origin and work.level == "rules":
            # Axes that split the parameter, at rest or here, are none over which its use varies.
            own = {a for axes in (*placement.axes, *wanted) for a in axes}
            placement.scope.note_use(placement.origin, work.loop_axes - own)
        orders = None
        if scope.layout.orders:
            orders = {d: order for d, order in work.orders.items() if d in t.dims}
            orders |= _orders_of_parts(t.dims, at, work)
        stands = orders is None or orders == scope.orders(t.dims, wanted)
        if not stands or not _stands_so(t, wanted, work.loop_axes):
            t = resharding.reshard(
                t, wanted, scope, op, work.why, varies=work.loop_axes, orders=orders
            )
        array = array_of(op.name, t)
        if fill is not None:
            axes = dict(zip(t.dims, wanted, strict=True))
            of_parts = DeviceLoop(axes, scope, op, orders or IN_ORDER)
            array = _masked(of_parts, array, t.dims, value, shared=bool(work.in_parts))
        arrays.append(array)
    return arrays


def _with_gradients_together(
    operands: Sequence[Tensor], arrays: list[jax.Array], outs: Sequence[Dims], at: DeviceLoop
) -> list[jax.Array]:
    """The arrays; of an op with a larger result, the backward pass makes their gradients together.

    From the gradient of a result the backward pass computes two others: the gradient of a parameter
    and that of a value. What runs next waits for the value's alone. So a compiler may put the
    parameter's off, and keep the large gradient of the result in memory until then: that of the
    logits while all layers run backwards, or that of the hidden units of a feed-forward layer while
    attention runs backwards.
    """
    found = [i for i, a in enumerate(arrays) if jnp.issubdtype(a.dtype, jnp.inexact)]
    parameters = [t for t in operands if t.placement is not None and t.placement.level != "rules"]
    if not 0 < len(parameters) < len(found):
        return arrays
    result = max([prod([at.size(d) for d in dims]) for dims in outs], default=0)
    if result <= max([arrays[i].size for i in found]):
        return arrays
    arrays = list(arrays)
    for i, array in zip(found, together([arrays[i] for i in found]), strict=True):
        arrays[i] = array
    return arrays


def _masked(at: DeviceLoop, array, dims: Dims, fill, *, shared: bool) -> Any:
    """`array` with `fill` in its padding.

    Args:
      shared: whether a second call for the same `array` is to give the same result, because parts
        that go round a ring are kept by their array.
    """
    if not shared:
        return at.masked(array, dims, fill)
    scope, key = at.scope, ("masked", dims, at.split(dims), fill)
    assert scope is not None
    found = scope.remembered(array, key)
    if found is None:
        found = at.masked(array, dims, fill)
        scope.remember(array, key, found)
    return found


def _orders_of_parts(dims: Dims, at: DeviceLoop, work: Work) -> dict[Dim, Move]:
    """The orders of the dims along which an operand comes part by part, if not the natural one."""
    parts = {d: at.in_parts(d) for d in work.in_parts}
    return {d: p.order for d, p in parts.items() if p and p.order is not NATURAL and p.has(dims)}


def compute(local: Callable, at: DeviceLoop, arrays: list[jax.Array], op: Op):
    """What the local function computes from the arrays that this device has."""
    with jax.named_scope(op.tag):
        return local(at, *arrays)


def place(results, operands, work: Work, scope: Scope, op: Op) -> tuple[Tensor, ...]:
    """Each result as a Tensor, split by the law for its own dims.

    The axes of a pending sum split none of its dims until the sum is taken.
    """
    origin, roles, sums_in, reasons, wire = _inherited(operands, work.level)
    tensors = []
    for array, result in zip(results, work.results, strict=True):
        dims, pending = result.dims, result.pending
        array = collectives.vary(array, result.varies)
        dtypes = None
        if sums_in is not None and jnp.issubdtype(array.dtype, jnp.inexact):
            dtypes = Dtypes(array.dtype, sums_in)
        because = (*reasons, *result.reasons) if pending else ()
        placement = Placement(
            scope, result.target, pending, work.level, origin, dtypes, because, wire
        )
        if not result.stands:
            legs = legs_between(dims, result.split, result.target, scope)
            why, orders = reason_of(scope, dims, work.level), (result.orders, result.then)
            array = Way(legs, scope, why, orders=orders).go(array, op)
        role = roles.get(dims, Parameter()) if roles is not None else None
        tensors.append(Tensor(array, dims, role, placement))
    return tuple(tensors)


def _on_one_device(name, local, operands, outs) -> tuple[Tensor, ...]:
    """The results of the local function on whole arrays, outside of a lowering."""
    results = local(DeviceLoop(_NO_AXES), *[array_of(name, t) for t in operands])
    roles = _roles(operands)
    return tuple(
        [
            Tensor(a, dims, roles.get(dims, Parameter()) if roles else None)
            for a, dims in zip(results, outs, strict=True)
        ]
    )


def _level(operands: Sequence[Tensor]) -> str:
    """The level of the results: "rules", as of a value, unless all operands follow parameters.

    Tensors without a placement adopt the level of the others.
    """
    levels = {t.placement.level for t in operands if t.placement is not None}
    if "rules" in levels or not levels:
        return "rules"
    return max(levels, key=LEVELS.index)


def _begin(name: str, nest: Nest, work: Work, scope: Scope) -> Op:
    """Begin the op in the record."""
    for dims in nest.outs:
        if dims is not nest.loop:
            scope.recorder.names.update([d.name for d in dims])
    op = scope.recorder.begin(name, nest.loop, work.axes, work.waste)
    op.unsplit = tuple(dim.name for dim in nest.unsplit)
    op.visited = tuple([fact.dim.name for fact in nest.by_parts if fact.sent])
    return op


def _stands_so(t: Tensor, split: Split, loop_axes: frozenset[str]) -> bool:
    """Whether a loop can take `t` as it is: with this split, and varying over the loop's axes."""
    placement = t.placement
    if placement is None:
        return not any(split) and loop_axes <= collectives.varying(t.stored)
    if placement.axes != split or placement.dtypes is not None or copy_of(t) is not None:
        return False
    return loop_axes <= collectives.varying(t.stored)


def _inherited(operands: Sequence[Tensor], level: str):
    """What results have from the operands.

    Returns:
      The numbers of the parameters that the operands are computed from, their roles by dims, the
      dtype in which their gradients are summed, the reasons of sums that stay pending, and the
      wires of their gradients.
    """
    reasons = operands[0].placement.reasons if operands and operands[0].placement else ()
    if level == "rules":
        return _NOTHING, None, None, reasons, ()
    placed = [t for t in operands if t.placement is not None]
    origin = _NOTHING.union(*(t.placement.origin for t in placed))
    sums_in = next((t.placement.dtypes.sums for t in placed if t.placement.dtypes), None)
    wire = next((t.placement.wire for t in placed if t.placement.wire), ())
    return origin, _roles(placed), sums_in, reasons, wire


def _roles(operands: Sequence[Tensor]) -> dict[Dims, Parameter] | None:
    """The role of a result, by its dims, where every operand is a parameter or follows one."""
    if not operands or any([t.role is None for t in operands]):
        return None
    return {t.dims: t.role for t in reversed(operands)}


def _with_copies(
    results: tuple[Tensor, ...], operands: Sequence[Tensor], again: Callable
) -> tuple[Tensor, ...]:
    """The results; if operands are parameters with copies (see `scope.copy_of`), with copies too.

    The copy of a result is computed from the copies of the operands. Results with a pending sum get
    no copies.

    Args:
      again: the op as a function of its operands, to be run on their copies.
    """
    copies = [copy_of(t) for t in operands]
    if not any([c is not None for c in copies]) or any([x.pending for x in results]):
        return results
    of_copies = again([t if c is None else c for t, c in zip(operands, copies, strict=True)])
    return tuple([with_copy(x, copy) for x, copy in zip(results, of_copies, strict=True)])
