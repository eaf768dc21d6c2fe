"""scan, cond and local: the same lowered, whatever they carry and close over."""

import jax.numpy as jnp
import pytest

import meshdsl as md
from tests.helpers import (
    assert_equal,
    assert_same,
    collectives,
    data,
    dims,
    every,
    layout,
    only,
    weight,
)

A, B, E, T, S = dims(a=8, b=8, e=8, t=4, s=2)
X, XS, ROW = data(A, B), data(T, A, B, seed=1), data(B, seed=2)
START, MIX = weight(B, seed=3), weight(B, E, ins=(B,), seed=4)
ZERO = md.tensor(jnp.zeros(8), (B,))
LAYOUTS = {
    "data": layout("a -> m", mesh={"m": 4}, parameters=["b -> m"]),
    "features": layout("b -> m", "e? -> n", mesh={"n": 2, "m": 4}, optimizer=["b -> n"]),
    "both": layout("a -> m", "b -> n", mesh={"m": 2, "n": 4}),
    "the scanned dim": layout("t? -> m", "a -> n", "b -> m", mesh={"m": 2, "n": 4}),
    "the scanned dim over both": layout("t? -> m, n", "a -> m, n", mesh={"m": 2, "n": 2}),
}


def recurrent(start, mix, xs):
    """A parameter starts the carry, and parameters are closed over."""

    def step(h, x):
        h = md.tanh(md.rename(md.einsum(h, mix, out=(A, E)), E, B) + x)
        return h, md.sum(h, B)

    return md.scan(step, md.broadcast(start, (A, B)), xs, dim=T)


def nested(x):
    inner = lambda h: md.scan(lambda g, _: (md.sin(g + md.sum(x, A)), md.max(g)), h, (), dim=S)
    return md.scan(lambda h, _: inner(h), ZERO, (), dim=T)


def integer_maxima(ids):
    """The largest so far along `t`, which does not lie in front."""
    ids = md.transpose(ids, (A, T))
    return md.scan(lambda n, i: (md.maximum(n, i), n), md.max(ids, T), ids, dim=T)


def scans(x, xs, row, start, mix):
    cell = lambda h, x: (md.sin(h + x), h * x)
    ids = md.cast(md.sum(xs, B) * 9, jnp.int32)
    pair = lambda c, x: (
        {"h": md.tanh(c["h"] + x), "n": c["n"] + 1.0, "s": c["s"] + md.sum(x, A)},
        (c["n"], x * row),
    )
    several = {"h": x, "n": md.tensor(0.0, ()), "s": row}
    total, zero, across = md.sum(x, A), md.tensor(0.0, ()), md.transpose(xs, (A, T, B))
    return {
        "recurrent": recurrent(start, mix, xs),
        "split carry": md.scan(cell, x, xs, dim=T),
        "reverse": md.scan(cell, x, xs, dim=T, reverse=True),
        "unrolled": md.scan(cell, x, xs, dim=T, unroll=2),
        "pending carry": md.scan(lambda h, _: (h + md.sum(x, A), h), total, (), dim=T)[0],
        "pending results": md.scan(lambda h, x: (h, md.sum(x, A)), (), xs, dim=T)[1],
        "carry lies otherwise": md.scan(
            lambda h, x: (md.transpose(md.sin(h), (B, A)), ()), x, xs, dim=T
        )[0],
        "constant carry": md.scan(lambda h, x: (h + md.sum(x), h), zero, xs, dim=T),
        "only closed over": md.scan(lambda h, _: (h + md.sum(x, A), md.sum(x)), ZERO, (), dim=T),
        "nested": nested(x),
        "a parameter carried": md.scan(
            lambda h, x: (h * md.cos(x), h), start, md.sum(xs, A), dim=T
        ),
        "a parameter unchanged": md.scan(lambda h, x: (h, h * x), start, xs, dim=T),
        "a tree of several": md.scan(pair, several, xs, dim=T),
        "dim not in front": md.scan(lambda h, x: (h + x, h), x, across, dim=T),
        "no carry": md.scan(lambda _, x: ((), x + row), (), xs, dim=T)[1],
        "a carry of integers": integer_maxima(ids),
        "arrays": md.scan(lambda n, i: (n + i, x * n), jnp.float32(1), jnp.arange(4.0), dim=T)[1],
    }


SCANNED = {name: rules for name, rules in LAYOUTS.items() if name != "both"}


@every(SCANNED, "data", "features", "the scanned dim over both")
def test_scans_are_the_same_lowered(rules):
    assert_same(scans, X, XS, ROW, START, MIX, layout=rules)


def test_scan_is_a_loop():
    h, made = X, []
    for i in range(T.size):
        x = md.tensor(XS.array[i], (A, B))
        made.append(h * x)
        h = md.sin(h + x)
    last, all_of_them = md.scan(lambda h, x: (md.sin(h + x), h * x), X, XS, dim=T)
    assert_equal(last, h)
    assert_equal(all_of_them, md.tensor(jnp.stack([t.array for t in made]), (T, A, B)))


def test_a_scan_over_split_elements_moves_them_once():
    rules = LAYOUTS["the scanned dim over both"]
    found = collectives(
        lambda xs: md.scan(lambda h, x: (h + md.sum(x), ()), md.tensor(0.0, ()), xs, dim=T)[0],
        XS,
        layout=rules,
    )
    assert {key[0]: n for key, n in found.items()} == {"all_to_all": 1, "psum": T.size}


def test_the_record_holds_a_body_once_and_counts_its_turns():
    lowered = md.lower(
        lambda x: md.scan(lambda h, _: (h + md.sum(x, A), ()), ZERO, (), dim=T)[0], LAYOUTS["both"]
    )
    sums = [op for op in lowered.program(X).ops if op.name == "sum"]
    assert [(op.count, op.loops) for op in sums] == [(4, (("t", 4),))]


def conds(p, x, w):
    half = md.cast(p, jnp.float32) * 0.5
    product = lambda x: md.einsum(x, w, out=(A, E))
    repeated = lambda x: md.broadcast(md.sum(w, B), (A, E))
    step = lambda h, _: (md.cond(p, md.sin, md.cos, h), ())
    ones = lambda x: md.tensor(jnp.ones(8), (B,))
    total, largest = lambda: md.sum(x, A), lambda: md.max(x, A)
    return {
        "pending": md.cond(p, lambda x: md.sum(x, A), lambda x: md.max(x, A) * 2.0, x),
        "closed over": md.cond(p, total, largest),
        "only closed over": md.cond(md.tensor(True, ()), total, largest),
        "dims lie otherwise": md.cond(p, md.tanh, lambda x: md.transpose(x, (B, A)), x),
        "a parameter and a value": md.cond(p, product, repeated, x),
        "a constant": md.cond(p, ones, lambda x: md.mean(x, A), x),
        "decided by data": md.cond(md.sum(x) > 0, lambda x: x, md.sin, x),
        "a number": md.cond(half, lambda x: x, md.sin, x),
        "in a scan": md.scan(step, x, (), dim=T)[0],
    }


@every({name: LAYOUTS[name] for name in ("data", "features", "both")}, "data")
@pytest.mark.parametrize("choice", only([True], [True, False]))
def test_conds_are_the_same_lowered(rules, choice):
    _, (found, _) = assert_same(conds, md.tensor(choice, ()), X, MIX, layout=rules)
    assert_equal(found["pending"], md.sum(X, A) if choice else md.max(X, A) * 2.0)


def locals_of(x, w):
    local, twice = md.local, lambda x: jnp.stack([x, -x], 2)
    return {
        "component-wise": local(lambda x: x * 2 + 1, x, out=(A, B)),
        "along a whole dim": local(lambda x: jnp.flip(x, 1), x, out=(A, B), whole=B),
        "contracted": local(lambda x, w: x @ w, x, w, out=(A, E), whole=(B,)),
        "contracted away": local(lambda x: jnp.max(x, 1), x, out=(A,)),
        "a dim that it makes": local(twice, x, out=(A, B, S)),
        "pending": local(jnp.sin, md.sum(x, A), out=(B,)),
        "not all axes": local(lambda r, x: x @ r, md.sum(x, A), x, out=(A,), whole=B),
    }


@pytest.mark.parametrize(
    "rules", [LAYOUTS["both"], layout("a -> m", "b -> m, n", mesh={"m": 2, "n": 4})]
)
def test_local_functions_are_the_same_lowered(rules):
    assert_same(locals_of, X, MIX, layout=rules, dims=("e", "t"))
