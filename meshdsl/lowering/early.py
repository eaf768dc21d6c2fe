"""Pipelines whose microbatches go back early: what follows the scan is traced for one microbatch.

JAX can differentiate a loop of ticks only as a whole: all microbatches go forward before the first
one goes back, and every one waits in memory meanwhile. Here each goes back as soon as its forward
pass has ended, see `splits.pipeline`. For that its loss must be known by then. So where a function
whose gradient is taken comes to such a scan, the scan does not run. It returns the carry of *one*
microbatch, and the rest of the function is traced for that one: to the law its rows are in turns,
as in the body of the scan, and the loss is a sum over the turns.

`differentiable` then cuts the jaxpr of the function where the scan stands: what comes before runs
once; the scan, and what follows it, run tick by tick, forward and back. The gradients are made in
the same loop as the loss, so the function has a derivative of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend import core as jex
from jax.extend.core import Primitive

from meshdsl import dims as dim_algebra
from meshdsl.dims import Dims
from meshdsl.errors import MeshDSLError
from meshdsl.lowering import collectives, repeats
from meshdsl.lowering.carried import Carried
from meshdsl.lowering.early_parts import Kind
from meshdsl.lowering.early_ticks import Ticks
from meshdsl.lowering.moves.turns import Turn
from meshdsl.lowering.scope import Scope
from meshdsl.program.jaxpr import body_of, cut_from, variables_of
from meshdsl.rules import Rule
from meshdsl.splits.changes import Split
from meshdsl.tensor import Tensor

# Stands for the scan in a jaxpr; `differentiable` replaces it.
SCAN = Primitive("early_pipeline")
SCAN.multiple_results = True
SCAN.def_abstract_eval(lambda *_, parts: list(parts.types))


class Rest:
    """What is traced after an early pipeline, in a function whose gradient is taken.

    Attributes:
      axis: the axis of the turns; empty before there is such a pipeline.
      kinds: how each result of the function comes from those of the microbatches.
    """

    def __init__(self, scope: Scope):
        self._scope, self._stack = scope, ExitStack()
        self._state, self._spent = collectives.trace_state(), scope.spent
        self.axis = ""
        self.kinds: list[Kind] = []

    def check(self, name: str, rule) -> None:
        """Raise a MeshDSLError unless a scan can be an early pipeline here."""
        if self.axis:
            raise MeshDSLError(
                f'{rule}: schedule = "early" is for one scan, whose loss each microbatch can tell '
                f"by itself, and this {name} comes after another one; leave it out"
            )
        if self._spent or self._state != collectives.trace_state():
            raise MeshDSLError(
                f'{rule}: schedule = "early" needs the rest of the function for each microbatch, '
                f"so this {name} cannot stand inside of another loop, of md.checkpoint or of a "
                "function that JAX transforms; leave it out"
            )

    def begins(self, cut: Rule, turn: Turn, unsplit: frozenset[tuple[str, str]]) -> None:
        """From now on rows are in turns, of which `turn` is this one, until the function ends.

        Args:
          cut, unsplit: as for `Scope.taking_turns`.
        """
        self.axis = cut.axis
        self._stack.enter_context(self._scope.recorder.repeated("microbatches", turn.count))
        self._stack.enter_context(self._scope.taking_turns(cut, turn, unsplit))

    def is_free(self, operands: Sequence[Tensor], outs: Sequence[Dims]) -> bool:
        """Whether an op of these operands is one of what follows, and runs once for all turns.

        It is the same in all turns, comes from no parameter that is differentiated, and makes
        nothing that is larger than its operands: the number of the rows that count, say. But what
        says for each row of all turns and each word whether it is the next one is made in each
        turn, for the rows of that turn.
        """
        axis, placed = self.axis, [t.placement for t in operands if t.placement is not None]
        in_turns = lambda p: axis in p.pending or any(axis in axes for axes in p.axes)
        if not axis or not placed or any(in_turns(p) or p.origin for p in placed):
            return False
        return sum(map(dim_algebra.size, outs)) <= sum(t.size for t in operands)

    @contextmanager
    def once(self):
        """Inside of the `with`, ops are those of all rows, as before the scan, and run once."""
        axis, self.axis = self.axis, ""
        try:
            with self._scope.out_of_turns(axis), self._scope.recorder.not_repeated():
                yield
        finally:
            self.axis = axis

    def of_turn(self, x: Tensor, split: Split) -> tuple[Tensor, Split, tuple[str, ...]]:
        """A result as it can be settled: without the sum over turns.

        Args:
          split: by the law.

        Returns:
          The Tensor; the split to settle it in, where rows are at home; and the axis of the turns,
          if the sum over it is left to take.
        """
        turn, axis = self._scope.turns[self.axis], self.axis
        home = lambda d, axes: (*turn.homes[d.name], axis) if axis in axes else axes
        split = tuple(home(d, axes) for d, axes in zip(x.dims, split, strict=True))
        pending = x.pending
        if axis not in pending:
            return x, split, ()
        left = tuple(a for a in pending if a != axis)
        return x.replace(placement=x.placement._replace(pending=left)), split, (axis,)

    def ended(self, result):
        """The results of the function, a carried tree, as those of all microbatches."""
        self._stack.close()
        if not self.axis:
            return result
        is_carried = lambda x: isinstance(x, Carried)
        leaves, tree = jax.tree.flatten(result, is_leaf=is_carried)
        return jax.tree.unflatten(tree, [self._whole(x) for x in leaves])

    def _whole(self, x):
        if not isinstance(x, Carried) or x.tensor.placement is None:
            if isinstance(x, (Carried, jax.Array, np.ndarray, np.generic)):
                self.kinds.append(Kind(False, None))
            return x
        x, axis = x.tensor, self.axis
        at = next((i for i, axes in enumerate(x.placement.axes) if axis in axes), None)
        if axis in x.pending and at is not None:
            raise MeshDSLError(
                f"a result {x} has rows, and is a sum over the rows of all microbatches too: with "
                'schedule = "early" it can be one of the two. Leave the schedule out'
            )
        self.kinds.append(Kind(axis in x.pending, at))
        without = lambda axes: tuple(a for a in axes if a != axis)
        placement = x.placement._replace(
            axes=tuple(map(without, x.placement.axes)), pending=without(x.pending)
        )
        return Carried(x.replace(placement=placement))


@contextmanager
def following(scope: Scope, allowed: bool):
    """Inside of the `with`, a scan may be an early pipeline, if `allowed`; gives the `Rest`."""
    outer, scope.rest = scope.rest, Rest(scope) if allowed else None
    rest = scope.rest or Rest(scope)
    try:
        yield rest
    finally:
        rest._stack.close()
        scope.rest = outer


def differentiable(closed: Any, kinds: Sequence[Kind], count: int) -> Callable:
    """A closed jaxpr in which an early pipeline stands, as a function of arrays.

    It returns a list of arrays, of which the first, the loss, can be differentiated. What does not
    depend on the scan runs once. But what follows the scan and depends on a parameter runs in each
    turn, so that gradients are added up in the dtype and in the split that the parameter has.

    Args:
      kinds: of its results.
      count: how many of its arguments are the parameters. They come first.
    """
    jaxpr = body_of(closed)
    place = next(i for i, e in enumerate(jaxpr.eqns) if e.primitive is SCAN)
    scan, parts = jaxpr.eqns[place], jaxpr.eqns[place].params["parts"]
    once, later, made = list(jaxpr.eqns[:place]), [], {*scan.outvars, *jaxpr.invars[:count]}
    for e in jaxpr.eqns[place + 1 :]:
        depends = not made.isdisjoint(variables_of(e.invars))
        (later if depends else once).append(e)
        made.update(e.outvars if depends else ())
    free = _free(later, jaxpr.outvars, scan.outvars)
    needed = list(dict.fromkeys([*variables_of(scan.invars), *free]))
    taken = [*jaxpr.constvars, *jaxpr.invars]
    before = repeats.shared(cut_from(jaxpr, taken, once, needed))
    rest = cut_from(jaxpr, [*scan.outvars, *free], later, jaxpr.outvars)
    ticks = Ticks(parts, rest, kinds, len(scan.invars))

    def run(*args):
        env = dict(zip(needed, before(*closed.consts, *args), strict=True))
        read = lambda v: jnp.asarray(v.val) if isinstance(v, jex.Literal) else env[v]
        return ticks(*map(read, scan.invars), *(env[v] for v in free))

    return run


def _free(equations, results, known) -> list:
    """The variables that equations, and the results after them, take from before; not the known."""
    defined, found = set(known), {}
    for e in equations:
        found |= dict.fromkeys(v for v in variables_of(e.invars) if v not in defined)
        defined.update(e.outvars)
    return list(found | dict.fromkeys(v for v in variables_of(results) if v not in defined))
