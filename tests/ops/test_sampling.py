"""Categories and permutations: the same under every layout, and distributed as was asked for."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import meshdsl as md
from meshdsl.ops.random import categorical, permutation, permute
from tests.helpers import assert_same, collectives, data, dims, every, layout, only

A, B, V = dims(a=6, b=8, vocab=24)
KEY = jax.random.key(11)
LOGITS = data(A, V, low=-4.0, high=4.0)
LAYOUTS = {
    "the dim over both, minor first": layout("vocab -> n, m", mesh={"m": 2, "n": 4}),
    "uneven": layout("vocab -> m", "a -> n", mesh={"m": 5, "n": 1}, uneven="pad"),
}
RULES = every(LAYOUTS, "uneven")
HOWS = {
    "plain": {},
    "likeliest": dict(temperature=0),
    "hot": dict(temperature=3.0),
    "hot by row": dict(temperature=data(A, seed=3, low=0.5, high=2.0)),
    "top_k": dict(top_k=3),
    "top_k of all": dict(top_k=24),
    "top_p": dict(top_p=0.7),
    "top_p of all": dict(top_p=1.0),
    "all three": dict(temperature=2.0, top_k=9, top_p=0.9),
}


@RULES
def test_choices_are_the_same_lowered(rules):
    def run(key, x):
        wide = md.broadcast(x, (B, A, V))
        chosen = {name: categorical(key, x, V, **how) for name, how in HOWS.items()}
        return chosen, categorical(key, wide, V, top_k=5)

    assert_same(run, KEY, LOGITS, layout=rules, gradients=False)


def test_choices_are_those_of_jax_and_the_same_in_every_version_of_it():
    many = md.broadcast(LOGITS, (B, A, V))
    for logits, dim, axis in ((many, V, 2), (LOGITS, A, 0)):
        expected = jax.random.categorical(KEY, logits.array, axis=axis)
        choose = jax.jit(lambda x, dim=dim: categorical(KEY, x, dim).array)
        assert np.array_equal(choose(logits), expected)
    choose = lambda: {name: categorical(KEY, LOGITS, V, **how) for name, how in HOWS.items()}
    chosen = {name: t.array.tolist() for name, t in jax.jit(choose)().items()}
    assert chosen == GOLDEN
    assert chosen["likeliest"] == jnp.argmax(LOGITS.array, 1).tolist()


GOLDEN = {
    "plain": [9, 3, 19, 14, 6, 2],
    "likeliest": [9, 2, 19, 5, 1, 2],
    "hot": [9, 23, 19, 14, 6, 16],
    "hot by row": [9, 3, 19, 14, 6, 2],
    "top_k": [9, 3, 19, 22, 1, 2],
    "top_k of all": [9, 3, 19, 14, 6, 2],
    "top_p": [9, 3, 19, 15, 7, 2],
    "top_p of all": [9, 3, 19, 14, 6, 2],
    "all three": [9, 9, 19, 15, 6, 16],
}


def kept(logits, top_k=None, top_p=None):
    """Which categories can be drawn, by sorting."""
    p = np.exp(logits.astype(np.float64) - logits.max())
    order = np.argsort(-p)
    some = np.zeros(len(p), bool)
    some[order[: top_k or len(p)]] = True
    p = np.where(some, p, 0) / p[some].sum()
    if top_p is not None:
        before = np.cumsum(p[order]) - p[order]
        some[order[before >= top_p]] = False
    return some


LIKELIEST = [dict(top_k=3), dict(top_p=0.7), dict(top_k=10, top_p=0.8)]


@pytest.mark.parametrize("how", only(LIKELIEST[2:], LIKELIEST))
def test_only_the_likeliest_are_drawn_and_as_often_as_they_should_be(how):
    draws = md.Dim("draws", 5_000)
    row = md.tensor(LOGITS.array[2], (V,))
    draw = jax.jit(lambda row: categorical(KEY, md.broadcast(row, (draws, V)), V, **how).array)
    drawn = draw(row)
    found = np.bincount(drawn, minlength=V.size) / draws.size
    some = kept(np.asarray(row.array), **how)
    p = np.where(some, np.exp(np.asarray(row.array, np.float64)), 0)
    assert set(np.flatnonzero(found)) <= set(np.flatnonzero(some))
    np.testing.assert_allclose(found, p / p.sum(), atol=0.02)


def test_a_nucleus_of_ties_and_of_minus_infinity():
    flat = md.tensor(jnp.zeros(24), (V,))
    keys = jax.random.split(KEY, 300)
    one = lambda k, x: categorical(k, md.tensor(x, (V,)), V, top_p=0.3).array
    draw = jax.jit(jax.vmap(one, (0, None)))
    # All are as likely as the last one that is needed.
    assert len(np.unique(draw(keys, flat.array))) == 24
    masked = np.where(np.arange(24) % 5 == 1, 0.0, -np.inf).astype(np.float32)
    assert set(np.unique(draw(keys, masked)) % 5) == {1}


def test_a_split_dim_of_categories_is_never_gathered():
    rules = layout("vocab -> m", mesh={"m": 4})
    draw = lambda how: lambda key, x: categorical(key, x, V, **how)
    cost = lambda how: collectives(draw(how), KEY, LOGITS, layout=rules, dims=("a",))
    found = {name: cost(how) for name, how in HOWS.items()}
    # The argmax: the largest value, and its first index.
    assert set(found["plain"]) == {("pmax", ("m",)), ("pmin", ("m",))}
    assert found["plain"] == found["hot"] == found["top_p of all"] == found["top_k of all"]
    assert found["top_p"] == {("pmax", ("m",)): 2, ("pmin", ("m",)): 1, ("psum", ("m",)): 9}


@RULES
def test_permutations_are_those_of_jax_and_the_same_lowered(rules):
    def run(key, x):
        hot, total = md.one_hot(permutation(key, A), V), md.sum(md.broadcast(x, (B, A, V)), B)
        orders = [permutation(key, V), permutation(key, V, like=x), md.sum(hot, A)]
        return orders, permute(key, x, V), permute(key, x, A), permute(key, total, "a")

    _, ((orders, by_column, by_row, _), _) = assert_same(run, KEY, LOGITS, layout=rules)
    assert np.array_equal(orders[0].array, jax.random.permutation(KEY, V.size))
    assert np.array_equal(by_column.array, jax.random.permutation(KEY, LOGITS.array, axis=1))
    assert np.array_equal(by_row.array, jax.random.permutation(KEY, LOGITS.array, axis=0))


def test_a_permutation_takes_no_communication():
    rules = layout("vocab -> m", "a -> n", mesh={"m": 4, "n": 2})
    orders = lambda key, x: (permutation(key, V, like=x), permutation(key, A))
    assert collectives(orders, KEY, LOGITS, layout=rules) == {}
    whole, permuted = layout("a -> n", mesh={"n": 2}), lambda key, x: permute(key, x, V)
    assert collectives(permuted, KEY, LOGITS, layout=whole, dims=("vocab",)) == {}


@pytest.mark.slow
def test_a_permutation_of_nothing_and_of_one():
    for size in (0, 1, 2):
        assert sorted(np.asarray(permutation(KEY, md.Dim("n", size)).array)) == list(range(size))
