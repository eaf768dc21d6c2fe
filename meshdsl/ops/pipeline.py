"""A scan over a dim that the layout splits into stages, run as a pipeline.

    rules = [{ rule = "layers -> stage", microbatches = { batch = 16 } }, ...]

The devices along `stage` have a part of the layers each. What the scan carries is cut into
microbatches along `batch`, from the rows that a device has already, so that nothing moves. At each
tick a stage runs its layers on one microbatch and hands the result to the next stage, by one
`ppermute`; `splits.pipeline` says who works on what. JAX differentiates all this as it stands.

To the law the microbatches are one more axis, which splits `batch` below all rules of the layout
and stands for turns of a loop instead of devices (`Scope.taking_turns`). So what the body closes
over is cut where it is used, random numbers are those of the whole batch, and a sum over the batch
is known to be one over all microbatches: where the body returns it as a result, it is added up.

A stage that waits works on a microbatch all the same, one that has just come in, and what it makes
of it is dropped. So nothing that is not a number arises that was not there before.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import jax
import jax.numpy as jnp
from jax import ad_checkpoint, lax

from meshdsl.dims import Dim, distinct
from meshdsl.errors import MeshDSLError
from meshdsl.layout import Rule
from meshdsl.lowering import collectives, resharding
from meshdsl.lowering.carried import carried, uncarried
from meshdsl.lowering.moves.turns import Closures, Turn
from meshdsl.lowering.scope import Scope
from meshdsl.lowering.stages import Stages
from meshdsl.ops.bodies import (
    each,
    element,
    fixed,
    in_front,
    leaves_of,
    matching,
    two_results,
    value,
)
from meshdsl.ops.checkpoint import policies_within
from meshdsl.ops.microbatches import (
    axes_of_stages,
    brought_home,
    home_of,
    is_shared,
    schedule_of,
)
from meshdsl.ops.pipeline_memory import CARRY, gathered_at, is_gathered, kept
from meshdsl.program.recorder import next_op_number
from meshdsl.tensor import Tensor, is_tensor


def pipelined(
    name: str, fn: Callable, carry, xs, dim: Dim, scope: Scope, rule: Rule, *, reverse, unroll
):
    """What `scan` gives, by a pipeline.

    The last carry is handed out to the stages, where these share its rows outside of the pipeline;
    else it is a sum that is pending over them.
    """
    if reverse:
        raise MeshDSLError(
            f"{rule}: a pipeline runs forward, and this {name} over `{dim.name}` has reverse=True"
        )
    axes = axes_of_stages(dim, scope)
    op = scope.recorder.begin("pipeline", (dim,), (axes,))
    xs = each(lambda x: _noted(in_front(x, dim, name), axes, scope) if is_tensor(x) else x, xs)
    outside = [(x.dims, scope.split(x.dims)) for x in leaves_of(carry) if is_tensor(x)]
    with scope.spending(axes, dim):
        home = home_of(rule, carry, scope)
        carry = each(lambda x: brought_home(x, rule, home, scope, op), carry)
        schedule = schedule_of(axes, rule, carry, scope)
        if schedule.microbatches % schedule.stages == 0:
            shared = all(is_shared(rule, *x, home, axes, scope) for x in outside)
            schedule = schedule._replace(hands_out=shared)
        op.schedule = schedule
        stages = Stages(dim, axes, rule, schedule, scope, op)
        entered = lambda x: stages.enter(x) if is_tensor(x) else stages.of_all(x)
        xs = each(entered, xs)
        last, ys = _Pipe(name, fn, stages, home, scope, unroll).run(carry, xs)
        last = each(lambda x: _of_last(x, stages, scope, rule), last)
    return last, each(lambda y: resharding.take_sums(y) if is_tensor(y) else y, ys)


def _noted(x: Tensor, axes: tuple[str, ...], scope: Scope) -> Tensor:
    """`x`, settled; being cut over the stages is no use of it that varies over them."""
    if x.placement is not None:
        own = {a for split in x.placement.axes for a in split}.union(axes)
        scope.note_use(x.placement.origin, scope.of_mesh(scope.sizes) - own)
    return resharding.take_sums(x)


class _Abandoned(Exception):
    """The body of a pipeline takes microbatches of tensors that are to be brought home first.

    An attempt ends with it in the middle of a `lax.scan`: a loop that was traced to its end would
    stay in the program, with its collectives, and nobody would look at its results.
    """


class _Pipe:
    """A pipeline that is being traced.

    Attributes:
      cut: gives the dim of the microbatches the axis that stands for them.
      home: the axes that split that dim in the carry, from which microbatches are cut.
      summed: for each result of the body whether it is a sum over the rows of a microbatch.
      recomputed: whether a tick makes what it takes of the parameters again in the backward pass.
    """

    def __init__(
        self,
        name: str,
        fn: Callable,
        stages: Stages,
        home: tuple[str, ...],
        scope: Scope,
        unroll: int,
    ):
        self.name, self.fn, self.stages, self.home = name, fn, stages, home
        self.scope, self.unroll = scope, unroll
        rule, self.count = stages.rule, stages.schedule.microbatches
        assert rule.microbatches is not None
        of_dim, _ = rule.microbatches
        axis = f"{self.count} microbatches"
        self.cut = replace(rule, dim=of_dim, axis=axis, pads=False, microbatches=None, rounds=1)
        self.summed: list[bool] = []
        self.recomputed = False
        self._closures, self._learns = Closures(), True

    def run(self, carry, xs):
        """The carry as each stage has it in the end, and the results of all elements.

        Where the body meets tensors that are to be brought home first, it is traced twice to learn
        which these are: what it makes itself is another tensor each time. Once they are at home it
        is traced to its end.
        """
        first_op, closures = next_op_number(), self._closures
        for _ in range(2):
            first_met, closures.away = closures.away, {}
            try:
                return self._traced(carry, xs)
            except _Abandoned:
                continue
        self.scope.recorder.forget(first_op)
        for x, home in (closures.away[key] for key in first_met if key in closures.away):
            closures.brought(x, self._brought(x, home))
        self._learns = False
        return self._traced(carry, xs)

    def _brought(self, x: Tensor, home) -> Tensor:
        """What the body closes over, in the split in which microbatches are cut from it."""
        scope, rule = self.scope, str(self.stages.rule)
        varies = scope.of_mesh(scope.spent.union(*home))
        return resharding.reshard(
            x,
            home,
            scope,
            self.stages.op,
            lambda _: rule,
            varies=varies,
            pending=x.placement.pending,
        )

    def _traced(self, carry, xs):
        """What `run` gives.

        Raises:
          _Abandoned: in the first two attempts, where the body closes over what is to be brought
            home before the ticks.
        """
        schedule, scope = self.stages.schedule, self.scope
        last_stage = self.stages.number == schedule.stages - 1

        def tick(state, number):
            here, passing, rows = (uncarried(tree) for tree in state)
            item = number - self.stages.number
            which, in_round = schedule.microbatch_of(item), schedule.round_of(item)
            real = (item >= 0) & (item < schedule.items) & (which < self.count)
            which, in_round = jnp.clip(which, 0, self.count - 1), jnp.where(real, in_round, 0)
            fresh = self._taken(self._not_yet(carry, rows), which, self.count)
            enters = (self.stages.number == 0) & (in_round == 0)
            with scope.taking_turns(self.cut, self._turn(which)):
                given = _choose(enters | ~real, each(self._value, fresh), here)
                made, ys = self._chunk(given, xs, in_round, number)
                op = scope.recorder.begin("hand_on", *_dims(made))
                handed = self.stages.hand_on(carried(made), op)
                made = each(self._at_home, made)
                if self._learns and self._closures.away:
                    raise _Abandoned
                done = last_stage & real & (in_round == schedule.rounds - 1)
                result = _choose(done, made, fresh)
                if schedule.hands_out:
                    rows, passing = self._handed_out(rows, number, result, made, here, passing)
                else:
                    rows = self._put(rows, result, which)
            return (handed, carried(passing), carried(rows)), carried(ys)

        first = jnp.int32(0)
        with scope.taking_turns(self.cut, self._turn(first)):
            start = each(self._value, self._taken(carry, first, self.count))
            start = jax.tree.map(_constant, carried(start))
        passing = start if schedule.hands_out and schedule.stages > 2 else ()
        with scope.recorder.repeated("ticks", schedule.ticks):
            ticks = jnp.arange(schedule.ticks, dtype=jnp.int32)
            begin = (start, passing, carried(self._rows(carry)))
            (_, _, made), ys = lax.scan(tick, begin, ticks)
        leaves, tree = jax.tree.flatten(uncarried(ys), is_leaf=is_tensor)
        ys = [self._collected(y, is_sum) for y, is_sum in zip(leaves, self.summed, strict=True)]
        return uncarried(made), jax.tree.unflatten(tree, ys)

    def _turn(self, which) -> Turn:
        return Turn(which, self.count, {self.cut.dim: self.home}, self._closures)

    def _at(self, x) -> int | None:
        """The position of the dim of microbatches; None where `x` has none."""
        dims = x.dims if is_tensor(x) else ()
        return next((i for i, d in enumerate(dims) if d.name == self.cut.dim), None)

    def _rows(self, carry):
        """Where results are put: the rows of a device, or the share of them that a stage will have.

        What is there in the beginning is real, and nobody looks at it.
        """
        if not self.stages.schedule.hands_out:
            return carry

        def share(x):
            if (at := self._at(x)) is None:
                return x
            size = x.stored.shape[at] // self.stages.schedule.stages
            return x.replace(array=_constant(lax.slice_in_dim(x.stored, 0, size, axis=at)))

        return each(share, carry)

    def _not_yet(self, carry, rows):
        """What microbatches are cut from: the carry, of which `rows` may have become results."""
        if not self.stages.schedule.hands_out:
            return rows
        return each(lambda x, row: row if self._at(x) is None else x, carry, rows)

    def _handed_out(self, rows, tick, result, made, here, passing):
        """`rows` with the result that arrives at this stage, and what is on its way to others.

        Args:
          result: what the last stage has made of leaves without microbatches.
          made: what this stage has made.
          here: what the stage before has made at the last tick; stage 0 has it from the last one.
          passing: results on their way from stage 0.
        """
        stages, schedule = self.stages, self.stages.schedule
        if schedule.stages > 2:
            here = _choose(stages.number == 0, here, passing)
            op = self.scope.recorder.begin("hand_out", *_dims(here))
            passing = uncarried(stages.hand_out(carried(here), op))
        place, arrives = schedule.arrives(stages.number, tick)
        arrived = _choose(stages.number == schedule.stages - 1, made, here)
        arrived = _choose(arrives, arrived, self._taken(rows, place, schedule.share))
        put = lambda x, mine, of_all: of_all if self._at(x) is None else mine
        return self._put(rows, each(put, rows, arrived, result), place), passing

    def _taken(self, rows, which, count: int):
        """One of `count` microbatches of all rows of a device."""

        def taken(x):
            if (at := self._at(x)) is None:
                return x
            size, axes = x.stored.shape[at] // count, list(x.placement.axes)
            axes[at] = (*axes[at], self.cut.axis)
            array = lax.dynamic_slice_in_dim(x.stored, which * size, size, at)
            return x.replace(array=array, placement=x.placement._replace(axes=tuple(axes)))

        return each(taken, rows)

    def _at_home(self, x):
        """A microbatch in the split in which it was cut from the rows."""
        if (at := self._at(x)) is None or x.placement.axes[at] == (*self.home, self.cut.axis):
            return x
        split = list(x.placement.axes)
        split[at] = (*self.home, self.cut.axis)
        begin = lambda: self.scope.recorder.begin("settle", x.dims, tuple(split))
        why = lambda _: str(self.stages.rule)
        return resharding.reshard(x, tuple(split), self.scope, begin, why)

    def _put(self, rows, microbatch, which):
        """`rows` with one microbatch in its place."""

        def put(x, new):
            if not is_tensor(x):
                return new
            array, at = new.stored, self._at(x)
            if at is not None:
                start = which * array.shape[at]
                array = lax.dynamic_update_slice_in_dim(x.stored, array, start, at)
            return x.replace(array=array)

        return each(put, rows, microbatch)

    def _chunk(self, given, xs, in_round, number):
        """The carry after the elements of a stage, in one round, and the results of each.

        Args:
          number: of the tick.
        """
        stages, rounds = self.stages, self.stages.schedule.rounds
        inner: list = []  # the policies of what is recomputed within

        def work(given, in_round, number):
            chunk = carried(each(lambda x: gathered_at(number, x, self.scope), xs))
            if rounds > 1:
                start, size = in_round * stages.chunk, stages.chunk
                cut = lambda x: lax.dynamic_slice_in_dim(x, start, size)
                chunk = jax.tree.map(cut, chunk)
            numbers = stages.first_of(in_round) + jnp.arange(stages.chunk, dtype=jnp.int32)
            repeated = self.scope.recorder.repeated(stages.dim.name, stages.chunk)
            with repeated, policies_within(inner):
                return lax.scan(self._body, given, (numbers, chunk), unroll=self.unroll)

        gathers = any(is_gathered(x, self.scope) for x in leaves_of(xs))
        self.recomputed = gathers or rounds > 1
        if self.recomputed:
            work = jax.checkpoint(work, policy=kept(inner))
        result, ys = work(carried(given), in_round, number)
        return uncarried(result), uncarried(ys)

    def _body(self, given, both):
        number, x = both
        named = lambda a: ad_checkpoint.checkpoint_name(a, CARRY) if _is_float(a) else a
        if self.recomputed:
            given = jax.tree.map(named, given)
        before = uncarried(given)
        result = self.fn(before, each(lambda t: element(t, self.stages.dim), uncarried(x)))
        after, y = two_results(self.name, result, self.scope)
        after = matching(self.name, each(self._value, after), before)
        if self.stages.padded:
            after = _choose(number < self.stages.dim.size, after, before)
        leaves, tree = jax.tree.flatten(y, is_leaf=is_tensor)
        self.summed = [is_tensor(t) and self.cut.axis in t.pending for t in leaves]
        ys = jax.tree.unflatten(tree, [self._result(t) for t in leaves])
        return carried(after), carried(ys)

    def _value(self, x):
        if is_tensor(x):
            return value(x, self.scope)
        return collectives.vary(jnp.asarray(x), self.scope.in_mesh_order(self.scope.spent))

    def _result(self, y):
        """A result of the body, settled but for the sum over microbatches."""
        if not is_tensor(y):
            return self._value(y)
        if y.placement is not None:
            pending = tuple(a for a in y.pending if a != self.cut.axis)
            y = y.replace(placement=y.placement._replace(pending=pending))
        return fixed(y, self.scope)

    def _collected(self, y, is_sum: bool):
        """A result of all ticks as one of all elements of this stage, and of all rows."""
        stages, schedule, at = self.stages, self.stages.schedule, self._at(y)
        array = y.stored if is_tensor(y) else y
        array = lax.dynamic_slice_in_dim(array, stages.number, schedule.items)  # those that count
        items = [
            [schedule.item_of(which, in_round) for which in range(self.count)]
            for in_round in range(schedule.rounds)
        ]
        in_order = items == [list(range(schedule.items))]
        array = array[None] if in_order else array[jnp.asarray(items)]
        if is_sum:
            array = array.any(1) if array.dtype == bool else array.sum(1, dtype=array.dtype)
        elif at is None:
            array = array[:, 0]
        else:
            array = jnp.moveaxis(array, 1, at + 2)
            array = lax.collapse(array, at + 2, at + 4)
        array = stages.collect(lax.collapse(array, 0, 2))
        if not is_tensor(y):
            return stages.gathered(array)
        dims = distinct((stages.dim, *y.dims), self.name)
        left = [tuple(a for a in axes if a != self.cut.axis) for axes in y.placement.axes]
        placement = y.placement._replace(axes=(stages.axes, *left))
        return Tensor(array, dims, y.role, placement)


def _of_last(x, stages: Stages, scope: Scope, rule: Rule):
    """A leaf of the carry as it leaves the pipeline.

    It is what the last stage has of it, a sum that is pending over the stages, unless each stage
    has its share already.
    """
    assert rule.microbatches is not None
    at = [i for i, d in enumerate(x.dims) if d.name == rule.microbatches[0]] if is_tensor(x) else []
    if at and stages.schedule.hands_out:
        return stages.outside(x, at[0])
    if not is_tensor(x) or not jnp.issubdtype(x.dtype, jnp.number):
        array = stages.from_last(x.stored if is_tensor(x) else x)
        return x.replace(array=array) if is_tensor(x) else array
    pending = scope.in_mesh_order(stages.axes)
    reasons = tuple((axis, str(stages.rule)) for axis in pending)
    placement = x.placement._replace(pending=pending, reasons=reasons)
    return x.replace(array=stages.of_last(x.stored), placement=placement)


def _choose(condition, chosen, other):
    """`chosen` where the condition holds, else `other`: trees of Tensors and arrays alike."""
    where = lambda a, b: jnp.where(condition, a, b)
    return uncarried(jax.tree.map(where, carried(chosen), carried(other)))


def _dims(tree):
    """The dims of the first Tensor of a tree, and the axes that split them."""
    first = next(x for x in leaves_of(tree) if is_tensor(x))
    return first.dims, first.placement.axes


def _is_float(array) -> bool:
    return jnp.issubdtype(array.dtype, jnp.inexact)


def _constant(array):
    return lax.stop_gradient(array) if _is_float(array) else array
