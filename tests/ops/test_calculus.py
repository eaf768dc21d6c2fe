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
    "tensor": layout("e -> n", "a -> m", mesh={"m": 2, "n": 4}),
    "features": layout("b -> n, m", "e -> m", mesh={"m": 2, "n": 4}),
    "uneven": layout("a -> m", "e -> n", mesh={"m": 3, "n": 2}, uneven="pad"),
}
RULES = every(LAYOUTS, "data", "tensor")
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
        scaled = back(
            {
                "y": md.transpose(out["y"], (E, A)),
                "sum": out["sum"] * 2.0,
                "total": md.sum(v),
                "unchanged": md.sum(v, B),
            }
        )
        return (value, out, of_x, scaled[1]), (of_loss, scaled[0])

    mesh = md.make_mesh(rules)
    expected = jax.jit(run)(MIX, SCALE, X, V)
    (values, grads) = found = md.lower(run, rules, mesh, dims=NAMES)(MIX, SCALE, X, V)
    assert_equal(found, expected)
    assert_by_law(values, rules, mesh)
    assert_by_law(grads, rules, mesh, "optimizer")
    theirs = md.lower(
        lambda w, s, x: md.value_and_grad(loss)(params(w, s), x)[1], rules, mesh, dims=NAMES
    )(MIX, SCALE, X)
    assert_equal(grads[0], theirs)


def test_a_gradient_by_vjp_is_summed_over_devices_once():
    step = lambda w, x: lambda h, _: (h + md.sum(md.einsum(x, w, out=(A, E)) * h, E), ())

    def ours(w, x):
        return vjp(lambda w: md.sum(md.scan(step(w, x), md.sum(x, B), (), dim=T)[0]), w)[1](ONE)

    assert collectives(ours, MIX, X, layout=LAYOUTS["data"], dims=NAMES) == {
        ("psum", ("m",)): 2
    }  # of the value, and of the gradient


@RULES
def test_hessian_vector_products_are_the_same_lowered(rules):
    run = lambda w, s, x, v: hvp(loss, (params(w, s), x), (params(v, md.sum(v, B)), md.cos(x)))
    assert_same(
        run,
        MIX,
        SCALE,
        X,
        V,
        layout=rules,
        dims=NAMES,
        gradients=False,
        level="optimizer" if rules.optimizer else None,
    )


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


INSIDE = {
    "a gradient of a directional derivative": lambda w, x, v: jvp(
        lambda w: md.tanh(md.einsum(x, w, out=(A, E))), (w,), (v,)
    )[1],
    "a gradient of a gradient": lambda w, x, v: md.einsum(
        x, vjp(lambda w: md.sum(md.sin(md.einsum(x, w, out=(A, E)))), w)[1](ONE)[0], out=(A, E)
    ),
    "of what a checkpoint recomputes": lambda w, x, v: jvp(
        checkpoint(lambda x: md.tanh(md.einsum(x, w, out=(A, E)))), (x,), (md.cos(x),)
    )[1],
    "for each element": lambda w, x, v: over(
        A, lambda x: vjp(lambda w, x: md.sum(md.tanh(md.einsum(x, w, out=(E,)))), w, x)[1](ONE)
    )(x),
    "forwards for each element": lambda w, x, v: over(
        A, lambda x: jvp(lambda w, x: md.tanh(md.einsum(x, w, out=(E,))), (w, x), (v, x))
    )(x),
    "closed over alone": lambda w, x, v: jvp(
        lambda s: md.sum(x * w_sum(w)) * s, (md.tensor(1.0, ()),), (md.tensor(2.0, ()),)
    ),
}


def w_sum(w):
    return md.sum(w, E)


@RULES
def test_derivatives_can_be_differentiated(rules):
    run = lambda w, x, v: {name: fn(w, x, v) for name, fn in INSIDE.items()}
    assert_same(run, MIX, X, V, layout=rules, dims=NAMES)


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


CUSTOM = {
    "values and a parameter": lambda x, w, r: md.sin(product(x, w)),
    "clipped": lambda x, w, r: md.sum(md.square(clipped(x) * r), B),
    "of a value": lambda x, w, r: md.square(rounded(x) * r),
    "of a parameter": lambda x, w, r: md.einsum(x, rounded(w), out=(A, E)),
    "trees and none": lambda x, w, r: several({"x": x * r}, IDS, r),
    "pending": lambda x, w, r: md.sin(clipped(md.sum(x, A))),
    "in a scan": lambda x, w, r: md.scan(
        lambda h, _: (md.einsum(product(h, w), w, out=(A, B)), ()), x, (), dim=T
    )[0],
    "checkpointed": lambda x, w, r: checkpoint(lambda x: md.tanh(product(x, w)))(x),
    "for each element": lambda x, w, r: over(A, lambda x: clipped(x * r))(x),
    "a constant": lambda x, w, r: x * clipped(md.tensor(1.5, ())),
}


@RULES
def test_custom_gradients_are_the_same_lowered(rules):
    run = lambda x, w, r: {name: fn(x, w, r) for name, fn in CUSTOM.items()}
    assert_same(run, X, MIX, ROW, layout=rules, dims=NAMES)


def test_the_gradient_is_the_one_that_was_given():
    _, grad = md.value_and_grad(lambda x: md.sum(product(x, MIX)))(X)
    _, plain = md.value_and_grad(lambda x: md.sum(md.einsum(x, MIX, out=(A, E))))(X)
    assert_equal(grad, plain * 2.0)
    _, grad = md.value_and_grad(lambda x: md.sum(md.square(rounded(x))))(X)
    assert_equal(grad, md.round(X * 8.0) / 4.0)


def test_a_sum_that_a_cotangent_waits_for_is_scattered():
    found = collectives(
        lambda x, w: md.value_and_grad(lambda w: md.sum(product(x, w)))(w)[1],
        X,
        MIX,
        layout=LAYOUTS["fsdp"],
        dims=NAMES,
    )
    assert found == {
        ("all_gather", ("m",)): 2,
        ("psum_scatter", ("m",)): 1,
        ("psum", ("m",)): 1,
    }  # `w` is gathered for each pass
