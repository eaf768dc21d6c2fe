"""What the law promises of each kind of parallelism, counted in collectives of small programs."""

import jax
import jax.numpy as jnp
import pytest

import meshdsl as md
from meshdsl.lowering.lower import gather_updated
from meshdsl.program import summary
from meshdsl.program.jaxpr import sub_jaxprs
from tests.helpers import assert_same, data, dims, layout, weight

BATCH, LENGTH, D, FF, HEADS, KEY, LAYERS, MICRO = dims(
    batch=8, length=8, d_model=16, d_ff=32, heads=8, head_dim=4, layers=3, micro=4
)
X = data(BATCH, LENGTH, D)
UP, DOWN = weight(D, FF, ins=(D,), seed=1), weight(FF, D, ins=(FF,), seed=2)
Q, K, V = (weight(D, HEADS, KEY, ins=(D,), seed=i) for i in (3, 4, 5))
O = weight(HEADS, KEY, D, ins=(HEADS, KEY), seed=6)
WEIGHTS, ATTENTION = (UP, DOWN), (Q, K, V, O)
STACK = (weight(LAYERS, D, FF, ins=(D,), seed=1), weight(LAYERS, FF, D, ins=(FF,), seed=2))


def mlp(weights, x):
    up, down = weights
    return md.einsum(md.gelu(md.einsum(x, up, out=(..., FF))), down, out=(..., D))


def attention(weights, x):
    q, k, v, o = weights
    memory = md.Dim("memory", LENGTH.size)
    query, key, value = (md.einsum(x, w, out=(..., HEADS, KEY)) for w in (q, k, v))
    key, value = md.rename(key, LENGTH, memory), md.rename(value, LENGTH, memory)
    weights = md.softmax(md.einsum(query, key, out=(BATCH, HEADS, LENGTH, memory)), memory)
    return md.einsum(md.einsum(weights, value, out=query.dims), o, out=x.dims)


def stacked(weights, x):
    layer = md.checkpoint(lambda x, weights: (x + mlp(weights, x), ()))
    return md.scan(layer, x, weights, dim=LAYERS)[0]


def step(fn, accumulate=None):
    """Loss and gradients of `fn`."""
    return md.value_and_grad(lambda w, x: md.mean(md.square(fn(w, x))), accumulate=accumulate)


def without_scalars(fn, *args, layout, dims=(), phase=None):
    """How often each collective runs, but for those of a single number, such as the loss."""
    program = md.lower(fn, layout, dims=[*dims, "memory"]).program(*args)
    assert all(program.op_of(c) for c in program.collectives)
    found = [c for c in program.collectives if c.bytes > 4 and phase in (None, c.phase)]
    return {key: count for key, (count, _) in summary(found).items()}


DATA = layout("batch -> data", mesh={"data": 4})
FSDP = layout("batch -> data", mesh={"data": 4}, parameters=["d_model -> data"])
ZERO1 = layout("batch -> data", mesh={"data": 4}, optimizer=["d_model -> data"])
TENSOR = layout("heads?, d_ff? -> model", mesh={"model": 4})
SEQUENCE = layout("heads?, d_ff? -> model", "length -> model", mesh={"model": 4})
HYBRID = layout(
    "batch -> replica, data", mesh={"replica": 2, "data": 4}, parameters=["d_model -> data"]
)
ALL = dict(data=DATA, fsdp=FSDP, zero1=ZERO1, tensor=TENSOR, sequence=SEQUENCE, hybrid=HYBRID)


@pytest.mark.parametrize("rules", ALL.values(), ids=ALL)
def test_every_parallelism_is_the_same_as_one_device(rules):
    both = lambda x, *weights: stacked(weights[4:], attention(weights[:4], x))
    loss = lambda *args: md.mean(md.square(both(*args)))
    assert_same(loss, X, *ATTENTION, *STACK, layout=rules)


def test_data_parallel_sums_each_gradient_once_per_step():
    xs = data(MICRO, BATCH, LENGTH, D)
    for fn, weights in ((mlp, WEIGHTS), (stacked, STACK)):
        for run, x in ((step(fn), X), (step(fn, MICRO), xs)):
            assert without_scalars(run, weights, x, layout=DATA) == {("psum", ("data",)): 2}


def test_fsdp_gathers_each_weight_once_per_pass():
    found = without_scalars(step(stacked), STACK, X, layout=FSDP)
    n = 2 * LAYERS.size
    assert found == {("all_gather", ("data",)): 2 * n, ("psum_scatter", ("data",)): n}
    phases = {
        phase: without_scalars(step(stacked), STACK, X, layout=FSDP, phase=phase)
        for phase in ("forward", "recompute")
    }
    assert phases == {phase: {("all_gather", ("data",)): n} for phase in phases}


def test_zero1_scatters_gradients_and_gathers_updates():
    assert without_scalars(step(mlp), WEIGHTS, X, layout=ZERO1) == {("psum_scatter", ("data",)): 2}
    update = gather_updated(ZERO1, md.make_mesh(ZERO1), dims=("batch",))
    found = summary(update.program(WEIGHTS).collectives)
    assert {key: n for key, (n, _) in found.items()} == {("all_gather", ("data",)): 2}


def test_tensor_parallel_sums_once_forward_and_once_backward_per_pair_of_matrices():
    assert without_scalars(mlp, WEIGHTS, X, layout=TENSOR) == {("psum", ("model",)): 1}
    assert without_scalars(attention, ATTENTION, X, layout=TENSOR) == {("psum", ("model",)): 1}
    grad = lambda x, *w: md.value_and_grad(lambda x: md.mean(md.square(mlp(w, x))))(x)
    assert without_scalars(grad, X, *WEIGHTS, layout=TENSOR) == {("psum", ("model",)): 2}


def test_sequence_parallel_gathers_once_for_q_k_and_v():
    expected = {("all_gather", ("model",)): 1, ("psum_scatter", ("model",)): 1}
    assert without_scalars(attention, ATTENTION, X, layout=SEQUENCE) == expected
    assert without_scalars(mlp, WEIGHTS, X, layout=SEQUENCE) == expected
    grad = lambda x, *w: md.value_and_grad(lambda x: md.mean(md.square(attention(w, x))))(x)
    twice = {key: 2 * n for key, n in expected.items()}
    assert without_scalars(grad, X, *ATTENTION, layout=SEQUENCE) == twice


def test_hybrid_reduces_over_replicas_on_the_shard():
    program = md.lower(step(mlp), HYBRID).program(WEIGHTS, X)
    found = [
        (c.operation, c.axes, c.bytes)
        for c in program.collectives
        if c.operation != "all_gather" and c.bytes > 4
    ]
    whole, shard = UP.size * 4, UP.size
    assert sorted(found) == sorted(
        2 * [("psum_scatter", ("data",), whole), ("psum", ("replica",), shard)]
    )


def test_the_gradient_of_what_is_gathered_is_summed_over_other_axes_on_the_part():
    """A tensor is gathered over `a` for a loop that is split over `b` too."""
    rules = layout("d_ff -> a", "heads -> b", "length -> a", mesh={"a": 2, "b": 4})
    x, w = data(LENGTH, D), data(D, FF, HEADS, seed=2)
    loss = lambda x: md.mean(md.square(md.einsum(md.sin(x), w, out=(LENGTH, FF, HEADS))))
    program = md.lower(md.value_and_grad(loss), rules).program(x)
    found = [(c.operation, c.axes, c.bytes) for c in program.collectives if c.bytes > 4]
    gathered, part = x.size * 4, x.size * 4 // 2
    assert found == [
        ("all_gather", ("a",), gathered),
        ("psum_scatter", ("a",), gathered),
        ("psum", ("b",), part),
    ]


def test_sum_of_two_pending_costs_one_reduction():
    run = lambda w, a, x: x + mlp(w, x) + attention(a, x)
    assert without_scalars(run, WEIGHTS, ATTENTION, X, layout=TENSOR) == {("psum", ("model",)): 2}
    run = lambda w, a, x: x + (mlp(w, x) + attention(a, x))
    assert without_scalars(run, WEIGHTS, ATTENTION, X, layout=TENSOR) == {("psum", ("model",)): 1}


def test_parameters_follow_at_rest_split_through_cast():
    run = lambda w, x: mlp([md.cast(p, jnp.bfloat16) for p in w], md.cast(x, jnp.bfloat16))
    program = md.lower(run, FSDP).program(WEIGHTS, X)
    gathers = [c for c in program.collectives if c.operation == "all_gather"]
    assert [(c.dtype, c.bytes) for c in gathers] == 2 * [("bfloat16", UP.size * 2)]


def test_a_moved_tensor_is_shared_by_every_op_that_wants_it_so():
    rules = layout("d_ff -> model", "length -> model", mesh={"model": 4})
    twice = lambda w, x: mlp(w, x) + md.einsum(x, w[0], w[0], out=x.dims)
    assert without_scalars(twice, WEIGHTS, X, layout=rules)["all_gather", ("model",)] == 1


def test_context_parallel_gathers_keys_and_values_and_nothing_else():
    rules = layout("length -> context", mesh={"context": 4})
    assert without_scalars(attention, ATTENTION, X, layout=rules) == {
        ("all_gather", ("context",)): 2
    }


def test_upper_rules_win():
    rules = layout("length -> m", "batch -> m", mesh={"m": 4})
    assert md.lower(md.square, rules)(X).split == {LENGTH: ("m",)}


@pytest.mark.parametrize(
    "mesh", [{"data": 1, "model": 4}, {"model": 4, "data": 1}, {"data": 1, "model": 1}]
)
def test_axes_of_one_device_cost_nothing(mesh):
    rules = layout(
        "batch -> data",
        "d_ff -> model",
        "length -> model",
        mesh=mesh,
        parameters=["d_model -> data"],
    )
    program, _ = assert_same(lambda x, *w: mlp(w, x), X, *WEIGHTS, layout=rules)
    assert not [c for c in program.collectives if "data" in c.axes]
    assert not [m for op in program.ops for m in op.moves if m.axes == ("data",)]


def test_every_move_states_its_rule_and_the_users_line():
    program = md.lower(mlp, SEQUENCE, dims=("heads",)).program(WEIGHTS, X)
    moves = [
        (op, move)
        for op in program.ops
        for move in op.moves
        if move.operation in ("all_gather", "psum_scatter")
    ]
    assert [(op.name, m.operation) for op, m in moves] == [
        ("einsum", "all_gather"),
        ("settle", "psum_scatter"),
    ]
    assert "layout, rule 1: heads?, d_ff? -> model" in moves[0][1].why
    assert "layout, rule 2: length -> model" in moves[1][1].why
    assert all(op.source[0] == __file__ for op in program.ops if op.name == "einsum")
    table = program.table()
    assert (
        "all_gather(model)" in table
        and "einsum[batch, length_model" not in table
        and "test_law.py:" in table
    )


def test_a_lowered_function_takes_arguments_split_in_any_way():
    lowered = md.lower(lambda x: md.square(x), layout("batch -> m", mesh={"m": 4}))
    expected = lowered(X)
    for spec in (jax.P("m"), jax.P(None, "m"), jax.P()):
        array = jax.device_put(X.array, jax.NamedSharding(lowered.mesh, spec))
        assert lowered(md.tensor(array, X.dims)).array.sharding == expected.array.sharding


def barriers(jaxpr) -> list[set[tuple[int, ...]]]:
    """The shapes that each barrier of a jaxpr is around, where it is around several arrays."""
    found = []
    for e in jaxpr.eqns:
        if e.primitive.name == "optimization_barrier" and len(e.invars) > 1:
            found.append({v.aval.shape for v in e.invars})
        found += [shapes for inner in sub_jaxprs(e.params) for shapes in barriers(inner)]
    return found


def test_gradients_of_a_large_result_are_made_together():
    """So a compiler does not keep that of the hidden units until it makes that of `up`."""
    scale, x = weight(D, ins=()), data(BATCH, md.Dim("length", 32), D)
    loss = lambda w, x: md.mean(md.square(mlp(w[:2], md.tanh(x * w[2]))))
    program = md.lower(md.value_and_grad(loss), FSDP).program((UP, DOWN, scale), x)
    assert barriers(program.jaxpr.jaxpr) == [{(2, 32, 16), (16, 32)}]  # and none for `down`
    assert_same(md.value_and_grad(loss), (UP, DOWN, scale), x, layout=FSDP)


def test_what_has_no_gradient_is_not_waited_for():
    x = data(BATCH, md.Dim("length", 32), D)
    program = md.lower(step(mlp), FSDP).program(WEIGHTS, x)
    assert barriers(program.jaxpr.jaxpr) == []
