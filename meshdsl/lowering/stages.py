"""The stages of a pipeline: devices that have a part of the elements of a dim each, in turn.

`ops.pipeline` runs them; here is what moves between them. Outside of the pipeline the elements lie
as the law says, in runs: so parameters at rest, and checkpoints, know nothing of rounds. Where each
stage has several chunks of the elements they are dealt on the way in.
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
      dim: whose elements they hold.
      axes: over which they lie.
      rule: of the layout, which says so.
      schedule: which stage works on what, when.
      size: how many elements each has, with padding.
      op: of the pipeline, in whose record stands what is moved once.
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
        """The number of the stage that this device is of."""
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
        """`x`, settled and with the dim in front, as this stage's elements of it.

        The law splits the other dims for one element. A parameter stays in the dtype in which it is
        kept, so that its gradient is summed over microbatches in that dtype.
        """
        scope, level = self._scope, x.placement.level if x.placement else "rules"
        split = (self.axes, *scope.split(without(x.dims, (self.dim,)), level))
        if x.placement is None or x.placement.axes != split:
            dtypes = x.placement and x.placement.dtypes
            x = self._moved(resharding.plain(x) if copy_of(x) is not None else x, split, dtypes)
        copy = copy_of(x)
        entered = x.replace(array=self.deal(self._filled(x.stored)))
        return entered if copy is None else with_copy(entered, self.enter(copy))

    def _moved(self, x: Tensor, split, dtypes) -> Tensor:
        """`x` in another split, in the dtype in which it is kept."""
        if dtypes is not None:
            x = x.replace(placement=x.placement._replace(dtypes=None))
        why = lambda _: str(self.rule)
        x = resharding.reshard(x, split, self._scope, self.op, why, varies=self._scope.spent)
        return x.replace(placement=x.placement._replace(dtypes=dtypes))

    def _filled(self, array) -> jax.Array:
        """`array` with copies of the first element, on which layers behave, for padding."""
        if not self.padded:
            return array
        loop = DeviceLoop({self.dim: self.axes}, self._scope, self.op)

        def filled(array):
            first = jnp.where(self.number == 0, lax.stop_gradient(array[:1]), 0).astype(array.dtype)
            first = collectives.vary(loop.psum(first, self.dim), collectives.varying(array))
            inside = loop.inside((self.dim,)).reshape(-1, *(1,) * (array.ndim - 1))
            return jnp.where(inside, array, first)

        return window_arrays.of_words(filled, array)

    def of_all(self, array) -> jax.Array:
        """This stage's elements of an array that has all of them in front, on every device."""
        schedule, chunks = self.schedule, self.schedule.rounds * self.schedule.stages
        order = np.arange(chunks).reshape(schedule.rounds, schedule.stages).T
        indices = order.reshape(-1, 1) * self.chunk + np.arange(self.chunk)
        dealt = array[np.minimum(indices.ravel(), self.dim.size - 1)]
        return lax.dynamic_slice_in_dim(dealt, self.number * self.size, self.size)

    def deal(self, array) -> jax.Array:
        """A run of elements of each stage becomes every so manieth chunk of them."""
        return self._passed(array, self.schedule.deal(self.chunk))

    def collect(self, array) -> jax.Array:
        """The inverse of `deal`."""
        return self._passed(array, self.schedule.collect(self.chunk))

    def _passed(self, array, pieces) -> jax.Array:
        """The array after the stages have passed chunks to each other, each in its place."""
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

        The last one sends its own to the first, with rounds, and where results are handed out.
        """
        stages = self.schedule.stages
        pairs = [(i, (i + 1) % stages) for i in range(stages)]
        ring = self.schedule.rounds > 1 or self.schedule.hands_out
        return self._sent(tree, pairs if ring else pairs[:-1], op)

    def hand_out(self, tree, op: Op):
        """Every array of `tree`, results on their way from stage 0, sent to the next stage."""
        return self._sent(tree, [(i, i + 1) for i in range(self.schedule.stages - 2)], op)

    def _sent(self, tree, pairs: list[tuple[int, int]], op: Op):
        across = crossed(pairs, self.axes, self._scope.sizes)

        def send(array):
            backward = "ppermute" if jnp.issubdtype(array.dtype, jnp.inexact) else ""
            how = (nbytes(array), str(self.rule), backward)
            record(op, self._scope, "ppermute", across, *how)
            return collectives.ppermute(array, self.axes, pairs)

        with jax.named_scope(op.tag):
            return jax.tree.map(lambda array: window_arrays.of_words(send, array), tree)

    def _record(self, operation: str, axes, array, backward: str | None = None) -> None:
        size, why = nbytes(array), str(self.rule)
        backward = operation if backward is None else backward
        record(self.op, self._scope, operation, axes, size, why, backward)

    def gathered(self, array) -> jax.Array:
        """All elements, in front, of an array of which each stage has its own; in their order."""

        def gathered(array):
            self._record("all_gather", self.axes, array, "")
            with jax.named_scope(self.op.tag):
                return collectives.all_gather(array, self.axes, 0, varies=False)

        return window_arrays.of_words(gathered, array)[: self.dim.size]

    def of_last(self, array) -> jax.Array:
        """What the last stage has of an array: a sum over all stages, to which others add zeros."""
        last = self.number == self.schedule.stages - 1
        return jnp.where(last, array, jnp.zeros((), array.dtype))

    def outside(self, x: Tensor, at: int) -> Tensor:
        """`x`, of which each stage has its share of the rows, as it is outside of the pipeline.

        Args:
          at: the position of the dim of microbatches.
        """
        axes = list(x.placement.axes)
        axes[at] = (*axes[at], *self.axes)
        return x.replace(placement=x.placement._replace(axes=tuple(axes)))

    def from_last(self, array) -> jax.Array:
        """What the last stage has of an array, on all devices."""

        def summed(array):
            self._record("psum", self.axes, array, "")
            with jax.named_scope(self.op.tag):
                return collectives.psum(self.of_last(array), self.axes)

        return window_arrays.of_words(summed, array)
