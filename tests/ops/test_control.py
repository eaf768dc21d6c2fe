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


SCANS = {
    "recurrent": lambda x, xs, row, start, mix: recurrent(start, mix, xs),
    "split carry": lambda x, xs, *_: md.scan(lambda h, x: (md.sin(h + x), h * x), x, xs, dim=T),
    "reverse": lambda x, xs, *_: md.scan(
        lambda h, x: (md.sin(h + x), h), x, xs, dim=T, reverse=True
    ),
    "unrolled": lambda x, xs, *_: md.scan(lambda h, x: (md.sin(h + x), h), x, xs, dim=T, unroll=2),
    "pending carry": lambda x, *_: md.scan(
        lambda h, _: (h + md.sum(x, A), h), md.sum(x, A), (), dim=T
    )[0],
    "pending results": lambda x, xs, *_: md.scan(lambda h, x: (h, md.sum(x, A)), (), xs, dim=T)[1],
    "carry lies otherwise": lambda x, xs, *_: md.scan(
        lambda h, x: (md.transpose(md.sin(h), (B, A)), ()), x, xs, dim=T
    )[0],
    "constant carry": lambda x, xs, *_: md.scan(
        lambda h, x: (h + md.sum(x), h), md.tensor(0.0, ()), xs, dim=T
    ),
    "only closed over": lambda x, *_: md.scan(
        lambda h, _: (h + md.sum(x, A), md.sum(x)), ZERO, (), dim=T
    ),
    "nested": lambda x, *_: nested(x),
    "a parameter carried": lambda x, xs, row, start, mix: md.scan(
        lambda h, x: (h * md.cos(x), h), start, md.sum(xs, A), dim=T
    ),
    "a parameter unchanged": lambda x, xs, row, start, mix: md.scan(
        lambda h, x: (h, h * x), start, xs, dim=T
    ),
    "a tree of several": lambda x, xs, row, start, mix: md.scan(
        lambda c, x: (
            {"h": md.tanh(c["h"] + x), "n": c["n"] + 1.0, "s": c["s"] + md.sum(x, A)},
            (c["n"], x * row),
        ),
        {"h": x, "n": md.tensor(0.0, ()), "s": row},
        xs,
        dim=T,
    ),
    "dim not in front": lambda x, xs, *_: md.scan(
        lambda h, x: (h + x, h), x, md.transpose(xs, (A, T, B)), dim=T
    ),
    "no carry": lambda x, xs, row, *_: md.scan(lambda _, x: ((), x + row), (), xs, dim=T)[1],
    "a carry of integers": lambda x, xs, *_: integer_maxima(md.cast(md.sum(xs, B) * 9, jnp.int32)),
    "arrays": lambda x, *_: md.scan(
        lambda n, i: (n + i, x * n), jnp.float32(1), jnp.arange(4.0), dim=T
    )[1],
}


@every(LAYOUTS, "data", "features", "the scanned dim over both")
@pytest.mark.parametrize("half", [0, 1])
def test_scans_are_the_same_lowered(rules, half):
    some = dict(list(SCANS.items())[half::2])
    run = lambda *args: {name: fn(*args) for name, fn in some.items()}
    assert_same(run, X, XS, ROW, START, MIX, layout=rules)


def test_scan_is_a_loop():
    h, made = X, []
    for i in range(T.size):
        x = md.tensor(XS.array[i], (A, B))
        made.append(h * x)
        h = md.sin(h + x)
    last, all_of_them = SCANS["split carry"](X, XS)
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


CONDS = {
    "pending": lambda p, x, w: md.cond(p, lambda x: md.sum(x, A), lambda x: md.max(x, A) * 2.0, x),
    "closed over": lambda p, x, w: md.cond(p, lambda: md.sum(x, A), lambda: md.max(x, A)),
    "only closed over": lambda p, x, w: md.cond(
        md.tensor(True, ()), lambda: md.sum(x, A), lambda: md.max(x, A)
    ),
    "dims lie otherwise": lambda p, x, w: md.cond(
        p, lambda x: md.tanh(x), lambda x: md.transpose(x, (B, A)), x
    ),
    "a parameter and a value": lambda p, x, w: md.cond(
        p, lambda x: md.einsum(x, w, out=(A, E)), lambda x: md.broadcast(md.sum(w, B), (A, E)), x
    ),
    "a constant": lambda p, x, w: md.cond(
        p, lambda x: md.tensor(jnp.ones(8), (B,)), lambda x: md.mean(x, A), x
    ),
    "decided by data": lambda p, x, w: md.cond(md.sum(x) > 0, lambda x: x, lambda x: md.sin(x), x),
    "a number": lambda p, x, w: md.cond(
        md.cast(p, jnp.float32) * 0.5, lambda x: x, lambda x: md.sin(x), x
    ),
    "in a scan": lambda p, x, w: md.scan(
        lambda h, _: (md.cond(p, md.sin, md.cos, h), ()), x, (), dim=T
    )[0],
}


@pytest.mark.parametrize(
    "rules",
    [
        pytest.param(LAYOUTS["data"], marks=pytest.mark.slow, id="data"),
        pytest.param(LAYOUTS["features"], id="features"),
        pytest.param(LAYOUTS["both"], id="both"),
    ],
)
@pytest.mark.parametrize("choice", [True, False])
def test_conds_are_the_same_lowered(rules, choice):
    run = lambda p, x, w: {name: fn(p, x, w) for name, fn in CONDS.items()}
    _, (found, _) = assert_same(run, md.tensor(choice, ()), X, MIX, layout=rules)
    assert_equal(found["pending"], md.sum(X, A) if choice else md.max(X, A) * 2.0)


LOCALS = {
    "component-wise": lambda x, w: md.local(lambda x: x * 2 + 1, x, out=(A, B)),
    "along a whole dim": lambda x, w: md.local(lambda x: jnp.flip(x, 1), x, out=(A, B), whole=B),
    "contracted": lambda x, w: md.local(lambda x, w: x @ w, x, w, out=(A, E), whole=(B,)),
    "contracted away": lambda x, w: md.local(lambda x: jnp.max(x, 1), x, out=(A,)),
    "a dim that it makes": lambda x, w: md.local(lambda x: jnp.stack([x, -x], 2), x, out=(A, B, S)),
    "pending": lambda x, w: md.local(jnp.sin, md.sum(x, A), out=(B,)),
    "not all axes of the loop": lambda x, w: md.local(
        lambda r, x: x @ r, md.sum(x, A), x, out=(A,), whole=B
    ),
}


@pytest.mark.parametrize(
    "rules", [*LAYOUTS.values(), layout("a -> m", "b -> m, n", mesh={"m": 2, "n": 4})]
)
def test_local_functions_are_the_same_lowered(rules):
    names = ("e", "t")
    assert_same(
        lambda x, w: {name: fn(x, w) for name, fn in LOCALS.items()},
        X,
        MIX,
        layout=rules,
        dims=names,
    )
