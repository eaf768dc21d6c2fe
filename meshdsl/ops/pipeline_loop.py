"""The ticks of a pipeline, as a loop that JAX differentiates, and how a stage runs its elements."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import ad_checkpoint, lax

from meshdsl.dims import distinct
from meshdsl.lowering import collectives, resharding
from meshdsl.lowering.carried import carried, uncarried
from meshdsl.lowering.moves.turns import Closures, Turn
from meshdsl.lowering.scope import Scope
from meshdsl.lowering.stages import Stages
from meshdsl.ops.bodies import (
    each,
    element,
    fixed,
    leaves_of,
    matching,
    two_results,
    value,
)
from meshdsl.ops.checkpoint import policies_within
from meshdsl.ops.microbatch_rows import Rows, choose, constant, dims_of, is_float
from meshdsl.ops.pipeline_memory import CARRY, gathered_at, is_gathered, kept
from meshdsl.program.recorder import next_op_number
from meshdsl.tensor import Tensor, is_tensor


class Abandoned(Exception):
    """The body uses tensors that have to be brought home before the loop, see `turns.Closures`.

    It ends an attempt in the middle of a `lax.scan`. A loop that was traced to its end would stay
    in the program, with its collectives, although its results are not used.
    """


class Pipe:
    """A pipeline that is being traced.

    Attributes:
      rows: the rows of the carry, and how microbatches are cut from them.
      summed: for each result of the body whether it is a sum over the rows of a microbatch.
      recomputed: whether the backward pass of a tick computes again what the tick takes of the
        parameters, instead of keeping it.
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
        self.name, self.fn, self.stages, self.scope = name, fn, stages, scope
        self.unroll, self.rows = unroll, Rows(stages, home, scope)
        self.summed: list[bool] = []
        self.recomputed = False
        self._closures, self._learns = Closures(), True

    def run(self, carry, xs):
        """The carry as each stage has it after the last tick, and the results of all elements.

        If the body uses tensors that have to be brought home, it is traced twice to learn which
        ones it closes over: a tensor that the body computes itself is another one in each trace.
        After they have been brought home, the body is traced to its end.
        """
        first_op, closures = next_op_number(), self._closures
        for _ in range(2):
            first_met, closures.away = closures.away, {}
            try:
                return self._traced(carry, xs)
            except Abandoned:
                continue
        self.scope.recorder.forget(first_op)
        for x, home in (closures.away[key] for key in first_met if key in closures.away):
            closures.brought(x, self._brought(x, home))
        self._learns = False
        return self._traced(carry, xs)

    def _brought(self, x: Tensor, home) -> Tensor:
        """The tensor `x`, which the body closes over, in the split `home`."""
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
        """The results of `run`.

        Raises:
          Abandoned: in the first two attempts, if the body uses tensors that are not at home.
        """
        schedule, scope = self.stages.schedule, self.scope
        last_stage = self.stages.number == schedule.stages - 1

        def tick(state, number):
            here, passing, rows = (uncarried(tree) for tree in state)
            item = number - self.stages.number
            which, in_round = schedule.microbatch_of(item), schedule.round_of(item)
            real = (item >= 0) & (item < schedule.items) & (which < self.rows.count)
            which, in_round = jnp.clip(which, 0, self.rows.count - 1), jnp.where(real, in_round, 0)
            fresh = self.rows.taken(self.rows.left(carry, rows), which, self.rows.count)
            enters = (self.stages.number == 0) & (in_round == 0)
            with scope.taking_turns(self.rows.cut, self._turn(which)):
                given = choose(enters | ~real, each(self._value, fresh), here)
                after, ys = self._chunk(given, xs, in_round, number)
                op = scope.recorder.begin("hand_on", *dims_of(after))
                handed = self.stages.hand_on(carried(after), op)
                after = each(self.rows.at_home, after)
                if self._learns and self._closures.away:
                    raise Abandoned
                done = last_stage & real & (in_round == schedule.rounds - 1)
                result = choose(done, after, fresh)
                if schedule.hands_out:
                    rows, passing = self.rows.handed_out(rows, number, result, after, here, passing)
                else:
                    rows = self.rows.put(rows, result, which)
            return (handed, carried(passing), carried(rows)), carried(ys)

        first = jnp.int32(0)
        with scope.taking_turns(self.rows.cut, self._turn(first)):
            start = each(self._value, self.rows.taken(carry, first, self.rows.count))
            start = jax.tree.map(constant, carried(start))
        passing = start if schedule.hands_out and schedule.stages > 2 else ()
        with scope.recorder.repeated("ticks", schedule.ticks):
            ticks = jnp.arange(schedule.ticks, dtype=jnp.int32)
            begin = (start, passing, carried(self.rows.for_results(carry)))
            (_, _, rows), ys = lax.scan(tick, begin, ticks)
        leaves, tree = jax.tree.flatten(uncarried(ys), is_leaf=is_tensor)
        ys = [self._collected(y, is_sum) for y, is_sum in zip(leaves, self.summed, strict=True)]
        return uncarried(rows), jax.tree.unflatten(tree, ys)

    def _turn(self, which) -> Turn:
        return Turn(which, self.rows.count, {self.rows.cut.dim: self.rows.home}, self._closures)

    def _chunk(self, given, xs, in_round, number):
        """The carry after this stage's elements of one round, and the results of these elements.

        Args:
          number: the number of the tick.
        """
        stages, rounds = self.stages, self.stages.schedule.rounds
        inner: list = []  # the policies of `md.checkpoint` within the body

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
        named = lambda a: ad_checkpoint.checkpoint_name(a, CARRY) if is_float(a) else a
        if self.recomputed:
            given = jax.tree.map(named, given)
        before = uncarried(given)
        result = self.fn(before, each(lambda t: element(t, self.stages.dim), uncarried(x)))
        after, y = two_results(self.name, result, self.scope)
        after = matching(self.name, each(self._value, after), before)
        if self.stages.padded:
            after = choose(number < self.stages.dim.size, after, before)
        leaves, tree = jax.tree.flatten(y, is_leaf=is_tensor)
        self.summed = [is_tensor(t) and self.rows.cut.axis in t.pending for t in leaves]
        ys = jax.tree.unflatten(tree, [self._result(t) for t in leaves])
        return carried(after), carried(ys)

    def _value(self, x):
        if is_tensor(x):
            return value(x, self.scope)
        return collectives.vary(jnp.asarray(x), self.scope.in_mesh_order(self.scope.spent))

    def _result(self, y):
        """A result of the body, settled; only a sum over microbatches is left to take."""
        if not is_tensor(y):
            return self._value(y)
        if y.placement is not None:
            pending = tuple(a for a in y.pending if a != self.rows.cut.axis)
            y = y.replace(placement=y.placement._replace(pending=pending))
        return fixed(y, self.scope)

    def _collected(self, y, is_sum: bool):
        """A result of all ticks as a result of this stage's elements, for all rows.

        Args:
          is_sum: whether the microbatches are to be added up.
        """
        stages, schedule, at = self.stages, self.stages.schedule, self.rows.at(y)
        array = y.stored if is_tensor(y) else y
        array = lax.dynamic_slice_in_dim(array, stages.number, schedule.items)  # without idle ticks
        items = [
            [schedule.item_of(which, in_round) for which in range(self.rows.count)]
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
        left = [tuple(a for a in axes if a != self.rows.cut.axis) for axes in y.placement.axes]
        placement = y.placement._replace(axes=(stages.axes, *left))
        return Tensor(array, dims, y.role, placement)
