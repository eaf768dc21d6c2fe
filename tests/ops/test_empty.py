"""Dims of size 0: ops work along one and beside one, or say that there is nothing to choose."""

import jax
import numpy as np
import pytest

import meshdsl as md
from tests.helpers import assert_same, collectives, data, dims, every, integers, layout

NONE, B, C, V = dims(a=0, b=8, c=4, v=4)
X, Y = data(NONE, B), data(C, B)
PICKED, NO_IDS = integers(C, below=9), integers(NONE, below=4)
ALONG = layout("a? -> m", mesh={"m": 4})
BESIDE = layout("b? -> m", "a? -> n", mesh={"m": 2, "n": 4})


def _summed_in_turn(x):
    return md.scan(lambda carry, x: (carry + x, x), md.sum(x, NONE), x, dim=NONE)[0]


def emptied(x):
    """What is empty, because `x` is."""
    v, w = md.Dim("v", 0), md.Dim("w", 0)
    scans = (md.cumsum, md.cumprod, md.cummax, md.cummin, md.cumlogsumexp)
    others = (md.sort, md.argsort, md.flip, md.softmax, md.unstack)
    return [
        *(op(x, NONE) for op in (*scans, *others)),
        md.top_k(x, NONE, 0),
        md.shift(x, NONE, 2),
        md.roll(x, NONE, 2),
        md.concat([x, x], "a", out="v"),
        md.split(x, NONE, [v, w]),
        md.reshape(x, (v, md.Dim("w", 3))),
        md.reshape(x, "a b -> (a b)"),
        md.map_over(md.sin, x, dim=NONE),
        md.map_over(md.sin, x, dim=NONE, batch=3),
        md.map_over(md.sin, x, dim=B, batch=3),
        md.over(NONE, lambda x: md.softmax(x, B))(x),
    ]


# What other ops give, and the same in NumPy.
OPS = {
    "sum": (lambda x: md.sum(x, NONE), np.zeros(8)),
    "mean": (lambda x: md.mean(x, NONE), np.full(8, np.nan)),
    "prod": (lambda x: md.prod(x, NONE), np.ones(8)),
    "any": (lambda x: md.any(x > 0, NONE), np.full(8, False)),
    "all": (lambda x: md.all(x > 0, NONE), np.full(8, True)),
    "logsumexp": (lambda x: md.logsumexp(x, NONE), np.full(8, -np.inf)),
    "einsum": (lambda x: md.einsum(x, x, out=B), np.zeros(8)),
    "pad": (lambda x: md.pad(x, NONE, 1, 2, 5, out="v"), np.full((3, 8), 5)),
    "take": (lambda x: md.take(x, PICKED, NONE), np.zeros((4, 8))),
    "segment_sum": (lambda x: md.segment_sum(x, NO_IDS, NONE, V), np.zeros((4, 8))),
    "scan": (_summed_in_turn, np.zeros(8)),
}


def test_what_an_empty_dim_comes_to_is_that_of_numpy():
    both = lambda x: (emptied(x), {name: op(x) for name, (op, _) in OPS.items()})
    for run in (jax.jit(both), md.lower(both, BESIDE)):
        nothing, found = run(X)
        assert not any(a.size for a in jax.tree.leaves(nothing))
        for name, (_, expected) in OPS.items():
            np.testing.assert_array_equal(found[name].array, expected, err_msg=name)


def test_along_an_empty_dim_nothing_travels():
    assert not collectives(emptied, X, layout=ALONG, dims=("a",))


@every({"along": ALONG, "uneven": layout("a, b? -> m", mesh={"m": 3}, uneven="pad")}, "along")
def test_ops_beside_and_to_nothing_are_the_same_lowered(rules):
    def run(x, y):
        beside = [op(x, B) for op in (md.max, md.argmax, md.sort, md.softmax, md.cumsum)]
        cut = [md.slice(y, B, 3, 0), md.split(y, B, [0, 8]), md.top_k(y, B, 0)]
        nothing = md.rename(x, NONE, "v")
        joined = md.concat([nothing, md.rename(y, C, "v"), nothing], V)
        hows = ("add", "max", "set")
        into = [md.scatter(x, PICKED, y, NONE, how=how) for how in hows]
        by = [md.scatter(y, NO_IDS, md.sum(X, NONE), C, how=how) for how in hows]
        return beside, md.max_pool(x, {B: 2}), cut, joined, into, by

    _, ((*_, joined, _, by), _) = assert_same(run, X, Y, layout=rules, dims=("a", "b", "v"))
    for found in (joined, *by):
        np.testing.assert_array_equal(found.array, Y.array)


def test_a_split_result_of_arguments_without_elements():
    """XLA makes constants of them all, and a program needs something to begin with."""
    fn = lambda x, y: md.einsum(y, x, out=(B,))
    assert_same(fn, X, data(NONE), layout=layout("b -> m", mesh={"m": 4}))


@pytest.mark.parametrize("op", [md.max, md.min, md.argmax, md.argmin])
def test_what_has_no_identity_refuses_alike(op):
    texts = []
    for run in (lambda x: op(x, NONE), md.lower(lambda x: op(x, NONE), ALONG)):
        with pytest.raises(md.MeshDSLError) as refused:
            run(X)
        texts.append(str(refused.value))
    found = f"{op.__name__}: [a=0] of [a=0, b=8] has no element to choose"
    assert texts == [f"{found}; give each of these dims a size of 1 or more"] * 2
