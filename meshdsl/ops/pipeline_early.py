"""A pipeline whose microbatches go back early, see `lowering.early`: how its parts are traced.

    rules = [{ rule = "layers -> stage", microbatches = { batch = 64 }, schedule = "early" }, ...]

The scan gives the carry of one microbatch, which the last stage has. What follows is traced with
that one, so a loss is a sum over all microbatches.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from meshdsl.dims import distinct
from meshdsl.lowering.carried import carried, uncarried
from meshdsl.lowering.collectives import zeros_of
from meshdsl.lowering.early import SCAN
from meshdsl.lowering.early_parts import Parts
from meshdsl.lowering.moves.turns import Closures, Turn
from meshdsl.ops.bodies import each, leaves_of
from meshdsl.ops.microbatch_rows import dims_of
from meshdsl.ops.pipeline_loop import Abandoned, Pipe
from meshdsl.program.jaxpr import body_of, cut_from
from meshdsl.tensor import Tensor, is_tensor


class EarlyPipe(Pipe):
    """A pipeline of which the carry and the results are those of one microbatch."""

    def _traced(self, carry, xs):
        """The results of `run`, of one microbatch.

        Raises:
          Abandoned: as in `Pipe`.
        """
        stages, schedule, scope = self.stages, self.stages.schedule, self.scope
        first = jnp.int32(0)
        with scope.taking_turns(self.rows.cut, self._turn(first)):
            start = self.rows.taken(carry, first, self.rows.count)
        number = stages.number + first  # of a microbatch, or of an element: it differs by stage
        rows, of_rows = jax.tree.flatten(carried(start))
        own, of_own = jax.tree.flatten(carried(xs))
        trees: list = []  # of the carry within the pipeline, and of the results of an element

        def enter(*operands):
            *rows, which = operands
            with scope.taking_turns(self.rows.cut, self._turn(which)):
                given = carried(each(self._value, uncarried(jax.tree.unflatten(of_rows, rows))))
            arrays, tree = jax.tree.flatten(given)
            trees.append(tree)
            return arrays

        def element(*operands):
            *operands, which, number = operands
            x = jax.tree.unflatten(of_own, operands[: len(own)])
            given = jax.tree.unflatten(trees[0], operands[len(own) :])
            with scope.taking_turns(self.rows.cut, self._turn(which)):
                after, y = self._body(given, (number, x))
                if self._learns and self._closures.away:
                    raise Abandoned
            arrays, tree = jax.tree.flatten(y)
            trees.append(tree)
            return [*jax.tree.leaves(after), *arrays]

        def hand(*after):
            after = uncarried(jax.tree.unflatten(trees[0], after))
            with scope.taking_turns(self.rows.cut, self._turn(first)):
                op = scope.recorder.begin("hand_on", *dims_of(after))
                return jax.tree.leaves(stages.hand_on(carried(after), op))

        with scope.recorder.repeated("ticks", schedule.ticks):
            enters = jax.make_jaxpr(enter)(*rows, number)
            given = [zeros_of(x) for x in enters.out_avals]
            with scope.recorder.repeated(stages.dim.name, stages.chunk):
                slices = [zeros_of(jax.typeof(x), x.shape[1:]) for x in own]
                runs = jax.make_jaxpr(element)(*slices, *given, number, number)
            hands = jax.make_jaxpr(hand)(*given)
        leaves, count = leaves_of(carry), len(given)
        parts = Parts(
            schedule,
            stage=lambda: stages.number,
            first_of=stages.first_of,
            rows=tuple(self.rows.at(x) for x in leaves),
            enter=_without_constants(enters),
            element=_without_constants(runs),
            hand=hands,
            counts=(len(own), len(enters.consts), len(runs.consts)),
            types=(
                *runs.out_avals[:count],
                *(x.update(shape=(stages.size, *x.shape)) for x in runs.out_avals[count:]),
                jax.typeof(first),
            ),
            chunk=stages.chunk,
            unroll=self.unroll,
        )
        operands = [*jax.tree.leaves(carried(leaves)), *own, *enters.consts, *runs.consts]
        *found, self._which = SCAN.bind(*operands, parts=parts)
        self._even = all(
            x.stored.shape[at] // self.rows.count % schedule.stages == 0
            for x, at in zip(leaves, parts.rows, strict=True)
            if at is not None
        )
        last = uncarried(jax.tree.unflatten(trees[0], found[:count]))
        ys = uncarried(jax.tree.unflatten(trees[-1], found[count:]))
        leaves, tree = jax.tree.flatten(ys, is_leaf=is_tensor)
        ys = [self._of_elements(y, is_sum) for y, is_sum in zip(leaves, self.summed, strict=True)]
        return last, jax.tree.unflatten(tree, ys)

    def _of_elements(self, y, is_sum: bool):
        """A result of one microbatch as a result of this stage's elements.

        Args:
          is_sum: whether the microbatches are to be added up.
        """
        stages = self.stages
        array = stages.collect(y.stored if is_tensor(y) else y)
        if not is_tensor(y):
            return stages.gathered(array)
        dims = distinct((stages.dim, *y.dims), self.name)
        pending = (*y.pending, self.rows.cut.axis) if is_sum else y.pending
        placement = y.placement._replace(axes=(stages.axes, *y.placement.axes), pending=pending)
        return Tensor(array, dims, y.role, placement)

    def go_on(self) -> None:
        """From now on all that is traced is for one microbatch."""
        cut, rest = self.rows.cut, self.scope.rest
        turn = Turn(self._which, self.rows.count, {cut.dim: self.rows.home}, Closures())
        free = () if self._even else self.stages.axes
        rest.begins(cut, turn, frozenset((cut.dim, axis) for axis in free))


def _without_constants(closed):
    """A closed jaxpr of which the constants are the first arguments."""
    jaxpr = body_of(closed)
    return cut_from(jaxpr, [*jaxpr.constvars, *jaxpr.invars], jaxpr.eqns, jaxpr.outvars)
