"""The law: how any op runs on a mesh.

An op states its *loop nest*, which is every dim that it touches, the dims of its results, and a
function of local arrays. The rules of the layout decide the rest, in four steps:

1. `split` the loop nest: the rules give its dims the axes of the mesh.
2. `bring` each operand to the split of the loop, restricted to the operand's own dims.
3. `compute` on what each device has. A dim that is split and that no result has, because it is
   contracted, leaves a sum pending over its axes.
4. `settle` each result in the split that the rules give its own dims.

For example, with the rules `batch -> data` and `d_ff -> model`,

    einsum(h, down, out=(batch, d_model))   # h [batch_data, d_ff_model], down [d_ff_model, d_model]

has the loop nest `batch, d_ff, d_model`, of which `batch` is split over `data` and `d_ff` over
`model`. Both operands are split so already, each device multiplies what it has, and the result
[batch_data, d_model] is a sum pending over `model`.

Outside of a lowering the same function runs on whole arrays: that is the reference that every
lowering equals.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from meshdsl.dims import Dim, Dims
from meshdsl.layout import LEVELS
from meshdsl.lowering import collectives, resharding
from meshdsl.lowering.copies import copy_of, with_copy
from meshdsl.lowering.device_loop import DeviceLoop
from meshdsl.lowering.exchange import Kept
from meshdsl.lowering.ring import Ring, goes_round, ring_axes
from meshdsl.lowering.scope import Scope, common
from meshdsl.record.recorder import Op
from meshdsl.splits.changes import Split, padded_changes
from meshdsl.tensor import Dtypes, Parameter, Placement, Tensor
from meshdsl.values import array_of

_NO_DIMS: Mapping[Dim, Dim] = MappingProxyType({})
_NO_RINGS: Mapping[Dim, Ring] = MappingProxyType({})
_NO_CARRIERS: Mapping[Dim, Sequence[Dims]] = MappingProxyType({})
_NOTHING: frozenset = frozenset()


def apply_op(
    name: str,
    local: Callable,
    operands: Sequence[Tensor],
    *,
    loop: Dims,
    out: Dims,
    **how,
) -> Tensor:
    """Run one op with one result by the law; see `apply_op_many`.

    `local` returns one array, which has the local shape of `out`.
    """
    one = lambda at, *arrays: (local(at, *arrays),)
    return apply_op_many(name, one, operands, loop=loop, outs=(out,), **how)[0]


def apply_op_many(
    name: str,
    local: Callable,
    operands: Sequence[Tensor],
    *,
    loop: Dims,
    outs: Sequence[Dims],
    unsplit: Dims = (),
    in_order: Dims | None = None,
    same_split: Mapping[Dim, Dim] = _NO_DIMS,
    same_order: Mapping[Dim, Dim] = _NO_DIMS,
    linear: bool = False,
    sums: bool = True,
    like: Tensor | None = None,
    fill: Any = 0,
    choose_splits: Callable | None = None,
    part_by_part: Mapping[Dim, Sequence[Dims]] = _NO_CARRIERS,
    kept: tuple[Kept, ...] = (),
) -> tuple[Tensor, ...]:
    """Run one op by the law.

    Args:
      name: what the record and errors call the op.
      local: called with a `DeviceLoop` and the local arrays of the operands; returns one array for
        each of `outs`.
      loop: the loop nest: every dim of the operands, and any other dim that the work could be split
        over.
      outs: the dims of each result. A dim that is not in the loop comes out whole.
      unsplit: dims of the loop that the local function needs whole.
      in_order: dims of the loop of which the local function needs consecutive elements, so that a
        layout with order = "zigzag" is no matter of its own: while it runs, their parts are in
        natural order. By default all dims. Of the others it may not ask for the `offset`, nor for
        windows of them, only for the indices of their elements.
      same_split: for a dim that is not in the loop, a dim of the loop: it has the same split. In an
        operand it is brought to that split, in a result it comes out with it.
      same_order: for an op with `choose_splits`, for a dim of the result the dim of the operand
        whose elements it has, one by one.
      linear: the op is linear in its operands taken together. A sum that is pending in all of them
        may then stay pending in the results.
      sums: a contracted dim leaves a pending sum. Otherwise `local` has taken care of that.
      like: for an op without operands, a tensor in whose lowering it is to run.
      fill: what `local` finds in the padding of operands whose dims are split unevenly: one number
        for all of them, or a tuple with one for each; None where it does not matter. What the op
        leaves in the padding of its results never matters.
      choose_splits: for an op with one operand and one result for which the split of the loop would
        move too much. It is called with the split of the operand, the law's split of the result
        and the scope, and returns two splits: that to which the operand is brought, and that in
        which the result comes out.
      part_by_part: dims of the loop of which the local function can take one part after the other,
        each with the dims of the operands whose parts go round. A rule with `move = "ring"` lets
        it: where such a rule splits the dim at rest, over axes that the loop gives to other dims,
        these operands come in their parts instead of gathered, and `DeviceLoop.ring` has the way to
        the other parts.
      kept: dims of the loop that rules keep split as they are at rest, before any other rule.
    """
    scope = common(name, operands) or (
        like.placement.scope if like is not None and like.placement else None
    )
    if scope is None:
        return _on_one_device(name, local, operands, loop, outs)
    if choose_splits is not None and not operands[0].size:  # there is nothing to move
        choose_splits, unsplit = None, loop

    level, pending = _level(operands), _stays_pending(operands, linear)
    if not pending:
        operands = [resharding.settle(t) if t.pending else t for t in operands]
    chosen = None
    if choose_splits is not None:
        law = _less(scope.split(outs[0], level), pending)
        chosen = choose_splits(operands[0].placement.axes, law, scope)

    in_order = loop if in_order is None else in_order
    carriers = tuple((d, tuple(dims)) for d, dims in part_by_part.items()) if part_by_part else ()
    of_work = (tuple(outs), level, pending, unsplit, in_order, same_split, same_order, sums)
    work = split(scope, loop, *of_work, chosen, carriers, kept)
    op = _begin(name, loop, outs, work, scope)
    rings = _NO_RINGS
    if work.rings:
        rings = {
            d: Ring(d, work.axes_of[d], axes, scope, level, op, zigzag=d not in in_order)
            for d, axes in work.rings.items()
        }
    at = DeviceLoop(work.axes_of, scope, op, work.zigzag, rings)
    if chosen is not None:
        at.result = DeviceLoop(dict(zip(outs[0], chosen[1], strict=True)), scope, op)
    arrays = bring(operands, work, at, op, fill if op.waste or same_split or rings else None)
    results = compute(local, at, arrays, op)
    made = settle(results, operands, work, scope, op)
    if scope.copies and level != "rules":
        how = {"unsplit": unsplit, "same_split": same_split, "linear": linear, "sums": sums}
        how |= {"fill": fill, "choose_splits": choose_splits, "part_by_part": part_by_part}
        how |= {"in_order": in_order, "same_order": same_order}
        made = _with_copies(made, name, local, operands, loop=loop, outs=outs, **how)
    return made


class Work(NamedTuple):
    """What the law says of one loop nest.

    Attributes:
      level: whose rules split it.
      axes_of: for each dim of the loop, and each that has the same split, the axes that split it.
      axes: for each dim of the loop the axes that split it.
      zigzag: the dims among these whose parts are in zigzag order.
      loop_axes: all axes over which the loop is split.
      waste: the work on padding, as a fraction of the work on elements.
      why: gives the reason of what is done to an operand.
      results: for each result what becomes of it.
      splits: the answers that `split_of` has given.
      rings: for each dim that comes part by part the axes over which its parts go round.
      scope: that of the loop.
    """

    level: str
    axes_of: dict[Dim, tuple[str, ...]]
    axes: Split
    zigzag: frozenset[Dim]
    loop_axes: frozenset[str]
    waste: float
    why: Callable
    results: tuple[Result, ...]
    splits: dict[Dims, Split]
    rings: dict[Dim, tuple[str, ...]]
    scope: Scope

    def split_of(self, dims: Dims) -> Split:
        """The split of the loop, restricted to `dims`, and that of parts that go round."""
        found = self.splits.get(dims)
        if found is None:
            rings = {
                d: axes
                for d, axes in self.rings.items()
                if goes_round(dims, d, axes, self.scope, self.level)
            }
            found = tuple([(*self.axes_of.get(d, ()), *rings.get(d, ())) for d in dims])
            self.splits[dims] = found
        return found


class Result(NamedTuple):
    """What the law says of one result.

    Attributes:
      dims: its dims.
      split: in which it comes out of the loop.
      zigzag: the dims whose parts come out of it in zigzag order.
      varies: the axes over which it differs between devices.
      pending: the axes over which it is a sum.
      reasons: for each axis over which this op makes it a sum the rule behind it.
      target: the split that the law gives its dims.
      then: the dims whose parts are in zigzag order in that split.
      stands: whether it comes out of the loop as the law wants it.
    """

    dims: Dims
    split: Split
    zigzag: frozenset[Dim]
    varies: tuple[str, ...]
    pending: tuple[str, ...]
    reasons: tuple[tuple[str, str], ...]
    target: Split
    then: frozenset[Dim]
    stands: bool


def split(
    scope: Scope,
    loop: Dims,
    outs: tuple[Dims, ...],
    level: str,
    pending: tuple[str, ...] = (),
    unsplit: Dims = (),
    in_order: Dims = (),
    same_split: Mapping[Dim, Dim] = _NO_DIMS,
    same_order: Mapping[Dim, Dim] = _NO_DIMS,
    sums: bool = True,
    chosen: tuple[Split, Split] | None = None,
    carriers: tuple[tuple[Dim, tuple[Dims, ...]], ...] = (),
    kept: tuple[Kept, ...] = (),
) -> Work:
    """The rules split the loop nest: its dims get the axes of the mesh, and the results theirs.

    Axes of a pending sum are spent on it until it is taken.
    """
    same = tuple(same_split.items()) if same_split else ()
    order = tuple(same_order.items()) if same_order else ()
    key = (loop, outs, level, pending, unsplit, in_order, same, order, sums, chosen, carriers, kept)
    if (known := scope.loops.get(key)) is not None:
        return known
    free = tuple(d for d in loop if d not in unsplit)
    if chosen is None:
        axes_of = dict(zip(free, _less(scope.split(free, level), pending), strict=True))
    else:
        axes_of = dict(zip(loop, chosen[0], strict=True))
    for k in kept:
        axes_of |= dict(zip(axes_of, _less(tuple(axes_of.values()), k.axes), strict=True))
        axes_of[k.dim] = k.axes
    axes = tuple(axes_of.get(d, ()) if d.size else () for d in loop)  # no elements, no parts
    axes_of = dict(zip(loop, axes, strict=True))
    axes_of |= {new: axes_of[old] for new, old in same_split.items()}
    zigzag = scope.zigzag(loop, axes).difference(in_order)
    if chosen is not None:
        zigzag -= _torn(same_order, axes_of, dict(zip(outs[0], chosen[1], strict=True)), scope)
    origin = {**same_split, **same_order}
    zigzag |= {new for new, old in same_split.items() if old in zigzag}

    results = []
    for dims in outs:
        gone = set(loop).difference(dims, [same_split[d] for d in dims if d in same_split])
        contracted = {a for d in gone for a in axes_of[d]} if sums else _NOTHING
        now = tuple(axes_of.get(d, ()) for d in dims) if chosen is None else chosen[1]
        waits = scope.in_mesh_order({*contracted, *pending})
        rules = {a: str(scope.rule(loop, level, a)) for a in contracted}
        varies = scope.in_mesh_order(scope.of_mesh((*(a for axes in now for a in axes), *waits)))
        target = _less(scope.split(dims, level), waits)
        ordered = frozenset([d for d in dims if origin.get(d, d) in zigzag]) if zigzag else zigzag
        then = scope.zigzag(dims, target)
        stands = now == target and ordered == then
        of_rules = tuple(rules.items())
        results.append(Result(dims, now, ordered, varies, waits, of_rules, target, then, stands))
    whole = "the op needs it whole" if chosen is None else "no rule splits the result over it"
    because = {a: k.why for k in kept for a in k.axes}
    why = _reason(scope, free if chosen is None else outs[0], level, whole, because)
    loop_axes = scope.of_mesh(scope.layout.spent.union(*axes))
    rings = _rings(scope, level, axes_of, carriers)
    waste = scope.waste(loop, tuple((*axes_of[d], *rings.get(d, ())) for d in loop))
    of_results = tuple(results)
    work = Work(level, axes_of, axes, zigzag, loop_axes, waste, why, of_results, {}, rings, scope)
    scope.loops[key] = work
    return work


def _torn(same_order: Mapping[Dim, Dim], before, after, scope: Scope) -> set[Dim]:
    """The dims of an operand whose parts are not those of the dims that have their elements."""
    same = lambda old, new: (
        before[old] == after[new] and (scope.part(old, before[old]) == scope.part(new, after[new]))
    )
    return {old for new, old in same_order.items() if not same(old, new)}


def _rings(scope: Scope, level: str, axes_of: Mapping[Dim, tuple[str, ...]], carriers):
    """The axes of the ring of each dim that comes part by part; see `apply_op_many`."""
    found = {}
    for dim, dims in carriers:
        outer = axes_of[dim]
        taken = {a for d, axes in axes_of.items() if d != dim for a in axes}
        axes = ring_axes(dim, dims, taken, scope, level) if dim.size else ()
        # Parts within parts: the padding of both has to agree.
        if axes and (not outer or scope.padded(dim, outer) == scope.padded(dim, (*outer, *axes))):
            found[dim] = axes
    return found


def bring(operands: Sequence[Tensor], work: Work, at: DeviceLoop, op: Op, fill) -> list[jax.Array]:
    """The local arrays of the operands, in the split of the loop, with `fill` in their padding."""
    fills = fill if isinstance(fill, tuple) else (fill,) * len(operands)
    scope, arrays = at.scope, []
    assert scope is not None
    in_zigzag = bool(scope.layout.zigzag)
    for t, value in zip(operands, fills, strict=True):
        wanted, placement = work.split_of(t.dims), t.placement
        if placement is not None and placement.origin and work.level == "rules":
            # Over an axis that splits the parameter, or cuts it here, it does not vary by this use.
            own = {a for axes in (*placement.axes, *wanted) for a in axes}
            placement.scope.note_use(placement.origin, work.loop_axes - own)
        zigzag = None
        if in_zigzag:
            zigzag = work.zigzag.intersection(t.dims) | _going_round(t.dims, at, work)
        stands = zigzag is None or zigzag == scope.zigzag(t.dims, wanted)
        if not stands or not _stands_so(t, wanted, work.loop_axes):
            how = {"varies": work.loop_axes, "zigzag": zigzag}
            t = resharding.reshard(t, wanted, scope, op, work.why, **how)
        array = array_of(op.name, t)
        if fill is not None:
            axes = dict(zip(t.dims, wanted, strict=True))
            of_parts = DeviceLoop(axes, scope, op, zigzag or _NOTHING)
            array = of_parts.masked(array, t.dims, value)
        arrays.append(array)
    return arrays


def _going_round(dims: Dims, at: DeviceLoop, work: Work) -> set[Dim]:
    """The dims of an operand whose parts come one after the other, each in zigzag order."""
    rings = {d: at.ring(d) for d in work.rings}
    return {d for d, ring in rings.items() if ring and ring.zigzag and ring.has(dims)}


def compute(local: Callable, at: DeviceLoop, arrays: list[jax.Array], op: Op):
    """What the op computes of the parts that this device has."""
    with jax.named_scope(op.tag):
        return local(at, *arrays)


def settle(results, operands, work: Work, scope: Scope, op: Op) -> tuple[Tensor, ...]:
    """Each result as a Tensor, split by the law for its own dims.

    Axes of pending sums split nothing until the sum is taken.
    """
    origin, roles, sums_in, reasons = _inherited(operands, work.level)
    made = []
    for array, result in zip(results, work.results, strict=True):
        dims, pending = result.dims, result.pending
        array = collectives.vary(array, result.varies)
        dtypes = None
        if sums_in is not None and jnp.issubdtype(array.dtype, jnp.inexact):
            dtypes = Dtypes(array.dtype, sums_in)
        because = (*reasons, *result.reasons) if pending else ()
        placement = Placement(scope, result.target, pending, work.level, origin, dtypes, because)
        if not result.stands:
            changes = padded_changes(dims, result.split, result.target, scope)
            how = {"dims": dims, "now": result.split, "then": result.target, "varies": _NOTHING}
            how |= {"orders": (result.zigzag, result.then)}
            why = _reason(scope, dims, work.level)
            array = resharding.reshard_array(array, changes, scope, op, **how, why=why)
        role = roles.get(dims, Parameter()) if roles is not None else None
        made.append(Tensor(array, dims, role, placement))
    return tuple(made)


def sums_alike(dtype, made) -> bool:
    """Whether sums of `dtype` over devices may be taken after a linear op has made them `made`.

    Sums of integers wrap around, and those of bools are bools: they are taken before it changes.
    """
    return dtype == made or all(jnp.issubdtype(d, jnp.inexact) for d in (dtype, made))


def _on_one_device(name, local, operands, loop: Dims, outs) -> tuple[Tensor, ...]:
    """Outside of a lowering: the local function, of whole arrays."""
    results = local(DeviceLoop(_NO_AXES), *[array_of(name, t) for t in operands])
    roles = _roles(operands)
    return tuple(
        [
            Tensor(a, dims, roles.get(dims, Parameter()) if roles else None)
            for a, dims in zip(results, outs, strict=True)
        ]
    )


_NO_AXES: Mapping[Dim, tuple[str, ...]] = MappingProxyType({})


def _level(operands: Sequence[Tensor]) -> str:
    """Parameters alone make parameters; anything else makes a value.

    Tensors without a placement adopt the level of the others.
    """
    levels = {t.placement.level for t in operands if t.placement is not None}
    if "rules" in levels or not levels:
        return "rules"
    return max(levels, key=LEVELS.index)


def _stays_pending(operands: Sequence[Tensor], linear: bool) -> tuple[str, ...]:
    """The axes over which all operands are pending sums, if these may stay pending."""
    if not linear:
        return ()
    pending = {t.pending for t in operands}
    if len(pending) != 1:
        return ()
    (axes,) = pending
    dtypes = {t.dtype for t in operands} if axes else ()
    alike = len(dtypes) <= 1 or all([jnp.issubdtype(d, jnp.inexact) for d in dtypes])
    return axes if alike else ()


def _less(split: Split, spent: tuple[str, ...]) -> Split:
    """`split` without the axes `spent`."""
    if not spent:
        return split
    return tuple([tuple([a for a in axes if a not in spent]) for axes in split])


def _begin(name: str, loop: Dims, outs: Sequence[Dims], work: Work, scope: Scope) -> Op:
    """A row of the record for the op."""
    for dims in outs:
        if dims is not loop:
            scope.recorder.names.update([d.name for d in dims])
    return scope.recorder.begin(name, loop, work.axes, work.waste)


def _stands_so(t: Tensor, split: Split, loop_axes: frozenset[str]) -> bool:
    """Whether there is nothing to do to bring `t` to a loop with this split."""
    placement = t.placement
    if placement is None:
        return not any(split) and loop_axes <= collectives.varying(t.stored)
    if placement.axes != split or placement.dtypes is not None or copy_of(t) is not None:
        return False
    return loop_axes <= collectives.varying(t.stored)


def _inherited(operands: Sequence[Tensor], level: str):
    """What results have from their operands.

    Returns:
      The parameters that they come from, their roles by dims, the dtype in which their gradients
      are summed, and the reasons of sums that stay pending.
    """
    reasons = operands[0].placement.reasons if operands and operands[0].placement else ()
    if level == "rules":
        return _NOTHING, None, None, reasons
    placed = [t for t in operands if t.placement is not None]
    origin = _NOTHING.union(*(t.placement.origin for t in placed))
    sums_in = next((t.placement.dtypes.sums for t in placed if t.placement.dtypes), None)
    return origin, _roles(placed), sums_in, reasons


def _roles(operands: Sequence[Tensor]) -> dict[Dims, Parameter] | None:
    """The role of a result, by its dims, where every operand is a parameter or follows one."""
    if not operands or any([t.role is None for t in operands]):
        return None
    return {t.dims: t.role for t in reversed(operands)}


def _reason(
    scope: Scope,
    dims: Dims,
    level: str,
    otherwise="no rule splits the result over it",
    because: Mapping[str, str] = MappingProxyType({}),
):
    """Gives the reason of a change: the rule of `dims` that takes the first of its axes.

    Args:
      because: the reasons over some axes, where they are others.
    """

    def why(change) -> str:
        rule = because.get(change.axes[0]) or scope.rule(dims, level, change.axes[0])
        return str(rule) if rule else otherwise

    return why


def _with_copies(made: tuple[Tensor, ...], name: str, local: Callable, operands, **how):
    """The results with copies of their own at hand, if they are made of parameters with copies.

    A result that is a sum to be taken has none.
    """
    copies = [copy_of(t) for t in operands]
    if not any([c is not None for c in copies]) or any([x.pending for x in made]):
        return made
    others = [t if c is None else c for t, c in zip(operands, copies, strict=True)]
    of_copies = apply_op_many(name, local, others, **how)
    return tuple([with_copy(x, copy) for x, copy in zip(made, of_copies, strict=True)])
