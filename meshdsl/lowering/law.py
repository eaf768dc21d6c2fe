"""Point 2 and 3 of the law, written once: how any op runs.

An op states the dims of its loop nest and of its results, a local function, and whether it is linear. `run` splits
the loop by the law, brings each operand to the loop's split restricted to its own dims, calls the local function on
local arrays, and leaves a pending sum over the axes of dims that were split and contracted.

The local function gets a `Loop`: what it may ask of the machine. Outside a lowering the same function runs with a
Loop that is split over nothing, on whole arrays; that is the reference that every lowering must equal.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from types import MappingProxyType

import jax
import jax.numpy as jnp

from meshdsl.dims import Dim, Dims
from meshdsl.layout import LEVELS
from meshdsl.lowering import collectives, resharding
from meshdsl.lowering.device_loop import DeviceLoop
from meshdsl.lowering.scope import common
from meshdsl.record.recorder import Op
from meshdsl.splits.changes import Change, padded_changes
from meshdsl.tensor import Dtypes, Parameter, Place, Tensor
from meshdsl.values import array_of


def apply_op(
    name: str,
    local: Callable,
    operands: Sequence[Tensor],
    *,
    loop: Dims,
    out: Dims,
    **how,
) -> Tensor:
    """Run one op by the law; see `run_many`. `local` returns one array, with the local shape of `out`."""
    return apply_op_many(
        name, lambda at, *xs: (local(at, *xs),), operands, loop=loop, outs=(out,), **how
    )[0]


def _copies_too(run: Callable) -> Callable:
    """Where parameters alone make a parameter, and whole copies of them are at hand, the result has one too, unless it is a sum to be taken."""

    @wraps(run)
    def run_both(name, local, operands, **how):
        made = run(name, local, operands, **how)
        if (
            any(t.whole is not None for t in operands)
            and made[0].place.level != "value"
            and not any(x.pending for x in made)
        ):
            copies = run(
                name, local, [t if t.whole is None else t.whole for t in operands], **how
            )
            made = tuple(x.replace(whole=copy) for x, copy in zip(made, copies, strict=True))
        return made

    return run_both


@_copies_too
def apply_op_many(
    name: str,
    local: Callable,
    operands: Sequence[Tensor],
    *,
    loop: Dims,
    outs: Sequence[Dims],
    unsplit: Dims = (),
    same_split: Mapping[Dim, Dim] = MappingProxyType({}),
    linear: bool = False,
    sums: bool = True,
    like: Tensor | None = None,
    fill=0,
    choose_splits: Callable | None = None,
) -> tuple[Tensor, ...]:
    """Run one op by the law.

    Args:
      local: called with a Loop and the operands' local arrays, returns one array for each of `outs`.
      loop: the loop nest: every dim of the operands, and any other that the work could be split over.
      outs: dims of each result. Dims that are not in the loop come out unsplit, and are then split by the law.
      same_split: for a dim that is not in the loop, the dim of the loop whose split it has: in an operand it is brought to that
        split, in a result it comes out with it.
      unsplit: dims of the loop that the local function needs whole.
      linear: the op is linear in its operands taken together, so sums that all of them wait for may keep waiting.
      sums: a contracted dim leaves a sum to be taken over the axes that split it. Otherwise `local` has taken care.
      like: for an op without operands, a tensor in whose lowering it is to run.
      fill: what `local` finds in the padding of operands whose dims are split unevenly: one number for all of them, or one
        for each; None where it does not matter. What the op leaves in the padding of its results never matters.
      choose_splits: for an op with one operand and one result that the law for the loop would move too much: called with the operand's
        split, the law's split of the result and the scope, returns the split that the operand is brought to and
        that in which the result comes out, before it is split by the law.
    """
    scope = common(name, operands) or (
        like.place.scope if like is not None and like.place else None
    )
    if scope is None:
        results = local(DeviceLoop(dict.fromkeys(loop, ())), *[array_of(name, t) for t in operands])
        role = _role(operands)
        return tuple(
            Tensor(a, dims, role and role.get(dims, Parameter()))
            for a, dims in zip(results, outs, strict=True)
        )

    if choose_splits is not None and not operands[0].size:  # there is nothing to move
        choose_splits, unsplit = None, loop
    level, pending = _level(operands), _kept_pending(operands, linear)
    if not pending and any([t.pending for t in operands]):
        operands = [resharding.settle(t) if t.pending else t for t in operands]
    split = _loop_split(scope, loop, unsplit, level, pending)
    if choose_splits is not None:
        then = tuple(
            tuple(a for a in axes if a not in pending) for axes in scope.split(outs[0], level)
        )
        before, after = choose_splits(operands[0].place.axes, then, scope)
        split = dict(zip(loop, before, strict=True))
    known = (
        {**split, **{new: split[old] for new, old in same_split.items()}} if same_split else split
    )
    axes = tuple([split[d] for d in loop])
    loop_axes = scope.layout.spent.union(*axes)
    op = scope.recorder.begin(name, loop, axes, scope.waste(loop, axes))
    for dims in outs:
        if dims is not loop:
            scope.recorder.names.update([d.name for d in dims])
    free = tuple(d for d in loop if d not in unsplit) if unsplit else loop
    why = (
        _reasons(scope, free, level, "the op needs it whole")
        if choose_splits is None
        else _reasons(scope, outs[0], level)
    )
    _note_uses(scope, operands, level, loop_axes, known)
    at = DeviceLoop(known, scope, op)
    if choose_splits is not None:
        at.result = DeviceLoop(dict(zip(outs[0], after, strict=True)), scope, op)
    fills = fill if isinstance(fill, tuple) else (fill,) * len(operands)
    arrays = []
    for t, value in zip(operands, fills, strict=True):
        brought = resharding.bring(t, at.split(t.dims), loop_axes, scope, op, why)
        array = array_of(name, brought)
        arrays.append(at.masked(array, t.dims, value) if op.waste or same_split else array)
    with jax.named_scope(op.tag):
        results = local(at, *arrays)

    origin = (
        frozenset().union(*(t.place.origin for t in operands if t.place))
        if level != "value"
        else frozenset()
    )
    role = _role([t for t in operands if t.place]) if level != "value" else None
    sums_in = (
        next((t.place.dtypes.sums for t in operands if t.place and t.place.dtypes), None)
        if level != "value"
        else None
    )
    made = []
    for array, dims in zip(results, outs, strict=True):
        kept = at.result.split(dims)
        contracted = set()
        if sums and dims is not loop:
            gone = set(loop).difference(dims, [same_split[d] for d in dims if d in same_split])
            contracted = {a for d in gone for a in split[d]}
        waits = scope.in_mesh_order(contracted.union(pending)) if contracted or pending else ()
        array = collectives.vary(array, (*(a for axes in kept for a in axes), *waits))
        dtypes = (
            Dtypes(array.dtype, sums_in)
            if sums_in and jnp.issubdtype(array.dtype, jnp.inexact)
            else None
        )
        place = Place(scope, kept, waits, level, origin, dtypes)
        result = Tensor(array, dims, role and role.get(dims, Parameter()), place)
        if waits:
            result.because = {
                **(operands[0].because or {}),
                **{a: str(scope.rule(loop, level, a)) for a in contracted},
            }
        made.append(_by_law(result, op))
    return tuple(made)


def _level(operands) -> str:
    """Parameters alone make parameters; anything else makes a value. Tensors without a place adopt the others'."""
    levels = {t.place.level for t in operands if t.place}
    return "value" if "value" in levels or not levels else max(levels, key=LEVELS.index)


def _role(operands) -> dict[Dims, Parameter] | None:
    """The role of a result, by its dims, where every operand is a parameter or follows one."""
    if not operands or any(t.role is None for t in operands):
        return None
    return {t.dims: t.role for t in reversed(operands)}


def _kept_pending(operands, linear) -> tuple[str, ...]:
    waits = {t.pending for t in operands}
    if not linear or len(waits) != 1:
        return ()
    dtypes = {t.dtype for t in operands}
    alike = len(dtypes) == 1 or all([jnp.issubdtype(dtype, jnp.inexact) for dtype in dtypes])
    return waits.pop() if alike else ()


def sums_alike(dtype, made) -> bool:
    """Whether sums of `dtype` over devices may be taken after a linear op has made them `made`.

    Sums of integers wrap around, and those of bools are bools: they are taken before it changes.
    """
    return dtype == made or all(jnp.issubdtype(d, jnp.inexact) for d in (dtype, made))


def _loop_split(scope, loop, unsplit, level, pending) -> dict[Dim, tuple[str, ...]]:
    free = tuple(d for d in loop if d not in unsplit) if unsplit else loop
    split = dict(zip(free, scope.split(free, level), strict=True))
    if pending:  # those axes are spent on the sum until it is taken
        split = {d: tuple(a for a in axes if a not in pending) for d, axes in split.items()}
    for d in loop:
        if d in unsplit or not d.size:  # of no elements there are no parts
            split[d] = ()
    return split


def _note_uses(scope, operands, level, loop_axes, split) -> None:
    """For grad: over which axes an op makes a parameter vary. Being cut or gathered over an axis is not that."""
    if scope.uses is None or level != "value":
        return
    for t in operands:
        if t.place and t.place.origin:
            own = {
                a for d, axes in zip(t.dims, t.place.axes, strict=True) for a in (*axes, *split[d])
            }
            scope.note_use(t.place.origin, loop_axes - own)


def _reasons(scope, dims, level, otherwise="no rule splits the result over it"):
    def why(step: Change) -> str:
        rule = scope.rule(dims, level, step.axes[0])
        return str(rule) if rule else otherwise

    return why


def _by_law(x: Tensor, op: Op) -> Tensor:
    """`x` split by the law for its dims, except over axes that its pending sums occupy."""
    scope, place = x.place.scope, x.place
    law = scope.split(x.dims, place.level)
    target = (
        tuple(tuple(a for a in axes if a not in place.pending) for axes in law)
        if place.pending
        else law
    )
    if place.axes == target:
        return x
    steps = padded_changes(x.dims, place.axes, target, scope)
    how = dict(dims=x.dims, now=place.axes, then=target)
    array = resharding.perform(
        x.array,
        steps,
        scope,
        op,
        **how,
        varies=frozenset(),
        why=_reasons(scope, x.dims, place.level),
    )
    return Tensor(array, x.dims, x.role, place._replace(axes=target))
