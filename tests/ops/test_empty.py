"""Dims of size 0: ops work along one and beside one, or say that there is nothing to choose."""

import numpy as np
import pytest

import meshdsl as md
from tests.helpers import assert_same, collectives, data, dims, integers, layout

NONE, B, C, V = dims(a=0, b=8, c=4, v=4)
X, Y = data(NONE, B), data(C, B)
FOUND = data(B, C)
PICKED, NO_IDS = integers(C, below=9), integers(NONE, below=4)
ALONG = layout("a? -> m", mesh={"m": 4})
BESIDE = layout("b? -> m", "a? -> n", mesh={"m": 2, "n": 4})
PADDED = layout("a, b? -> m", "v? -> n", mesh={"m": 3, "n": 2}, uneven="pad")
LAYOUTS = {"along it": ALONG, "beside it": BESIDE, "padded": PADDED}
every_layout = pytest.mark.parametrize("rules", LAYOUTS.values(), ids=LAYOUTS)


def _summed_in_turn(x):
    return md.scan(lambda carry, x: (carry + x, x), md.sum(x, NONE), x, dim=NONE)[0]


# What each op gives, and the same in NumPy where that is not empty.
OPS = {
    "sort": (lambda x: md.sort(x, NONE), None),
    "argsort": (lambda x: md.argsort(x, NONE), None),
    "top_k": (lambda x: md.top_k(x, NONE, 0), None),
    "flip": (lambda x: md.flip(x, NONE), None),
    "shift": (lambda x: md.shift(x, NONE, 2), None),
    "roll": (lambda x: md.roll(x, NONE, 2), None),
    "concat": (lambda x: md.concat([x, x], "a", out="v"), None),
    "split": (lambda x: md.split(x, NONE, [md.Dim("v", 0), md.Dim("w", 0)]), None),
    "unstack": (lambda x: md.unstack(x, NONE), None),
    "softmax": (lambda x: md.softmax(x, NONE), None),
    "cumsum": (lambda x: md.cumsum(x, NONE), None),
    "cumprod": (lambda x: md.cumprod(x, NONE), None),
    "cummax": (lambda x: md.cummax(x, NONE), None),
    "cummin": (lambda x: md.cummin(x, NONE), None),
    "cumlogsumexp": (lambda x: md.cumlogsumexp(x, NONE), None),
    "reshape": (lambda x: md.reshape(x, (md.Dim("v", 0), md.Dim("w", 3))), None),
    "reshape by pattern": (lambda x: md.reshape(x, "a b -> (a b)"), None),
    "map_over": (lambda x: md.map_over(md.sin, x, dim=NONE), None),
    "map_over, batch": (lambda x: md.map_over(md.sin, x, dim=NONE, batch=3), None),
    "map_over another, batch": (lambda x: md.map_over(md.sin, x, dim=B, batch=3), None),
    "over": (lambda x: md.over(NONE, lambda x: md.softmax(x, B))(x), None),
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


@every_layout
def test_ops_along_an_empty_dim_are_the_same_under_every_layout(rules):
    run = lambda x: {name: op(md.sin(x)) for name, (op, _) in OPS.items()}
    assert_same(run, X, layout=rules, dims=("a", "b", "v"))


def test_what_an_empty_dim_comes_to_is_that_of_numpy():
    for name, (op, expected) in OPS.items():
        for found in (op(X), md.lower(op, BESIDE)(X)):
            if expected is None:
                parts = found if isinstance(found, tuple) else (found,)
                assert not any(t.size for t in parts), name
            else:
                np.testing.assert_array_equal(found.array, expected, err_msg=name)


def test_along_an_empty_dim_nothing_travels():
    for name, (op, expected) in OPS.items():
        if expected is None:
            assert not collectives(op, X, layout=ALONG, dims=("a",)), name


@every_layout
def test_a_dim_beside_an_empty_one_is_worked_along(rules):
    run = lambda x: [
        md.max(x, B), md.argmax(x, B), md.sort(x, B), md.top_k(x, B, 4), md.softmax(x, B),
        md.flip(x, B),
        md.nth_largest(x, B, 2), md.slice(x, B, 2, 4), md.cumsum(x, B), md.max_pool(x, {B: 2}),
        md.einsum(x, FOUND, out=(NONE, C)),
    ]  # fmt: skip
    assert_same(run, X, layout=rules, dims=("a", "b", "v"))


@every_layout
def test_joined_with_one_that_has_elements(rules):

    def run(x, y):
        nothing = md.rename(x, NONE, "v")
        return md.concat([nothing, md.rename(y, C, "v"), nothing], V)

    assert_same(run, X, Y, layout=rules, dims=("a", "b", "v"))
    np.testing.assert_array_equal(run(X, Y).array, Y.array)


@every_layout
def test_cut_to_nothing(rules):
    run = lambda y: [md.slice(y, B, 3, 0), md.split(y, B, [0, 8]), md.top_k(y, B, 0)]
    assert_same(run, Y, layout=rules, dims=("a", "b", "v"))


def test_scattered_into_or_by_nothing():
    hows = ("add", "max", "set")
    into = lambda x, y: [md.scatter(x, PICKED, y, NONE, how=how) for how in hows]
    by = lambda y: [md.scatter(y, NO_IDS, md.sum(X, NONE), C, how=how) for how in hows]
    assert_same(into, X, Y, layout=ALONG)
    assert_same(by, Y, layout=layout("c -> m", mesh={"m": 4}))
    for found in by(Y):
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
