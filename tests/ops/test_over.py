"""over maps a function of one element, in which anything may happen, over a dim, split or not."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import meshdsl as md
from meshdsl.ops.branch import switch
from meshdsl.ops.checkpoint import checkpoint
from meshdsl.ops.loops import map_over, while_loop
from meshdsl.ops.over import over
from meshdsl.predict.explain import explain
from tests.helpers import (
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

A, B, E, V = dims(a=6, b=8, e=4, v=8)
X, ROW, COLUMN, IDS = data(A, B), data(B, seed=1), data(A, seed=2), integers(A, below=8)
MIX, TABLE = weight(B, E, ins=(B,), seed=4), weight(V, E, seed=5)
LAYOUTS = {
    "fsdp": layout("a -> m", mesh={"m": 2}, parameters=["b -> m", "v -> m"]),
    "uneven": layout("a -> m", "b -> n", "e -> n", mesh={"m": 4, "n": 2}, uneven="pad"),
    "the dim takes what others want": layout(
        "a -> n, m", "b -> m", "v -> m", mesh={"m": 2, "n": 3}, optimizer=["e -> m"]
    ),
    "other dims come first": layout("b -> m", "e -> m", "a -> m, n", mesh={"m": 2, "n": 3}),
}
RULES = every(LAYOUTS, "fsdp", "other dims come first", "the dim takes what others want")
SOME = every({name: LAYOUTS[name] for name in ("fsdp", "uneven")}, "fsdp")
NAMES = ("a", "b", "e", "v")


def overs(x, row, col, w, t):
    product, matrix = (
        lambda x: md.einsum(x, w, out=(E,)),
        lambda w: md.einsum(x, md.square(w), out=A),
    )
    reduced = lambda x: {"sum": md.sum(x), "max": md.max(x, B), "soft": md.softmax(x, B)}
    nested = lambda x: over(B, lambda y: y * md.sum(x) + md.max(x))(x)
    square = lambda x: md.sum(md.broadcast(x, (E, B)) * w * row, B)
    return {
        "component-wise": over(A, lambda x, c: md.sin(x) * c + row)(x, col),
        "a reduction": over(A, reduced)(x),
        "a matrix that is shared": over(A, product)(x),
        "given, not closed over": over(A, lambda x, w: md.einsum(x, w, out=(E,)))(x, w),
        "pending inside": over(A, lambda x: product(x) + product(md.sin(x)))(x),
        "a lookup": over(A, lambda i: md.take(t, i, V))(IDS),
        "independent of it": over(A, lambda x: (md.sum(w), md.cos(row), w, md.tensor(1.0, ())))(x),
        "dim not in front": over(A, lambda x: md.cumsum(x, B))(md.transpose(x, (B, A))),
        "pending before": over(E, md.tanh)(product(x)),
        "the other dim": over(B, lambda x, r: md.cumsum(x, A) * r)(x, row),
        "over a parameter": over(E, matrix)(w),
        "nested": over(A, nested)(x),
        "a constant": over(A, lambda i: row * md.cast(i, jnp.float32))(md.iota(A)),
        "a square matrix": over(A, square)(x),
    }


@RULES
def test_mapped_functions_are_the_same_lowered(rules):
    assert_same(overs, X, ROW, COLUMN, MIX, TABLE, layout=rules, dims=NAMES)


def test_over_is_vmap():
    found = over(A, lambda x, c: (md.softmax(x, B) * c, md.einsum(x, MIX, out=(E,))))(X, COLUMN)
    expected = jax.vmap(lambda x, c: (jax.nn.softmax(x) * c, x @ MIX.array))(X.array, COLUMN.array)
    assert found[0].dims == (A, B) and found[1].dims == (A, E)
    for ours, theirs in zip(found, expected, strict=True):
        np.testing.assert_allclose(ours.array, theirs, rtol=1e-5, atol=1e-6)


def control(x, w):
    t, half = md.Dim("t", 2), md.tensor(0.5, ())
    cell = lambda h, y: (md.tanh(h * y), h)
    step = lambda h, _: (md.einsum(md.sin(h), w, w, out=(B,)), ())
    product, largest = lambda x: md.einsum(x, w, out=(E,)), lambda x: md.max(w, B)
    branches = [md.sin, md.cos, lambda x: x * md.sum(w)]
    mapped = lambda h, _: (over(A, lambda y: md.softmax(y, B) * md.sum(w))(h), ())
    return {
        "a scan": over(A, lambda x: md.scan(cell, half, x, dim=B))(x),
        "a scan with a parameter": over(A, lambda x: md.scan(step, x, (), dim=t)[0])(x),
        "a cond": over(A, lambda x: md.cond(md.sum(x) > 0, product, largest, x))(x),
        "a switch": over(A, lambda x, i: switch(i, branches, x))(x, IDS),
        "a map": over(A, lambda x: map_over(lambda y: y * md.sum(x), x, dim=B))(x),
        "in a scan": md.scan(mapped, x, (), dim=t)[0],
        "checkpointed": over(A, checkpoint(lambda x: md.tanh(product(x))))(x),
    }


@SOME
def test_control_flow_inside_is_the_same_lowered(rules):
    assert_same(control, X, MIX, layout=rules, dims=NAMES)


@SOME
def test_elements_that_loop_for_different_times_wait_for_each_other(rules):
    def run(x, w):
        small, step = lambda h: md.sum(md.abs(h)) < 40.0, lambda h: md.einsum(h, w, w, out=(B,))
        grown = over(A, lambda x: while_loop(small, lambda h: h * 2.0 + step(h) * 0.1, x))(x)
        doubled = lambda: while_loop(lambda n: n < 9.0, lambda n: n * 2.0, md.tensor(1.0, ()))
        return grown, over(A, lambda x: x * doubled())(x)

    start = X * md.exp(COLUMN * 4.0)
    assert_same(run, start, MIX, layout=rules, dims=NAMES, gradients=False)


@SOME
def test_each_element_has_a_gradient_of_its_own(rules):
    loss = lambda w, x: md.sum(md.square(md.tanh(md.einsum(x, w, out=(E,)))))

    def run(x, w):
        values, gradients = over(A, lambda x: md.value_and_grad(loss)(w, x))(x)
        return values, gradients, md.sum(gradients, A)

    _, (found, _) = assert_same(run, X, MIX, layout=rules, dims=NAMES, gradients=False)
    plain = lambda w, x: jnp.sum(jnp.tanh(x @ w) ** 2)
    theirs = jax.vmap(jax.grad(plain), (None, 0))(MIX.array, X.array)
    np.testing.assert_allclose(found[1].array, theirs, rtol=1e-5, atol=1e-6)


ONE = {"one on a device": layout("a -> m", "b -> n", mesh={"m": 2, "n": 4}, parameters=["e -> n"])}


@every({**ONE, "two": layout("b -> n", mesh={"n": 4})}, "one on a device")
def test_gradients_are_accumulated_for_each_element(rules):
    a, turns = md.Dim("a", 2), md.Dim("turns", 3)

    def of_one(w, x):
        loss = lambda w, x: (md.sum(md.square(md.einsum(x, w, out=(E,)))), {"mean": md.mean(x)})
        return md.value_and_grad(loss, accumulate=turns, has_aux=True)(w, x)

    def run(ws, x):
        (values, aux), gradients = over(a, of_one)(ws, x)
        return values, aux["mean"], gradients

    ws, x = weight(a, B, E, ins=(B,), seed=6), data(turns, a, B, seed=7)
    program, (found, _) = assert_same(run, ws, x, layout=rules, dims=NAMES, gradients=False)
    plain = lambda w, x: jnp.mean(jnp.sum((x @ w) ** 2, -1))
    theirs = jax.vmap(jax.grad(plain), (0, 1))(ws.array, x.array)
    np.testing.assert_allclose(found[2].array, theirs, rtol=1e-5, atol=1e-6)
    assert not any("m" in c.axes for c in program.collectives)
    assert not any("m" in op.idle for op in explain(program).ops)


@SOME
def test_draws_are_shared_unless_keys_are_mapped_too(rules):
    key = jax.random.key(7)

    def run(x, seeds):
        shared = over(A, lambda x: x + md.random.normal(key, (B,), like=x))(x)
        own = over(A, lambda x, s: md.dropout(x, 0.5, jax.random.fold_in(key, s.array)))(x, seeds)
        return shared, own

    seeds = md.tensor(jnp.arange(A.size), (A,))
    _, (found, _) = assert_same(run, X, seeds, layout=rules, dims=NAMES)
    noise = found[0].array - X.array
    np.testing.assert_allclose(noise, np.broadcast_to(noise[0], noise.shape), atol=1e-6)
    for i in range(A.size):
        drawn = jax.random.uniform(jax.random.fold_in(key, i), (B.size,))
        assert np.array_equal(found[1].array[i] != 0, drawn >= 0.5)


def test_a_dim_that_is_split_stays_so_and_nothing_moves():
    rules = layout("a -> m", "b -> n", mesh={"m": 2, "n": 4})
    found = collectives(over(A, lambda x: md.softmax(x, B)), X, layout=rules)
    assert found == {("pmax", ("n",)): 1, ("psum", ("n",)): 1}


def test_shared_weights_are_gathered_once_and_their_gradients_scattered():
    loss = lambda w, x: md.sum(over(A, lambda x: md.einsum(x, w, out=(E,)))(x))
    found = collectives(md.value_and_grad(loss), MIX, X, layout=LAYOUTS["fsdp"], dims=NAMES)
    of_value = "psum"
    assert found == {(name, ("m",)): 1 for name in ("all_gather", "psum_scatter", of_value)}


def test_a_dim_that_does_not_divide_inside_is_no_error_where_its_axis_is_spent():
    rules = layout("a -> m", "b -> m", mesh={"m": 2})
    assert_same(over(A, lambda x: md.sum(x * 2.0)), data(A, md.Dim("b", 5)), layout=rules)


def test_nested_results_have_the_dims_in_order():
    assert over(A, over(B, md.sin))(X).dims == (A, B)
    assert_equal(over(B, over(A, md.sin))(X), md.sin(X))


def test_padding_of_the_dim_behaves_like_an_element():
    """Else it would make gradients of what is shared infinite, or loop for ever."""
    rules = LAYOUTS["uneven"]
    positive = md.abs(X) + 1.0
    run = lambda x, r: over(A, lambda x: md.sum(r / md.sum(x)) + md.sum(md.log(x) * r))(x)
    assert_same(run, positive, weight(B, seed=6), layout=rules, dims=NAMES)
    odd = lambda n: md.equal(md.mod(n, 2), 1)
    collatz = lambda n: while_loop(
        lambda n: n != 1, lambda n: md.where(odd(n), n * 3 + 1, n // 2), n
    )
    counts, yes = (md.tensor(x, A) for x in ([3, 6, 7, 9, 1, 2], jnp.arange(6) % 2 == 0))
    run = over(A, lambda n, yes: md.where(yes, collatz(n), 0))
    assert_same(run, counts, yes, layout=rules, dims=NAMES)


@pytest.mark.parametrize("mesh", [{"x": 3, "y": 2}, {"y": 2, "x": 3}], ids="-".join)
def test_parts_that_are_all_padding_travel_with_the_others(mesh):
    """Three rows over six: a piece of zeros, to XLA:CPU, is laid out otherwise than one of rows."""
    d, n = dims(d=3, n=4)
    rules = layout("d -> y, x", mesh=mesh, uneven="pad")
    assert_same(over(d, lambda v: v * 2.0), data(n, d), layout=rules)


def test_keys_may_be_mapped():
    keys = md.tensor(jax.random.split(jax.random.key(3), A.size), (A,))
    both = lambda x, key: (md.dropout(x, 0.5, key), x * md.random.normal(key, (B,)))
    how = {"layout": LAYOUTS["uneven"], "dims": NAMES, "gradients": False}
    _, ((kept, _), _) = assert_same(over(A, both), X, keys, **how)
    for i in range(A.size):
        drawn = jax.random.uniform(keys.array[i], (B.size,))
        assert np.array_equal(kept.array[i] != 0, drawn >= 0.5)
