"""A scan over a dim that the layout splits into stages, run as a pipeline.

    rules = [{ rule = "layers -> stage", microbatches = { batch = 16 } }, ...]

Each stage, the devices with one position along `stage`, has a part of the layers. The carry of the
scan is cut into microbatches along `batch`: each device cuts the rows that it has, so nothing
moves. At each tick a stage runs its layers on one microbatch, and hands the result to the next
stage by one `ppermute`; `splits.pipeline` says which stage works on which microbatch. JAX
differentiates the loop of ticks as it stands.

To the law the microbatches are one more axis, which splits `batch` below all rules of the layout
and stands for turns of a loop instead of devices (`lowering.moves.turns`). So a tensor that the
body closes over is cut where it is used, random numbers are those of the whole batch, and a sum
over the batch is known to be one over all microbatches: if the body returns such a sum as a result,
it is added up over the ticks.

A stage that has to wait runs too: on a microbatch of the carry as it entered, and its results are
dropped. So no NaN arises that would not arise anyway.
"""

from __future__ import annotations

from collections.abc import Callable

import jax.numpy as jnp

from meshdsl.dims import Dim
from meshdsl.errors import MeshDSLError
from meshdsl.layout import Rule
from meshdsl.lowering import resharding
from meshdsl.lowering.scope import Scope
from meshdsl.lowering.stages import Stages
from meshdsl.ops.bodies import each, in_front, leaves_of
from meshdsl.ops.microbatches import (
    axes_of_stages,
    brought_home,
    home_of,
    is_shared,
    schedule_of,
)
from meshdsl.ops.pipeline_early import EarlyPipe
from meshdsl.ops.pipeline_loop import Pipe
from meshdsl.tensor import Tensor, is_tensor


def pipelined(
    name: str, fn: Callable, carry, xs, dim: Dim, scope: Scope, rule: Rule, *, reverse, unroll
):
    """The results of `scan`, computed by a pipeline.

    If the stages share the rows of the carry outside of the pipeline, the last carry is handed out
    to them; otherwise it is a sum that is pending over the stages.
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
        if schedule.microbatches % schedule.stages == 0 and not schedule.early:
            shared = all(is_shared(rule, *x, home, axes, scope) for x in outside)
            schedule = schedule._replace(hands_out=shared)
        op.schedule = schedule
        stages = Stages(dim, axes, rule, schedule, scope, op)
        entered = lambda x: stages.enter(x) if is_tensor(x) else stages.of_all(x)
        xs = each(entered, xs)
        if schedule.early:
            scope.rest.check(name, rule)
        pipe = (EarlyPipe if schedule.early else Pipe)(name, fn, stages, home, scope, unroll)
        last, ys = pipe.run(carry, xs)
        last = each(lambda x: _of_last(x, stages, scope, rule), last)
    if isinstance(pipe, EarlyPipe):
        pipe.go_on()
        return last, ys
    return last, each(lambda y: resharding.take_sums(y) if is_tensor(y) else y, ys)


def _noted(x: Tensor, axes: tuple[str, ...], scope: Scope) -> Tensor:
    """`x`, settled, after noting a use over all axes but those of its split and of the stages."""
    if x.placement is not None:
        own = {a for split in x.placement.axes for a in split}.union(axes)
        scope.note_use(x.placement.origin, scope.of_mesh(scope.sizes) - own)
    return resharding.take_sums(x)


def _of_last(x, stages: Stages, scope: Scope, rule: Rule):
    """A leaf of the carry as it leaves the pipeline.

    If results are handed out, each stage has its share of the rows. Otherwise only the last stage
    has the result, which is then a sum that is pending over the stages.
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
