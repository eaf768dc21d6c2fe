"""Moves: from one split to another, by the cheapest collectives.

`plan` is a pure function from two placements to a list of steps; `perform` runs the steps. Every change of split in
meshdsl is one of these, whichever op asked for it:

    pending -> split    psum_scatter        split -> whole            all_gather
    pending -> whole    psum                split of another dim      all_to_all
    whole -> split      slice (free)        copies that may differ    vary (free; psum in the backward pass)
"""

from __future__ import annotations

from typing import NamedTuple

import jax

from meshdsl.dims import Dim, without
from meshdsl.lowering import collectives
from meshdsl.plan.record import Move, Op
from meshdsl.tensor import Place, Tensor

Split = tuple[tuple[str, ...], ...]  # for each dim of a tensor the axes that split it, major first


class Step(NamedTuple):
    operation: str
    axes: tuple[str, ...]
    dim: int = -1  # gathered, sliced, scattered; for all_to_all the dim that becomes split
    source: int = -1  # for all_to_all the dim that was split


def plan(now: Split, then: Split, pending: tuple[str, ...] = ()) -> list[Step]:
    """The steps from the split `now`, with sums pending over `pending`, to the split `then` with nothing pending.

    Steps that shrink the array come first (psum_scatter, slice), all_to_all next, psum after that, all_gather last.
    The axes of a dim nest, major first, so only the innermost can be added or removed: where `then` wants another
    order the dim is gathered as far as needed and cut again.
    """
    now = [list(axes) for axes in now]
    then = [list(axes) for axes in then]
    pending = list(pending)
    wanted = {axis for axes in then for axis in axes}
    steps: list[Step] = []
    while True:
        step = _shrink(now, then, pending) or _exchange(now, then)
        if step is None and pending and (whole := [a for a in pending if a not in wanted]):
            step = Step("psum", tuple(whole))
        if step is None:
            step = _gather(now, then, wanted)
        if step is None:
            assert not pending and now == then, (now, then, pending)
            return steps
        steps.append(step)
        _apply(step, now, pending)


def _ready(now, then):
    """The dims whose split only lacks inner axes, with those axes."""
    for dim, (have, want) in enumerate(zip(now, then, strict=True)):
        if len(have) < len(want) and want[: len(have)] == have:
            yield dim, want[len(have) :]


def _shrink(now, then, pending) -> Step | None:
    used = {axis for axes in now for axis in axes}
    for dim, missing in _ready(now, then):
        scatter = _leading(missing, lambda a: a in pending)
        if scatter:
            return Step("psum_scatter", scatter, dim)
        part = _leading(missing, lambda a: a not in pending and a not in used)
        if part:
            return Step("slice", part, dim)
    return None


def _exchange(now, then) -> Step | None:
    for dim, missing in _ready(now, then):
        for source, have in enumerate(now):
            for n in range(min(len(have), len(missing)), 0, -1):
                if have[-n:] == missing[:n] and then[source][: len(have) - n + 1] != have[: len(have) - n + 1]:
                    return Step("all_to_all", tuple(missing[:n]), dim, source)
    return None


def _gather(now, then, wanted) -> Step | None:
    for dim, (have, want) in enumerate(zip(now, then, strict=True)):
        if want[: len(have)] != have:
            common = 0
            while common < len(want) and common < len(have) and have[common] == want[common]:
                common += 1
            surplus = have[common:]
            dropped = _leading(surplus[::-1], lambda a: a not in wanted)[::-1]
            return Step("all_gather", dropped or (surplus[-1],), dim)
    return None


def _leading(axes, test) -> tuple[str, ...]:
    taken = []
    for axis in axes:
        if not test(axis):
            break
        taken.append(axis)
    return tuple(taken)


def _apply(step, now, pending) -> None:
    if step.operation in ("psum", "psum_scatter"):
        for axis in step.axes:
            pending.remove(axis)
    if step.operation in ("psum_scatter", "slice", "all_to_all"):
        now[step.dim] += step.axes
    if step.operation == "all_to_all":
        del now[step.source][-len(step.axes) :]
    if step.operation == "all_gather":
        del now[step.dim][-len(step.axes) :]


def nbytes(x) -> int:
    return x.size * x.dtype.itemsize


def perform(array, steps: list[Step], scope, op: Op, *, varies: frozenset[str], why, constant: bool = False) -> jax.Array:
    """Run `steps` on a local array and record them in `op`.

    Args:
      varies: the axes over which the consumer's loop is split. The array is made to vary over them before anything
        is gathered: then the gradient of a gathered tensor is reduce-scattered first and summed over the other axes
        on the shard. A gather over one of them has a varying result, over any other axis an invariant one.
      why: called with a step, gives the reason to record.
      constant: the array has no gradient, so that it varies need not be recorded.
    """
    steps = [part for step in steps for part in _alike(step, varies)]
    sliced = {a for s in steps if s.operation == "slice" for a in s.axes}
    summed = {a for s in steps if s.operation in ("psum", "psum_scatter") for a in s.axes}
    have = collectives.varying(array)
    missing = scope.in_mesh_order(varies - have - sliced - summed)
    with jax.named_scope(op.tag):
        if missing:
            if not constant:
                _record(op, scope, "vary", missing, nbytes(array), "the loop is split over it", "psum")
            array = collectives.vary(array, missing)
        for step in steps:
            before, backward = nbytes(array), ""
            gathered_varying = step.operation == "all_gather" and not varies.isdisjoint(step.axes)
            if step.operation == "psum":
                array = collectives.psum(array, step.axes)
            elif step.operation == "psum_scatter":
                array, backward = collectives.psum_scatter(array, step.axes, step.dim), "all_gather"
            elif step.operation == "all_to_all":
                array, backward = collectives.all_to_all(array, step.axes, step.dim, step.source), "all_to_all"
            elif step.operation == "slice":
                backward = "all_gather" if collectives.varying(array).isdisjoint(step.axes) else ""
                array = collectives.own_part(array, step.axes, step.dim, scope.sizes)
            else:
                array = collectives.all_gather(array, step.axes, step.dim, varies=gathered_varying)
                backward = "psum_scatter" if gathered_varying else ""
            _record(op, scope, step.operation, step.axes, max(before, nbytes(array)), why(step), backward)
    return array


def _alike(step: Step, varies) -> list[Step]:
    """A gather over some axes that the loop varies over and some that it does not is several, innermost first."""
    if step.operation != "all_gather":
        return [step]
    runs: list[list[str]] = []
    for axis in reversed(step.axes):
        if runs and (runs[-1][0] in varies) == (axis in varies):
            runs[-1].insert(0, axis)
        else:
            runs.append([axis])
    return [step._replace(axes=tuple(axes)) for axes in runs]


def _record(op, scope, operation, axes, size, why, backward) -> None:
    if scope.parts(axes) > 1:
        op.moves.append(Move(operation, axes, size, why, backward))


def settle(x: Tensor, name: str = "settle") -> Tensor:
    """`x` with nothing pending, split by the law for its own dims (point 3 of the law), recorded as an op `name`."""
    place = x.place
    if place is None:
        return x
    scope, target = place.scope, place.scope.split(x.dims, place.level)
    if not place.pending and place.axes == target:
        return x
    if (moved := _remembered(x, "settled")) is not None:
        return moved
    op = scope.recorder.begin(name, x.dims, target)
    steps = plan(place.axes, target, place.pending)
    array = perform(x.array, steps, scope, op, varies=frozenset(), why=lambda s: _target_rule(x, s))
    settled = Tensor(array, x.dims, x.role, place._replace(axes=target, pending=()))
    return _remember(x, "settled", settled)


def bring(x: Tensor, split: Split, loop_axes: frozenset[str], scope, op: Op, why) -> Tensor:
    """`x`, whose pending sums stay pending, in the split that an op's loop wants; shared by every op that wants the same.

    Args:
      split: for each dim of `x` the axes that the loop splits it over.
      loop_axes: every axis over which the loop is split.
    """
    place = x.place or Place(scope, ((),) * len(x.dims))
    if place.axes == split and loop_axes <= collectives.varying(x.array):
        return x
    key = (split, loop_axes)
    if (moved := _remembered(x, key)) is not None:
        return moved
    steps = plan(place.axes, split)
    array = perform(x.array, steps, scope, op, varies=loop_axes, why=why, constant=x.place is None)
    moved = Tensor(array, x.dims, x.role, place._replace(axes=split))
    return _remember(x, key, moved) if x.place else moved  # a constant may outlive this trace


def in_turn(x: Tensor, dim: Dim, op: Op) -> Tensor:
    """`x` with `dim` whole and the others split by the law for one element along it, for a loop over `dim`."""
    if x.place is None:
        return x
    x = settle(x)
    rest = iter(x.place.scope.split(without(x.dims, (dim,)), x.place.level))
    split = tuple(() if d == dim else next(rest) for d in x.dims)
    return bring(x, split, frozenset(), x.place.scope, op, lambda _: f"a loop over `{dim.name}` needs it whole")


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


def _target_rule(x: Tensor, step: Step) -> str:
    """Why a result is moved so: the rule that made its sum pending, and the one that splits it."""
    scope, because = x.place.scope, x.because or {}
    summed = [because[a] for a in step.axes if a in because] if step.operation in ("psum", "psum_scatter") else []
    split = [str(r) for r in (scope.rule(x.dims, x.place.level, a) for a in step.axes) if r]
    return "; then ".join(dict.fromkeys(summed + split)) or "no rule splits the result over it"
