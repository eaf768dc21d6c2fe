"""The rows of the carry of a pipeline: microbatches cut from them, and results put into them.

Where the stages share the rows outside of the pipeline, results are handed out: each stage writes
the results of its share, which arrive from the last stage, see `splits.pipeline`.
"""

from __future__ import annotations

from dataclasses import replace

import jax
import jax.numpy as jnp
from jax import lax

from meshdsl.lowering import resharding
from meshdsl.lowering.carried import carried, uncarried
from meshdsl.lowering.scope import Scope
from meshdsl.lowering.stages import Stages
from meshdsl.ops.bodies import each, leaves_of
from meshdsl.rules import SCHEDULES
from meshdsl.tensor import is_tensor


class Rows:
    """The rows of a carry, from which microbatches are cut, and into which results are written.

    Attributes:
      cut: the rule that splits the dim of the microbatches over the axis of turns.
      home: the axes that split that dim in the carry when microbatches are cut.
      count: how many microbatches there are.
    """

    def __init__(self, stages: Stages, home: tuple[str, ...], scope: Scope):
        self.stages, self.home, self.scope = stages, home, scope
        rule, self.count = stages.rule, stages.schedule.microbatches
        assert rule.microbatches is not None
        of_dim, _ = rule.microbatches
        axis = f"{self.count} microbatches"
        said = {"pads": False, "microbatches": None, "rounds": 1, "schedule": SCHEDULES[0]}
        self.cut = replace(rule, dim=of_dim, axis=axis, **said)

    def at(self, x) -> int | None:
        """The position of the dim of microbatches in `x`; None if `x` lacks this dim."""
        dims = x.dims if is_tensor(x) else ()
        return next((i for i, d in enumerate(dims) if d.name == self.cut.dim), None)

    def taken(self, rows, which, count: int):
        """Microbatch number `which` of a device's rows, which are cut into `count`."""

        def taken(x):
            if (at := self.at(x)) is None:
                return x
            size, axes = x.stored.shape[at] // count, list(x.placement.axes)
            axes[at] = (*axes[at], self.cut.axis)
            array = lax.dynamic_slice_in_dim(x.stored, which * size, size, at)
            return x.replace(array=array, placement=x.placement._replace(axes=tuple(axes)))

        return each(taken, rows)

    def at_home(self, x):
        """A microbatch, in the split in which it was cut from the rows."""
        if (at := self.at(x)) is None or x.placement.axes[at] == (*self.home, self.cut.axis):
            return x
        split = list(x.placement.axes)
        split[at] = (*self.home, self.cut.axis)
        begin = lambda: self.scope.recorder.begin("settle", x.dims, tuple(split))
        why = lambda _: str(self.stages.rule)
        return resharding.reshard(x, tuple(split), self.scope, begin, why)

    def put(self, rows, microbatch, which):
        """`rows` with microbatch number `which` in its place."""

        def put(x, new):
            if not is_tensor(x):
                return new
            array, at = new.stored, self.at(x)
            if at is not None:
                start = which * array.shape[at]
                array = lax.dynamic_update_slice_in_dim(x.stored, array, start, at)
            return x.replace(array=array)

        return each(put, rows, microbatch)

    def for_results(self, carry):
        """The arrays into which results are written: a device's rows, or its stage's share of them.

        At the beginning they hold rows of the carry, all of which are overwritten.
        """
        if not self.stages.schedule.hands_out:
            return carry

        def share(x):
            if (at := self.at(x)) is None:
                return x
            size = x.stored.shape[at] // self.stages.schedule.stages
            return x.replace(array=constant(lax.slice_in_dim(x.stored, 0, size, axis=at)))

        return each(share, carry)

    def left(self, carry, rows):
        """The arrays from which microbatches are cut: the rows that are not results yet.

        If results are written into the carry itself, that is `rows`; otherwise it is the carry.
        """
        if not self.stages.schedule.hands_out:
            return rows
        return each(lambda x, row: row if self.at(x) is None else x, carry, rows)

    def handed_out(self, rows, tick, result, after, here, passing):
        """`rows` with the result that arrives at this stage; and the results to pass on.

        Args:
          result: the result of the last stage; of it the leaves without microbatches are taken.
          after: the carry that this stage has computed at this tick.
          here: the carry that the stage before has computed at the tick before; for stage 0 it is
            the last stage's.
          passing: the results that have started from stage 0 and travel on by a stage a tick.
        """
        stages, schedule = self.stages, self.stages.schedule
        if schedule.stages > 2:
            here = choose(stages.number == 0, here, passing)
            op = self.scope.recorder.begin("hand_out", *dims_of(here))
            passing = uncarried(stages.hand_out(carried(here), op))
        place, arrives = schedule.arrives(stages.number, tick)
        arrived = choose(stages.number == schedule.stages - 1, after, here)
        arrived = choose(arrives, arrived, self.taken(rows, place, schedule.share))
        put = lambda x, mine, of_all: of_all if self.at(x) is None else mine
        return self.put(rows, each(put, rows, arrived, result), place), passing


def choose(condition, chosen, other):
    """`chosen` where the condition holds, else `other`: trees of Tensors and arrays alike."""
    where = lambda a, b: jnp.where(condition, a, b)
    return uncarried(jax.tree.map(where, carried(chosen), carried(other)))


def dims_of(tree):
    """The dims of the first Tensor of a tree, and the axes that split them."""
    first = next(x for x in leaves_of(tree) if is_tensor(x))
    return first.dims, first.placement.axes


def is_float(array) -> bool:
    return jnp.issubdtype(array.dtype, jnp.inexact)


def constant(array):
    return lax.stop_gradient(array) if is_float(array) else array
