"""Moves: a tensor brought from one split to another, by the cheapest collectives.

Every change of split in meshdsl is made here, whichever op asked for it: `splits.changes` says which steps lead there, and
`perform` runs and records them. Where the type of an array is to vary over an axis, that is a move too: `vary`, free, and a
psum in the backward pass.
"""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import groupby

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from meshdsl.dims import Dims, without
from meshdsl.lowering import collectives
from meshdsl.lowering.derivatives import cast_and_moved, own_part, with_derivative_of
from meshdsl.record.collective import crossed
from meshdsl.record.recorder import Move, Op
from meshdsl.splits.changes import Change, Split, padded_changes
from meshdsl.tensor import Place, Tensor


def nbytes(x) -> int:
    return x.size * x.dtype.itemsize


def perform(
    array,
    steps: list[Change],
    scope,
    op: Op,
    *,
    dims: Dims,
    now: Split,
    then: Split,
    varies: frozenset[str],
    why,
    constant: bool = False,
) -> jax.Array:
    """Run `steps` on a local array and record them in `op`.

    Args:
      dims, now, then: the dims of the array, and its splits before and after.
      varies: the axes over which the consumer's loop is split. The array is made to vary over them before anything
        is gathered: then the gradient of a gathered tensor is reduce-scattered first and summed over the other axes
        on the shard. A gather over one of them has a varying result, over any other axis an invariant one.
      why: called with a step, gives the reason to record.
      constant: the array has no gradient, so what would happen in the backward pass is not recorded.
    """
    steps = [part for step in steps for part in _each_way(step, varies)]
    sliced = {a for s in steps if s.operation == "slice" for a in s.axes}
    summed = {a for s in steps if s.operation in ("psum", "psum_scatter") for a in s.axes}
    have = collectives.varying(array)
    missing = scope.in_mesh_order(varies - have - sliced - summed)
    axes = list(now)
    with jax.named_scope(op.tag):
        if missing:
            if not constant:
                why_vary = "the loop is split over it"
                record(op, scope, "vary", missing, nbytes(array), why_vary, "psum")
            array = collectives.vary(array, missing)
        for step in steps:
            if step.operation in ("slice", "psum_scatter", "all_to_all") and not axes[step.dim]:
                array = resized(array, step.dim, scope.padded(dims[step.dim], then[step.dim]))
            # In the backward pass a slice is free over axes that the array varies over, and an
            # all_gather over others; over some of both at once it would be a psum of the whole.
            cut = step.operation == "slice"
            for run in runs_alike(step.axes, collectives.varying(array)) if cut else [step.axes]:
                array = _recorded(array, step._replace(axes=run), scope, op, varies, why, constant)
            lost = (
                step.source
                if step.operation == "all_to_all"
                else step.dim
                if step.operation == "all_gather"
                else -1
            )
            if lost >= 0:
                axes[lost] = axes[lost][: -len(step.axes)]
                if not axes[lost]:
                    array = resized(array, lost, dims[lost].size)
            if step.operation in ("slice", "psum_scatter", "all_to_all"):
                axes[step.dim] = (*axes[step.dim], *step.axes)
    return array


def _recorded(array, step: Change, scope, op: Op, varies, why, constant: bool) -> jax.Array:
    """The array after a step, which is recorded in `op`."""
    before = nbytes(array)
    array, backward = _perform(array, step, scope, varies)
    crosses = step.axes
    if step.operation == "ppermute":
        crosses = crossed(_reordering(step, scope.sizes), step.axes, scope.sizes)
    size = max(before, nbytes(array))
    if step.operation in ("psum", "psum_scatter"):
        size = size // array.dtype.itemsize * collectives.sum_dtype(array.dtype).itemsize
    record(op, scope, step.operation, crosses, size, why(step), "" if constant else backward)
    return array


def _perform(array, step: Change, scope, varies) -> tuple[jax.Array, str]:
    """The array after a step, and the collective that the step is in the backward pass."""
    match step.operation:
        case "psum":
            return collectives.psum(array, step.axes), ""
        case "psum_scatter":
            return collectives.psum_scatter(array, step.axes, step.dim), "all_gather"
        case "all_to_all":
            return collectives.all_to_all(array, step.axes, step.dim, step.source), "all_to_all"
        case "ppermute":
            return collectives.ppermute(
                array, step.axes, _reordering(step, scope.sizes)
            ), "ppermute"
        case "slice":
            backward = "all_gather" if collectives.varying(array).isdisjoint(step.axes) else ""
            return own_part(array, step.axes, step.dim, scope.sizes), backward
        case "all_gather":
            varying = not varies.isdisjoint(step.axes)
            return collectives.all_gather(
                array, step.axes, step.dim, varies=varying
            ), "psum_scatter" if varying else ""
    raise AssertionError(step)


def _reordering(step: Change, sizes) -> list[tuple[int, int]]:
    """Who has the block that each device needs when the axes of a dim change their order: positions in the old order."""
    shape = [sizes[a] for a in step.axes]
    blocks = np.arange(math.prod(shape)).reshape([sizes[a] for a in step.order])
    wanted = blocks.transpose([step.order.index(a) for a in step.axes]).ravel()
    return [(int(source), target) for target, source in enumerate(wanted)]


def resized(array, at: int, size: int) -> jax.Array:
    """The array with `size` elements at position `at`: padding of zeros added, or padding cut off."""
    have = array.shape[at]
    if size > have and jnp.issubdtype(array.dtype, jax.dtypes.prng_key):
        words = resized(jax.random.key_data(array), at, size)
        return jax.random.wrap_key_data(words, impl=jax.random.key_impl(array))
    if size > have:
        return jnp.pad(array, [(0, size - have if i == at else 0) for i in range(array.ndim)])
    return lax.slice_in_dim(array, 0, size, axis=at) if size < have else array


def runs_alike(axes: tuple[str, ...], have: frozenset[str]) -> list[tuple[str, ...]]:
    """`axes` cut into runs of which each lies among `have` or has none of them."""
    return [tuple(run) for _, run in groupby(axes, have.__contains__)]


def _each_way(step: Change, varies: frozenset[str]) -> list[Change]:
    """A gather over some axes that the loop varies over and some that it does not is several, innermost first."""
    if step.operation != "all_gather":
        return [step]
    return [step._replace(axes=run) for run in reversed(runs_alike(step.axes, varies))]


def record(op, scope, operation, axes, size, why, backward) -> None:
    if scope.parts(axes) > 1 and size:
        op.moves.append(Move(operation, axes, size, why, backward))


def placed(x: Tensor, scope, level: str = "value") -> Tensor:
    """`x` in the lowering: a constant is whole on every device."""
    return (
        x
        if x.place
        else Tensor(x.array, x.dims, x.role, Place(scope, ((),) * len(x.dims), (), level))
    )


def plain(x: Tensor) -> Tensor:
    """`x` as an array in its dtype and nothing else, as it crosses the boundary of a body."""
    if x.whole is None and not (x.place and x.place.dtypes):
        return x
    return Tensor(x.array, x.dims, x.role, x.place._replace(dtypes=None))


def travel(
    x: Tensor,
    then: Split,
    scope,
    op: Op,
    why,
    *,
    varies: frozenset[str] = frozenset(),
    pending: tuple[str, ...] = (),
    constant: bool = False,
) -> jax.Array:
    """The array of `x` in its dtype, in the split `then` and with the sums `pending` taken; see `perform`.

    A parameter is cast on the way, and its gradient summed in the dtype that it says. Where a whole copy of it is at hand
    that one travels, and the gradient takes the way back that `x` would have gone.
    """
    place = x.place or Place(scope, ((),) * len(x.dims))
    dtypes, steps = place.dtypes, padded_changes(x.dims, place.axes, then, scope, pending)

    def move(array, op: Op) -> jax.Array:
        return perform(
            array,
            steps,
            scope,
            op,
            dims=x.dims,
            now=place.axes,
            then=then,
            varies=varies,
            why=why,
            constant=constant,
        )

    def cast_and_move(array, op: Op) -> jax.Array:
        with jax.named_scope(op.tag):
            if constant or not steps and varies <= collectives.varying(array):
                return move(array.astype(dtypes.use), op)
            noted, again = op.aside(), op.aside()
            made = cast_and_moved(array, lambda a: move(a, noted), lambda a: move(a, again), dtypes)
            op.moves += [
                replace(m, backward_bytes=m.bytes * dtypes.sums.itemsize // dtypes.use.itemsize)
                for m in noted.moves
            ]
            return made

    run = cast_and_move if dtypes else move
    if x.whole is None:
        return run(x.stored, op)
    noted = op.aside()
    like = jax.eval_shape(lambda a: run(a, noted), x.stored)
    op.moves += [replace(m, operation="hold") for m in noted.moves if m.backward]
    value = travel(x.whole, then, scope, op, why, varies=varies, constant=True)
    axes = collectives.varying(value) | collectives.varying(like)
    return with_derivative_of(
        collectives.vary(value, axes),
        lambda t: collectives.vary(run(t, op.aside()), axes),
        x.stored,
    )


def settle(
    x: Tensor, name: str = "settle", *, split: Split | None = None, level: str | None = None
) -> Tensor:
    """`x` with nothing pending, split by the law for its own dims (point 3 of the law), recorded as an op `name`.

    Args:
      split: the split to bring it to, where that is not the law's.
      level: whose rules are the reason for that split, where they are not those of `x`.
    """
    place = x.place
    if place is None:
        return x
    scope, target = place.scope, place.scope.split(x.dims, place.level) if split is None else split
    if not place.pending and place.axes == target:
        return x
    if (moved := _remembered(x, ("settled", target))) is not None:
        return moved
    op = scope.recorder.begin(name, x.dims, target)
    why = lambda step: _target_rule(x, step, level or place.level)  # noqa: E731
    array = travel(x, target, scope, op, why, pending=place.pending)
    settled = Tensor(array, x.dims, x.role, place._replace(axes=target, pending=()))
    return _remember(x, ("settled", target), settled)


def leaf(x: Tensor) -> Tensor:
    """`x` as a leaf of a pytree, whose array may meet those of other Tensors with the same dims.

    Nothing is pending in it, and its split is the law's for its dims: for a parameter and all that
    follows from parameters that of optimizer state, so that `jax.tree.map` of parameters, gradients
    and the state of an optimizer gets parts that belong together, and ZeRO-1 computes each update
    once.
    """
    if not isinstance(x.stored, jax.Array):
        return x  # JAX moves structures around that hold no arrays
    scope, place = x.place.scope, x.place
    scope.note_use(place.origin, ())
    level = "value" if place.level == "value" else "optimizer"
    x = plain(settle(x, "tree_leaf", split=scope.split(x.dims, level), level=level))
    return x.replace(place=x.place._replace(origin=frozenset()))


def unleaf(x: Tensor) -> Tensor:
    """`x`, put together from a leaf, with a type that varies over the axes that split it."""
    if not isinstance(x.stored, jax.Array):
        return x
    axes = [a for axes in x.place.axes for a in axes]
    if collectives.varying(x.stored).issuperset(axes):
        return x
    return x.replace(array=collectives.vary(x.stored, axes))


def bring(x: Tensor, split: Split, loop_axes: frozenset[str], scope, op: Op, why) -> Tensor:
    """`x`, whose pending sums stay pending, in the split that an op's loop wants; shared by every op that wants the same.

    Args:
      split: for each dim of `x` the axes that the loop splits it over.
      loop_axes: every axis over which the loop is split.
    """
    place = x.place or Place(scope, ((),) * len(x.dims))
    if (
        place.axes == split
        and loop_axes <= collectives.varying(x.stored)
        and x.dtype == x.stored.dtype
        and x.whole is None
    ):
        return x
    key = (split, loop_axes)
    if (moved := _remembered(x, key)) is not None:
        return moved
    array = travel(x, split, scope, op, why, varies=loop_axes, constant=x.place is None)
    moved = Tensor(array, x.dims, x.role, place._replace(axes=split))
    return _remember(x, key, moved) if x.place else moved  # a constant may outlive this trace


def in_turn(x: Tensor, dims: Dims, op: Op) -> Tensor:
    """`x` for a loop over `dims`: these whole, and the others split by the law for one element."""
    if x.place is None:
        return x
    rest = iter(x.place.scope.split(without(x.dims, dims), x.place.level))
    split = tuple(() if d in dims else next(rest) for d in x.dims)
    if x.place.axes != split or x.place.pending:
        x = settle(x)
    if x.place.axes == split:
        return x if x.whole is None else x.replace(whole=in_turn(x.whole, dims, op))
    names = ", ".join(f"`{d.name}`" for d in dims)
    why = lambda _: f"a loop over {names} needs it whole"  # noqa: E731
    return bring(x, split, frozenset(), x.place.scope, op, why)


def _remembered(x: Tensor, key) -> Tensor | None:
    """The copy of `x` made before under `key`, if it was made in the trace that is running."""
    made = (x.moved or {}).get(key)
    if made:
        now = collectives.trace_state()
        return next((moved for state, moved in made if state == now), None)
    return None


def _remember(x: Tensor, key, moved: Tensor) -> Tensor:
    if x.moved is None:
        x.moved = {}
    x.moved.setdefault(key, []).append((collectives.trace_state(), moved))
    return moved


def _target_rule(x: Tensor, step: Change, level: str) -> str:
    """Why a result is moved so: the rule that made its sum pending, and the one that splits it."""
    scope, because = x.place.scope, x.because or {}
    summed = (
        [because[a] for a in step.axes if a in because]
        if step.operation in ("psum", "psum_scatter")
        else []
    )
    split = [str(r) for r in (scope.rule(x.dims, level, a) for a in step.axes) if r]
    return "; then ".join(dict.fromkeys(summed + split)) or "no rule splits the result over it"
