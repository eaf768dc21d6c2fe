"""value_and_grad gives the gradients of jax.grad under every layout, accumulated or not."""

from itertools import cycle

import jax
import jax.numpy as jnp
import pytest

import meshdsl as md
from tests.helpers import (
    assert_by_law,
    assert_equal,
    assert_same,
    data,
    dims,
    distance,
    every,
    integers,
    weight,
)

BATCH, D, C, MICRO = dims(batch=8, d=8, c=4, micro=4)
X, XS, IDS = data(BATCH, D), data(MICRO, BATCH, D, seed=1), integers(MICRO, BATCH, below=4)
W, B = weight(D, C, ins=(D,), seed=2), weight(C, seed=3)
MESHES = ({"m": 2, "n": 4}, {"n": 4, "m": 2})
RULES = {
    "data": dict(rules=["batch -> m"]),
    "fsdp": dict(rules=["batch -> m"], parameters=["d -> m"]),
    "zero1": dict(rules=["batch -> n"], optimizer=["d -> n", "c -> m"]),
    "tensor": dict(rules=["c -> n", "batch -> m"]),
    "features": dict(rules=["d -> n", "c -> m"]),
    "hybrid": dict(rules=["batch -> m, n"], parameters=["d -> n"]),
    "microbatches take the axis": dict(
        rules=["micro? -> n", "batch -> n", "d -> m"], parameters=["c -> n"]
    ),
}
LAYOUTS = {
    name: md.Layout(**rules, mesh=mesh)
    for (name, rules), mesh in zip(RULES.items(), cycle(MESHES), strict=False)
}


def loss(params, x, ids=None):
    w, b = params
    logits = md.tanh(md.einsum(x, w, out=(..., C)) + b)
    target = md.one_hot(ids, C) if ids is not None else 0.5
    regular = md.sum(md.square(w)) * 0.01 + md.max(b)
    return md.mean(md.square(logits - target)) + regular, {
        "logits": md.mean(logits, BATCH),
        "largest": md.max(logits),
    }


@every(LAYOUTS, "data", "fsdp", "features", "tensor", "hybrid")
def test_gradients_and_aux_are_the_same_lowered(rules):
    mesh = md.make_mesh(rules)
    for accumulate, args in ((None, (X,)), (MICRO, (XS, IDS))):
        run = md.value_and_grad(loss, has_aux=True, accumulate=accumulate)
        expected = run((W, B), *args)
        (value, aux), grads = found = md.lower(run, rules, mesh, dims=("micro",))((W, B), *args)
        assert_equal(found, expected)
        assert_by_law(grads, rules, mesh, "optimizer")
        assert_by_law((value, aux), rules, mesh)
        assert [g.role for g in grads] == [W.role, B.role]


def test_gradients_are_those_of_jax():
    theirs = jax.grad(lambda w: jnp.mean(jnp.tanh(X.array @ w) ** 2))(W.array)
    _, grad = md.value_and_grad(
        lambda w: md.mean(md.square(md.tanh(md.einsum(X, w, out=(BATCH, C)))))
    )(W)
    assert grad.dims == W.dims and distance(grad.array, theirs) < 1e-6


def test_accumulated_gradients_are_the_mean_over_microbatches():
    (value, aux), grads = md.value_and_grad(loss, has_aux=True, accumulate=MICRO)((W, B), XS, IDS)
    each = [
        md.value_and_grad(loss, has_aux=True)(
            (W, B), md.tensor(XS.array[i], (BATCH, D)), md.tensor(IDS.array[i], (BATCH,))
        )
        for i in range(MICRO.size)
    ]
    mean = jax.tree.map(lambda *a: sum(a) / len(a), *each)
    assert_equal(((value, aux), grads), mean)


USES = {
    "used twice, once over the batch": lambda w, x: (
        md.mean(md.einsum(x, w, out=(BATCH, C))) + md.sum(md.square(w))
    ),
    "not used": lambda w, x: md.mean(x) + md.sum(w * 0.0),
    "returned": lambda w, x: (md.mean(md.einsum(x, w, w * 2.0, out=(BATCH,))), w),
    "only itself": lambda w, x: md.sum(md.square(w)) + md.max(w) + md.sum(md.softmax(w, C) * w),
    "through a cast": lambda w, x: md.mean(
        md.einsum(md.cast(x, jnp.float16), md.cast(w, jnp.float16), out=(BATCH, C))
    ),
    "scanned": lambda w, x: md.sum(
        md.scan(lambda h, row: (md.tanh(h * row), ()), md.mean(x), md.sum(w, C), dim=D)[0]
    ),
    "carried and met": lambda w, x: md.sum(
        md.scan(
            lambda h, r: (h * md.cos(r), ()),
            md.sum(w, D),
            md.einsum(x, w, out=(BATCH, C)),
            dim=BATCH,
        )[0]
    ),
    "by cond": lambda w, x: md.cond(
        md.sum(x) > 0, lambda: md.mean(md.einsum(x, w, out=(BATCH, C))), lambda: md.sum(w)
    ),
    "as a table": lambda w, x: md.sum(md.take(w, md.cast(md.mean(x, D) * 40.0, jnp.int32), D)),
}


@every(LAYOUTS, "data", "fsdp", "features", "tensor", "hybrid")
def test_parameters_may_be_used_in_every_way(rules):
    run = lambda w, x, v: {
        name: fn(w if i % 2 else v, x) for i, (name, fn) in enumerate(USES.items())
    }
    assert_same(run, W, X, weight(D, C, seed=5), layout=rules, dims=("micro",), tolerance=1e-3)


def test_parameters_that_are_closed_over_have_gradients_too():
    rules = LAYOUTS["zero1"]
    run = lambda x: md.value_and_grad(lambda w, x: md.mean(md.einsum(x, w, out=(BATCH, C))))(W, x)
    assert_equal(md.lower(run, rules)(X), run(X))


@pytest.mark.parametrize("name", ["fsdp", "tensor"])
def test_second_derivatives_are_the_same_lowered_and_recorded(name):
    value = lambda w, x: md.mean(md.square(md.tanh(md.einsum(x, w, out=(BATCH, C)))))
    assert_same(
        lambda x, w: md.value_and_grad(value)(w, x)[1],
        X,
        W,
        layout=LAYOUTS[name],
        dims=("micro",),
        level="optimizer",
    )


def test_a_gradient_within_may_end_a_guess_of_the_function_around_it():
    """`w`, which cannot lie split, was guessed to vary over `n` in all of its uses."""
    six = md.Dim("six", 6)
    value = lambda w, x: md.sum(md.tanh(w * x))
    rules = md.Layout(["six -> n"], mesh={"n": 4}, uneven="pad")
    fn = lambda x, w: md.value_and_grad(value)(w, x)[1]
    assert_same(fn, data(D, six), weight(six), layout=rules, level="optimizer")


@pytest.mark.parametrize("penalty, times", [(False, 1), (True, 2)], ids=["data", "penalty"])
def test_the_function_is_traced_once_unless_a_parameter_meets_no_data(penalty, times):
    """With a penalty on a parameter alone it does not vary over the axes that split the data.

    Then the first trace stops there, and the second one knows.
    """
    traces = []

    def value(w, x):
        traces.append(None)
        total = md.mean(md.square(md.einsum(x, w, out=(BATCH, C))))
        return total + md.sum(md.square(w)) if penalty else total

    layout = md.Layout(["batch -> m", "c -> n"], mesh={"m": 2, "n": 4})
    md.lower(md.value_and_grad(value), layout).trace(W, X)
    assert len(traces) == times
    assert_same(md.value_and_grad(value), W, X, layout=layout, gradients=False, level="optimizer")


def test_a_step_that_takes_parts_of_its_gradients_is_traced_once():
    traces = []

    def value(w, x):
        traces.append(None)
        return md.mean(md.square(md.einsum(x, w, out=(BATCH, C))))

    def step(w, x):
        traces.append(None)
        loss, grad = md.value_and_grad(value)(w, x)
        return loss, jax.tree.map(lambda w, g: w - 0.1 * g, w, grad)

    lowered = md.lower(step, md.Layout(["batch -> m"], ["c -> m"], mesh={"m": 2}))
    lowered.trace(W, X)
    assert len(traces) == 2
    lowered(W, X)
    assert len(traces) == 4


def test_ops_of_a_custom_gradient_are_recorded_once():
    """JAX traces the function for its value, and again for its gradient."""

    @md.custom_gradient
    def scaled(x):
        return md.einsum(x, W, out=(BATCH, C)), lambda ct: md.einsum(ct, W, out=(BATCH, D))

    layout = md.Layout(["batch -> m", "d -> n"], mesh={"m": 2, "n": 4})
    run = md.value_and_grad(lambda x: md.mean(scaled(x)))
    program = md.lower(run, layout).program(md.parameter(X.array, X.dims))
    names = [op.name for op in program.ops]
    assert names.count("einsum") == 2  # the value and the backward function, once each
