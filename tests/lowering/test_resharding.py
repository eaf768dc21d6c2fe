"""Changes from one split to another.

They are found for every pair of placements of three axes on three dims, and run for some.
"""

from itertools import combinations, combinations_with_replacement, permutations
from math import prod

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jax import lax
from jax.sharding import PartitionSpec

from meshdsl import Layout, make_mesh
from meshdsl.lowering import collectives
from meshdsl.lowering.moves.turns import legs_between
from meshdsl.lowering.scope import Scope
from meshdsl.lowering.shardings import partition_spec
from meshdsl.lowering.way import Way
from meshdsl.splits.changes import Change, changes
from tests.helpers import dims

AXES = {"a": 2, "b": 2, "c": 2}
DIMS = dims(x=8, y=8, z=8)
SPLITS = [
    (order[:i], order[i:j], order[j:])
    for n in range(len(AXES) + 1)
    for order in permutations(AXES, n)
    for i, j in combinations_with_replacement(range(n + 1), 2)
]
STARTS = [
    (split, pending)
    for split in SPLITS
    for free in [[axis for axis in AXES if axis not in sum(split, ())]]
    for n in range(len(free) + 1)
    for pending in combinations(free, n)
]


def after(step: Change, split, pending):
    """The placement that a step leads to; an assertion fails where the step is not possible."""
    split, pending = [list(axes) for axes in split], set(pending)
    if step.operation in ("psum", "psum_scatter"):
        assert pending.issuperset(step.axes)
        pending -= set(step.axes)
    if step.operation == "slice":
        assert pending.isdisjoint(step.axes) and not {
            a for axes in split for a in axes
        }.intersection(step.axes)
    if step.operation == "all_to_all":
        assert split[step.source] is not split[step.dim]
    if step.operation in ("all_to_all", "all_gather"):
        source = split[step.source if step.operation == "all_to_all" else step.dim]
        assert tuple(source[-len(step.axes) :]) == step.axes
        del source[-len(step.axes) :]
    if step.operation in ("psum_scatter", "slice", "all_to_all"):
        split[step.dim] += step.axes
    if step.operation == "ppermute":
        assert tuple(split[step.dim]) == step.axes and set(step.order) == set(step.axes)
        split[step.dim] = list(step.order)
    return tuple(map(tuple, split)), tuple(a for a in AXES if a in pending)


def without_gather(start, then) -> bool:
    """Whether `then` can be reached by steps that only ever put an axis where it is to stay."""
    seen, todo = {start}, [start]
    while todo:
        split, pending = todo.pop()
        for axis in AXES:
            at = [dim for dim, axes in enumerate(split) if axes[-1:] == (axis,)]
            inside = axis in sum(split, ()) and not at
            steps = [Change("psum", (axis,))] if axis in pending else []
            for dim, want in enumerate(then):
                if want[: len(split[dim]) + 1] == (*split[dim], axis) and not inside:
                    moved = (
                        Change("psum_scatter", (axis,), dim)
                        if axis in pending
                        else Change("slice", (axis,), dim)
                    )
                    steps.append(Change("all_to_all", (axis,), dim, at[0]) if at else moved)
            reached = {after(step, split, pending) for step in steps} - seen
            seen |= reached
            todo += reached
    return (then, ()) in seen


@pytest.mark.parametrize("then", SPLITS, ids=str)
def test_every_plan_arrives_and_gathers_only_where_it_must(then):
    for start in STARTS:
        steps, place = changes(start[0], then, start[1]), start
        for step in steps:
            place = after(step, *place)
        assert place == (then, ())
        assert len(steps) <= 8
        if any(step.operation == "all_gather" for step in steps):
            assert not without_gather(start, then), (start, steps)


def contributions(x, pending, scope):
    """The term of this device, unlike all others, in a sum over `pending` whose total is `x`."""
    n = scope.parts(pending)
    mine = lax.axis_index(pending)
    return jnp.where(mine > 0, 3 * x + mine, x - 3 * (n - 1) * x - n * (n - 1) // 2)


@given(st.sampled_from(STARTS), st.sampled_from(SPLITS))
def test_steps_move_real_data_exactly(start, then):
    split, pending = start
    layout = Layout(mesh=AXES)
    mesh, scope = make_mesh(layout), Scope(layout, AXES, "test")
    whole = np.arange(prod(d.size for d in DIMS), dtype=np.int32).reshape([d.size for d in DIMS])

    def move(x):
        x = contributions(x, pending, scope) if pending else x
        op = scope.recorder.begin("move", DIMS, split)
        legs = legs_between(DIMS, split, then, scope, pending)
        return Way(legs, scope, str).go(x, op)

    moved = jax.jit(
        jax.shard_map(
            move, mesh=mesh, in_specs=partition_spec(split), out_specs=partition_spec(then)
        )
    )(whole)
    np.testing.assert_array_equal(moved, whole)


def test_what_travels_in_an_all_to_all_is_hidden_from_the_compiler_in_both_passes():
    def loss(x):
        return jnp.sum(jnp.sin(collectives.all_to_all(x, ("a",), 0, 1)) ** 2)[None]

    spec = PartitionSpec(None, "a")
    grad, mesh = jax.grad(lambda x: loss(x)[0]), make_mesh(Layout(mesh=AXES))
    summed = jax.shard_map(grad, mesh=mesh, in_specs=spec, out_specs=spec)
    (body,) = [eqn.params["jaxpr"] for eqn in jax.make_jaxpr(summed)(jnp.ones((4, 4))).eqns]
    made = {id(var): eqn.primitive.name for eqn in body.eqns for var in eqn.outvars}
    sent = [made.get(id(eqn.invars[0])) for eqn in body.eqns if eqn.primitive.name == "all_to_all"]
    assert sent == ["hidden_on_cpu"] * 2
