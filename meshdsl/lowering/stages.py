"""The stages of a pipeline: devices of which each has some elements of a dim, such as layers.

`ops.pipeline` runs the stages; this file moves arrays between them. Outside of the pipeline each
stage has one run of consecutive elements, as the law says. So parameters at rest, and checkpoints,
do not depend on the number of rounds. Where there are several rounds, each stage works on one chunk
of elements in each round, and the chunks are dealt to the stages on the way into the pipeline: with
2 stages and 2 rounds, elements 0 1 | 2 3 become 0 2 | 1 3.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from meshdsl.dims import Dim, without
from meshdsl.lowering import collectives, resharding, window_arrays
from meshdsl.lowering.device_loop import DeviceLoop
from meshdsl.lowering.moves.move import nbytes, record
from meshdsl.lowering.scope import Scope, copy_of, with_copy
from meshdsl.program.collective import crossed
from meshdsl.program.recorder import Op
from meshdsl.rules import Rule
from meshdsl.splits.pipeline import Schedule
from meshdsl.tensor import Tensor


class Stages:
    """The stages that hold the elements of `dim`.

    Attributes:
      dim: the dim whose elements the stages hold.
      axes: the axes over which the stages lie.
      rule: the rule of the layout that makes the stages.
      schedule: which stage works on what, when.
      size: how many elements each stage has, with padding.
      op: the op of the pipeline, in whose record moves before and after all ticks are written down.
    """

    def __init__(
        self,
        dim: Dim,
        axes: tuple[str, ...],
        rule: Rule,
        schedule: Schedule,
        scope: Scope,
        op: Op,
    ):
        self.dim, self.axes, self.rule, self.schedule = dim, axes, rule, schedule
        self.size = scope.part(dim, axes)
        self._scope, self.op = scope, op

    @property
    def number(self) -> jax.Array:
        """The number of this device's stage."""
        return collectives.position(self.axes)

    @property
    def chunk(self) -> int:
        """How many elements a stage works on at a tick."""
        return self.size // self.schedule.rounds

    @property
    def padded(self) -> bool:
        """Whether the last elements are padding."""
        return self.size * self.schedule.stages != self.dim.size

    def first_of(self, in_round) -> jax.Array:
        """The index of the first element of this stage's chunk of a round."""
        return (in_round * self.schedule.stages + self.number) * self.chunk

    def enter(self, x: Tensor) -> Tensor:
        """This stage's elements of `x`, a settled Tensor that has the dim of the stages in front.

        Each element is split by the law for the other dims. A parameter stays in its dtype at rest,
        so that its gradient is summed over microbatches in that dtype.
        """
        scope, level = self._scope, x.placement.level if x.placement else "rules"
        split = (self.axes, *scope.split(without(x.dims, (self.dim,)), level))
        if x.placement is None or x.placement.axes != split:
            dtypes = x.placement and x.placement.dtypes
            x = self._moved(resharding.plain(x) if copy_of(x) is not None else x, split, dtypes)
        copy = copy_of(x)
        # The body runs on the padding too, where a real element is sure not to give NaN.
        filled = DeviceLoop({self.dim: self.axes}, scope, self.op).filled(x.stored, self.dim)
        entered = x.replace(array=self.deal(filled))
        return entered if copy is None else with_copy(entered, self.enter(copy))

    def _moved(self, x: Tensor, split, dtypes) -> Tensor:
        """`x` in another split, in its dtype at rest."""
        if dtypes is not None:
            x = x.replace(placement=x.placement._replace(dtypes=None))
        why = lambda _: str(self.rule)
        x = resharding.reshard(x, split, self._scope, self.op, why, varies=self._scope.spent)
        return x.replace(placement=x.placement._replace(dtypes=dtypes))

    def of_all(self, array) -> jax.Array:
        """This stage's elements of an array that every device has as a whole.

        The elements lie along the first position.
        """
        schedule, chunks = self.schedule, self.schedule.rounds * self.schedule.stages
        order = np.arange(chunks).reshape(schedule.rounds, schedule.stages).T
        indices = order.reshape(-1, 1) * self.chunk + np.arange(self.chunk)
        dealt = array[np.minimum(indices.ravel(), self.dim.size - 1)]
        return lax.dynamic_slice_in_dim(dealt, self.number * self.size, self.size)

    def deal(self, array) -> jax.Array:
        """This stage's elements for all rounds, from a run of consecutive elements on each stage.

        With S stages, the first stage gets the chunks 0, S, 2S ... of all elements, the second one
        the chunks 1, S + 1 ...
        """
        return self._passed(array, self.schedule.deal(self.chunk))

    def collect(self, array) -> jax.Array:
        """The inverse of `deal`."""
        return self._passed(array, self.schedule.collect(self.chunk))

    def _passed(self, array, pieces) -> jax.Array:
        """The array after the stages have sent `pieces` of their elements to each other."""
        if self.schedule.rounds == 1:
            return array

        def send(piece, pairs):
            self._record("ppermute", crossed(pairs, self.axes, self._scope.sizes), piece)
            return collectives.ppermute(piece, self.axes, pairs)

        def passed(array):
            stages = self.schedule.stages
            with jax.named_scope(self.op.tag):
                return window_arrays.exchanged(array, 0, self.axes, stages, pieces, self.size, send)

        return window_arrays.of_words(passed, array)

    def hand_on(self, tree, op: Op):
        """Every array of `tree`, sent to the next stage.

        The last stage sends its arrays to the first one if there are several rounds, or if results
        are handed out; otherwise to none.
        """
        stages = self.schedule.stages
        pairs = [(i, (i + 1) % stages) for i in range(stages)]
        ring = self.schedule.rounds > 1 or self.schedule.hands_out
        return self._sent(tree, pairs if ring else pairs[:-1], op)

    def hand_out(self, tree, op: Op):
        """Every array of `tree`, sent to the next stage: results that started from stage 0."""
        return self._sent(tree, [(i, i + 1) for i in range(self.schedule.stages - 2)], op)

    def _sent(self, tree, pairs: list[tuple[int, int]], op: Op):
        across = crossed(pairs, self.axes, self._scope.sizes)

        def send(array):
            backward = "ppermute" if jnp.issubdtype(array.dtype, jnp.inexact) else ""
            why = str(self.rule)
            record(op, self._scope, "ppermute", across, nbytes(array), why, backward)
            return collectives.ppermute(array, self.axes, pairs)

        with jax.named_scope(op.tag):
            return jax.tree.map(lambda array: window_arrays.of_words(send, array), tree)

    def _record(self, operation: str, axes, array, backward: str | None = None) -> None:
        size, why = nbytes(array), str(self.rule)
        backward = operation if backward is None else backward
        record(self.op, self._scope, operation, axes, size, why, backward)

    def gathered(self, array) -> jax.Array:
        """All elements, in their order, of an array of which each stage has its own elements.

        They lie along the first position.
        """

        def gathered(array):
            self._record("all_gather", self.axes, array, "")
            with jax.named_scope(self.op.tag):
                return collectives.all_gather(array, self.axes, 0, varies=False)

        return window_arrays.of_words(gathered, array)[: self.dim.size]

    def of_last(self, array) -> jax.Array:
        """The last stage's array as a sum over all stages: zeros on all others."""
        last = self.number == self.schedule.stages - 1
        return jnp.where(last, array, jnp.zeros((), array.dtype))

    def outside(self, x: Tensor, at: int) -> Tensor:
        """`x`, of which each stage has its share of the rows, with the placement that says so.

        Args:
          at: the position of the dim of microbatches.
        """
        axes = list(x.placement.axes)
        axes[at] = (*axes[at], *self.axes)
        return x.replace(placement=x.placement._replace(axes=tuple(axes)))

    def from_last(self, array) -> jax.Array:
        """The last stage's array, on all devices."""

        def summed(array):
            self._record("psum", self.axes, array, "")
            with jax.named_scope(self.op.tag):
                return collectives.psum(self.of_last(array), self.axes)

        return window_arrays.of_words(summed, array)
