"""while_loop, switch and map_over: the same lowered, whatever they carry and close over."""

import jax
import jax.numpy as jnp
import pytest

import meshdsl as md
from meshdsl.ops.branch import switch
from meshdsl.ops.calculus import jvp
from meshdsl.ops.loops import map_over, while_loop
from meshdsl.tensor import is_tensor
from tests.helpers import (
    assert_equal,
    assert_same,
    collectives,
    data,
    dims,
    every,
    is_float,
    layout,
    only,
    weight,
)

A, B, E, T = dims(a=8, b=8, e=8, t=4)
X, XS, ROW = data(A, B), data(T, A, B, seed=1), data(B, seed=2)
MIX = weight(B, E, ins=(B,), seed=4)
LAYOUTS = {
    "data": layout("a -> m", mesh={"m": 4}, parameters=["b -> m"]),
    "the mapped dim over both, minor first": layout(
        "t? -> n, m", "a -> m", "b -> n", mesh={"m": 2, "n": 2}
    ),
    "uneven": layout("a -> m", "b -> n", "t? -> m", mesh={"m": 3, "n": 2}, uneven="pad"),
}
RULES = every(LAYOUTS, "data", "the mapped dim over both, minor first")


def small(h):
    return md.sum(md.square(h)) < 200.0


def mixed(h, w):
    return md.rename(md.einsum(h, w, out=(A, E)), E, B)


def whiles(x, w):
    tree = lambda c: {"n": c["n"] + 1, "h": md.transpose(md.sin(c["h"]), (B, A)), "i": c["i"] * 2}
    inner = lambda h: while_loop(lambda g: md.max(g) < md.max(h) + 1.0, lambda g: g * 2.0, h)
    one, none = md.tensor(1.0, ()), md.tensor(0, ())
    counted = lambda c: (c[0] + 1, c[1] + md.max(x, A))
    return {
        "a split carry": while_loop(small, lambda h: h * 1.5, x),
        "a pending carry": while_loop(
            lambda h: md.max(h) < 9.0, lambda h: h + md.sum(x, A), md.sum(x, A)
        ),
        "a parameter closed over": while_loop(small, lambda h: h + mixed(h, w), x),
        "a parameter carried": while_loop(small, lambda h: h * 1.5, w),
        "a tree": while_loop(lambda c: c["n"] < 3, tree, {"n": none, "h": x, "i": jnp.int32(1)}),
        "only closed over": while_loop(
            lambda n: n < md.sum(md.abs(x)), lambda n: n + md.max(x), one
        ),
        "a condition on constants": while_loop(lambda c: c[0] < 3, counted, (none, ROW)),
        "nested": while_loop(small, inner, x),
        "never": while_loop(lambda h: md.any(h > 5.0), lambda h: h + 1.0, x),
    }


@RULES
def test_while_loops_are_the_same_lowered(rules):
    def run(x, w):
        floats = lambda tree: [t for t in jax.tree.leaves(tree, is_leaf=is_tensor) if is_float(t)]
        return whiles(x, w), jvp(lambda x, w: floats(whiles(x, w)), (x, w), (md.sin(x), w))[1]

    assert_same(run, X, MIX, layout=rules, dims=("t",), gradients=False)


def test_a_while_loop_is_a_loop():
    h, n = X, 0
    while float(jnp.sum(h.array**2)) < 200:
        h, n = h * 1.5, n + 1
    assert n > 1
    assert_equal(while_loop(small, lambda h: h * 1.5, X), h)


def test_a_gradient_flows_past_a_while_loop():
    def run(x, w):
        turns, _ = while_loop(
            lambda c: c[1] < 30.0,
            lambda c: (c[0] + 1, c[1] * 2.0),
            (md.tensor(0, ()), md.stop_gradient(md.sum(md.square(x)))),
        )
        return x * md.cast(turns, jnp.float32)

    assert_same(run, X, MIX, layout=LAYOUTS["data"], dims=("t",))


def switches(i, x, w):
    total, largest, mean = lambda x: md.sum(x, A), lambda x: md.max(x, A), lambda x: md.mean(x, A)
    both = [lambda: x, lambda: x * 2.0]
    repeated = lambda x: md.broadcast(md.sum(w, E), (A, B))
    step = lambda h, j: (switch(j, [md.sin, md.cos, lambda h: h * 2.0], h), ())
    return {
        "pending": switch(i, [total, largest, mean], x),
        "dims lie otherwise": switch(i, [md.tanh, lambda x: md.transpose(x, (B, A))], x),
        "a parameter": switch(i - 1, [lambda x: mixed(x, w), lambda x: x, repeated], x),
        "closed over": switch(i, both),
        "only closed over": switch(md.tensor(1, ()), both),
        "decided by data": switch(md.argmax(md.sum(x, A), B), [md.sin, md.cos], x),
        "one": switch(i, [md.sin], x),
        "in a scan": md.scan(step, x, md.iota(T), dim=T)[0],
    }


@RULES
def test_switches_are_the_same_lowered(rules):
    _, (found, _) = assert_same(switches, md.tensor(2, ()), X, MIX, layout=rules, dims=("t",))
    assert_equal(found["pending"], md.mean(X, A))


@pytest.mark.parametrize("index, expected", [(-3, 0), (0, 0), (1, 1), (9, 2)])
def test_an_index_beyond_the_branches_takes_the_nearest(index, expected):
    assert (
        int(switch(md.tensor(index, ()), [lambda i=i: md.tensor(i, ()) for i in range(3)]).array)
        == expected
    )


def maps(xs, x, w):
    both = lambda a, b: {"s": a["x"] + b, "m": md.sum(a["x"], A)}
    return {
        "one": map_over(md.sin, xs, dim=T),
        "several trees": map_over(both, {"x": xs}, md.sum(xs, B), dim=T),
        "a parameter": map_over(lambda x: md.softmax(mixed(x, w), B), xs, dim=T),
        "dim not in front": map_over(lambda x: md.cumsum(x, B), md.transpose(xs, (A, T, B)), dim=T),
        "closed over": map_over(lambda y: md.sum(x * y), xs, dim=T),
        "of constants": map_over(lambda i: x * md.cast(i, jnp.float32), md.iota(T), dim=T),
        "nested": map_over(lambda x: map_over(md.sum, x, dim=A), xs, dim=T),
    }


@RULES
def test_maps_are_the_same_lowered(rules):
    assert_same(maps, XS, X, MIX, layout=rules)


def batched(xs, x, w, batch):
    how = {"dim": T, "batch": batch}
    return {
        "component-wise": map_over(lambda y: (md.sin(y), md.sum(y * x)), xs, **how),
        "a parameter": map_over(lambda y: md.max(mixed(y, w), B), xs, **how),
        "of constants": map_over(lambda i: x * md.cast(i, jnp.float32), md.iota(T), **how),
    }


@RULES
def test_maps_in_batches_are_the_same_lowered(rules):
    run = lambda xs, x, w: [batched(xs, x, w, batch) for batch in (3, 7)]
    _, (found, _) = assert_same(run, XS, X, MIX, layout=rules)
    for results in found:
        assert_equal(results, batched(XS, X, MIX, None))


@pytest.mark.parametrize("batch", only([3], [1, 2, 3]))
def test_a_batched_map_over_a_parameter_that_lies_split_along_the_mapped_dim(batch):
    """A dim of 3 does not divide over 2, so at rest the mapped dim and batches are split."""
    n, o, k = dims(n=3, o=3, k=2)
    rules = layout("o? -> y", mesh={"y": 2}, uneven="pad")
    for fn in (md.relu, md.replicate):
        run = lambda w, fn=fn: map_over(fn, w, dim=k, batch=batch)
        assert_same(run, weight(n, o, k), layout=rules)


@pytest.mark.parametrize("batch", only([2], [None, 2]))
def test_a_choice_by_a_parameter_in_a_map_and_parameters_in_its_branches(batch):
    """What a parameter chooses is of a type with what does not depend on it."""

    def run(scores, w):
        def one(v):
            square = lambda: md.einsum(w * w, out=())
            mean = lambda: md.mean(md.broadcast(w, (E, B)))
            return md.cond(md.sum(v) > 0, square, mean) + md.softplus(w)

        return map_over(one, scores, dim=T, batch=batch)

    for rules in (layout(mesh={"m": 2, "n": 2}), LAYOUTS["uneven"]):
        assert_same(run, weight(T, B), weight(B, seed=2), layout=rules, dims=["a", "b", "t"])


def test_a_map_over_a_split_dim_moves_it_once():
    found = collectives(
        lambda xs: map_over(lambda x: md.sin(x), xs, dim=T),
        XS,
        layout=LAYOUTS["the mapped dim over both, minor first"],
    )
    assert found == {("all_to_all", ("m",)): 2, ("all_to_all", ("n",)): 2}
