"""jvp, vjp, hvp and custom gradients: those of JAX on one device, and the same lowered."""

import jax
import jax.numpy as jnp
import numpy as np

import meshdsl as md
from meshdsl.ops.calculus import hvp, jvp, vjp
from meshdsl.ops.checkpoint import checkpoint
from meshdsl.ops.custom_gradient import custom_gradient
from meshdsl.ops.over import over
from tests.helpers import (
    assert_by_law,
    assert_equal,
    assert_same,
    collectives,
    data,
    dims,
    every,
    integers,
    layout,
    weight,
)

A, B, E, T = dims(a=8, b=8, e=4, t=2)
X, ROW, V = data(A, B), data(B, seed=1), data(B, E, seed=7)
MIX, SCALE = weight(B, E, ins=(B,), seed=4), weight(E, seed=5)
IDS = integers(A, below=8)
LAYOUTS = {
    "data": layout("a -> m", mesh={"m": 4}),
    "fsdp": layout("a -> m", mesh={"m": 4}, parameters=["b -> m"]),
    "zero": layout("a -> m, n", mesh={"m": 2, "n": 2}, optimizer=["b -> n", "e -> m"]),
    "uneven": layout("a -> m", "e -> n", mesh={"m": 3, "n": 2}, uneven="pad"),
}
RULES = every({name: LAYOUTS[name] for name in ("zero", "uneven")}, "uneven")
ONE = md.tensor(1.0, ())
NAMES = ("a", "b", "e", "t")


def loss(params, x):
    w, s = params["w"], params["s"]
    y = md.softmax(md.einsum(x, w, out=(A, E)) * s, E)
    y = y + md.take(w, IDS, B)
    return md.mean(md.square(y)) + md.max(y) + md.sum(md.square(w)) * 0.1 + md.logsumexp(s)


def vector(params, x):
    y = md.tanh(md.einsum(x, params["w"], out=(A, E)))
    h, _ = md.scan(lambda h, _: (md.sin(h) * params["s"], ()), y, (), dim=T)
    return {"y": y, "sum": md.sum(h, A), "total": md.sum(h), "unchanged": params["s"]}


def params(w, s):
    return {"w": w, "s": s}


@RULES
def test_forward_derivatives_are_the_same_lowered(rules):
    def run(w, s, x, v, r):
        tangents = (params(v, md.sum(v, B)), md.broadcast(r, (A, B)))
        return (
            jvp(vector, (params(w, s), x), tangents),
            jvp(loss, (params(w, s), x), tangents),
            jvp(md.square, (x,), (w_like(x),)),
        )

    w_like = lambda x: md.transpose(md.sin(x), (B, A))
    assert_same(run, MIX, SCALE, X, V, ROW, layout=rules, dims=NAMES, gradients=False)


@RULES
def test_backward_derivatives_are_the_same_lowered_and_split_as_gradients_are(rules):
    def run(w, s, x, v):
        value, back = vjp(loss, params(w, s), x)
        (of_loss, of_x) = back(ONE)
        out, back = vjp(vector, params(w, s), x)
        y, total = md.transpose(out["y"], (E, A)), out["sum"] * 2.0
        scaled = back({"y": y, "sum": total, "total": md.sum(v), "unchanged": md.sum(v, B)})
        return (value, out, of_x, scaled[1]), (of_loss, scaled[0])

    mesh = md.make_mesh(rules)
    expected = jax.jit(run)(MIX, SCALE, X, V)
    (values, grads) = found = md.lower(run, rules, mesh, dims=NAMES)(MIX, SCALE, X, V)
    assert_equal(found, expected)
    assert_by_law(values, rules, mesh)
    assert_by_law(grads, rules, mesh, "optimizer")
    gradient = lambda w, s, x: md.value_and_grad(loss)(params(w, s), x)[1]
    assert_equal(grads[0], md.lower(gradient, rules, mesh, dims=NAMES)(MIX, SCALE, X))


def test_a_gradient_by_vjp_is_summed_over_devices_once():
    step = lambda w, x: lambda h, _: (h + md.sum(md.einsum(x, w, out=(A, E)) * h, E), ())

    def ours(w, x):
        return vjp(lambda w: md.sum(md.scan(step(w, x), md.sum(x, B), (), dim=T)[0]), w)[1](ONE)

    found = collectives(ours, MIX, X, layout=LAYOUTS["data"], dims=NAMES)
    assert found == {("psum", ("m",)): 2}  # of the value, and of the gradient


@RULES
def test_hessian_vector_products_are_the_same_lowered(rules):
    run = lambda w, s, x, v: hvp(loss, (params(w, s), x), (params(v, md.sum(v, B)), md.cos(x)))
    how = {"gradients": False, "level": "optimizer" if rules.optimizer else None}
    assert_same(run, MIX, SCALE, X, V, layout=rules, dims=NAMES, **how)


def test_derivatives_are_those_of_jax():
    f = lambda w, x: jnp.sum(jnp.tanh(x @ w) ** 2)
    ours = lambda w, x: md.sum(md.square(md.tanh(md.einsum(x, w, out=(A, E)))))
    arrays, tangents = (MIX.array, X.array), (V.array, jnp.sin(X.array))
    given = (V, md.sin(X))
    for found, expected in zip(
        jvp(ours, (MIX, X), given), jax.jvp(f, arrays, tangents), strict=True
    ):
        np.testing.assert_allclose(found.array, expected, rtol=1e-5)
    expected = jax.jvp(jax.grad(f, argnums=(0, 1)), arrays, tangents)[1]
    for found, theirs in zip(hvp(ours, (MIX, X), given), expected, strict=True):
        np.testing.assert_allclose(found.array, theirs, rtol=1e-4, atol=1e-5)


def inside(w, x, v):
    product = lambda w, x: md.tanh(md.einsum(x, w, out=(E,)))
    rows = lambda w: md.einsum(x, w, out=(A, E))
    slope = vjp(lambda w: md.sum(md.sin(rows(w))), w)[1](ONE)[0]
    again = checkpoint(lambda x: md.tanh(md.einsum(x, w, out=(A, E))))
    scaled = lambda s: md.sum(x * md.sum(w, E)) * s
    backwards = lambda x: vjp(lambda w, x: md.sum(product(w, x)), w, x)[1](ONE)
    return {
        "a gradient of a directional derivative": jvp(lambda w: md.tanh(rows(w)), (w,), (v,))[1],
        "a gradient of a gradient": rows(slope),
        "of what a checkpoint recomputes": jvp(again, (x,), (md.cos(x),))[1],
        "for each element": over(A, backwards)(x),
        "forwards for each element": over(A, lambda x: jvp(product, (w, x), (v, x)))(x),
        "closed over alone": jvp(scaled, (ONE,), (md.tensor(2.0, ()),)),
    }


@RULES
def test_derivatives_can_be_differentiated(rules):
    assert_same(inside, MIX, X, V, layout=rules, dims=NAMES)


# Custom gradients.


@custom_gradient
def product(x, w):
    """A matrix product with a backward pass of its own, doubled so that it is seen to be used."""
    return md.einsum(x, w, out=(A, E)), lambda ct: (
        md.einsum(ct, w, out=(A, B)) * 2.0,
        md.einsum(ct, x, out=(B, E)) * 2.0,
    )


@custom_gradient
def clipped(x):
    return x, lambda ct: md.clip(ct, -0.01, 0.01)


@custom_gradient
def rounded(w):
    """A straight-through estimator, of parameters or of values."""
    return md.round(w * 8.0) / 8.0, lambda ct: ct


@custom_gradient
def several(tree, ids, row):
    x = tree["x"]
    out = {"picked": md.take(row, ids, B), "sum": md.sum(x, A)}
    back = lambda ct: (
        {"x": md.transpose(md.broadcast(ct["sum"], (A, B)), (B, A)) * 3.0},
        None,
        None,
    )
    return out, back


def custom(x, w, r):
    step = lambda h, _: (md.einsum(product(h, w), w, out=(A, B)), ())
    return {
        "values and a parameter": md.sin(product(x, w)),
        "clipped": md.sum(md.square(clipped(x) * r), B),
        "of a value": md.square(rounded(x) * r),
        "of a parameter": md.einsum(x, rounded(w), out=(A, E)),
        "trees and none": several({"x": x * r}, IDS, r),
        "pending": md.sin(clipped(md.sum(x, A))),
        "in a scan": md.scan(step, x, (), dim=T)[0],
        "checkpointed": checkpoint(lambda x: md.tanh(product(x, w)))(x),
        "for each element": over(A, lambda x: clipped(x * r))(x),
        "a constant": x * clipped(md.tensor(1.5, ())),
    }


@RULES
def test_custom_gradients_are_the_same_lowered(rules):
    assert_same(custom, X, MIX, ROW, layout=rules, dims=NAMES)


def test_the_gradient_is_the_one_that_was_given():
    _, grad = md.value_and_grad(lambda x: md.sum(product(x, MIX)))(X)
    _, plain = md.value_and_grad(lambda x: md.sum(md.einsum(x, MIX, out=(A, E))))(X)
    assert_equal(grad, plain * 2.0)
    _, grad = md.value_and_grad(lambda x: md.sum(md.square(rounded(x))))(X)
    assert_equal(grad, md.round(X * 8.0) / 4.0)


def test_a_sum_that_a_cotangent_waits_for_is_scattered():
    run = lambda x, w: md.value_and_grad(lambda w: md.sum(product(x, w)))(w)[1]
    found = collectives(run, X, MIX, layout=LAYOUTS["fsdp"], dims=NAMES)
    of_each_pass = {"all_gather": 2, "psum_scatter": 1, "psum": 1}
    assert found == {(name, ("m",)): count for name, count in of_each_pass.items()}
