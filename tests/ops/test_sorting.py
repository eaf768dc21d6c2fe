"""sort, top_k, nth_largest, searchsorted and others order as numpy does, along split dims too."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import meshdsl as md
from meshdsl.ops.sorting import _merge_partners
from tests.helpers import assert_same, collectives, data, dims, every, layout

A, B, C, K = dims(a=2, b=13, c=3, k=4)
X = data(A, B, C)
_ties = np.round(np.asarray(X.array) * 2)
TIES = md.tensor(_ties, X.dims)  # many equal elements, and -0
_odd = _ties.copy()
_odd[:, 3:7], _odd[0, 1:4], _odd[:, 8], _odd[1, ::2] = np.nan, -np.inf, -np.nan, np.inf
ODD = md.tensor(_odd, X.dims)
LAYOUTS = {
    "parts of padding only": layout("b -> m", "k? -> m", mesh={"m": 8}, uneven="pad"),
    "the dim over both": layout("b -> n, m", "a -> r", mesh={"r": 2, "m": 2, "n": 2}, uneven="pad"),
    "three parts": layout("b -> m", "a -> n", mesh={"n": 2, "m": 3}, uneven="pad"),
}


def every_order(x):
    return {
        "sort": md.sort(x, B),
        "descending": md.sort(x, "b", descending=True),
        "argsort": md.argsort(x, B),
        "descending argsort": md.argsort(x, B, descending=True),
        "top_k": md.top_k(x, B, K),
        "top_k of one": md.top_k(x, "b", md.Dim("k", 1)),
        "top_k of more than a part": md.top_k(x, B, md.Dim("k", 11)),
        "top_k of all": md.top_k(x, B, 13),
        "first": md.nth_largest(x, B, 1),
        "third": md.nth_largest(x, B, 3),
        "median": md.nth_smallest(x, B, 7),
        "last": md.nth_smallest(x, "b", 13),
    }


def by_numpy(a):
    """The same on an array [a, b, c], by numpy's stable sort, which takes a NaN for the largest."""
    a = np.asarray(a).astype(np.float64)
    up, places = np.sort(a, 1), np.argsort(a, 1, kind="stable")
    last_first = np.argsort(a[:, ::-1], 1, kind="stable")[:, ::-1]
    down = 12 - last_first
    top = lambda k: (up[:, ::-1][:, :k], down[:, :k])
    return {
        "sort": up,
        "descending": up[:, ::-1],
        "argsort": places,
        "descending argsort": down,
        "top_k": top(4),
        "top_k of one": top(1),
        "top_k of more than a part": top(11),
        "top_k of all": top(13),
        "first": up[:, 12],
        "third": up[:, 10],
        "median": up[:, 6],
        "last": up[:, 12],
    }


def assert_numpy(found, array):
    for (name, tensors), arrays in zip(found.items(), by_numpy(array).values(), strict=True):
        for t, expected in zip(*map(jax.tree.leaves, (tensors, arrays)), strict=True):
            assert np.array_equal(np.asarray(t, np.float64), expected, equal_nan=True), name


def of_dtype(dtype):
    low, high = {jnp.bool_: (0, 1), jnp.bfloat16: (-8, 8)}.get(dtype) or (
        jnp.iinfo(dtype).min,
        jnp.iinfo(dtype).max,
    )
    array = np.random.default_rng(1).integers(low, high, (2, 13, 3), endpoint=True)
    array[0, 2:5], array[1, 5:9] = low, high
    return md.tensor(jnp.asarray(array, dtype), (A, B, C))


OTHERS = [of_dtype(t) for t in (jnp.int8, jnp.uint32, jnp.bool_, jnp.bfloat16)]


FLOATS = {"random": X, "ties": TIES, "not finite": ODD}
ARRAYS = FLOATS | {str(x.dtype): x for x in OTHERS}


@pytest.mark.parametrize("x", ARRAYS.values(), ids=ARRAYS)
def test_order_is_that_of_numpy(x):
    found = every_order(x)
    assert_numpy(found, x.array)
    assert found["top_k"][0].dims == (A, K, C) and found["top_k"][1].dtype == jnp.int32
    assert all(t.dtype == x.dtype for t in (found["sort"], found["top_k"][0], found["median"]))


@every(LAYOUTS, "the dim over both", "three parts")
def test_order_is_the_same_lowered(rules):
    assert_same(every_order, TIES, layout=rules)


@every(LAYOUTS, "three parts", "the dim over both")
def test_one_row_is_sorted_the_same_lowered(rules):
    """Too few rows to share out: the parts are merged in pairs."""
    run = lambda x: [md.sort(x, B), md.argsort(x, B), md.top_k(x, B, 13)]
    for x in (TIES, ODD):
        row = md.tensor(x.array[1, :, 0], (B,))
        assert_same(run, row, layout=rules, dims=("a", "k"), gradients=x is TIES)


def test_elements_that_are_not_finite_keep_their_place():
    rules = LAYOUTS["parts of padding only"]
    assert_same(every_order, ODD, layout=rules, gradients=False)


def test_an_element_that_is_chosen_gets_its_gradient_and_of_equal_ones_the_first():
    x = md.tensor(jnp.array([1.0, 3.0, 2.0, 3.0, 3.0]), (md.Dim("b", 5),))
    weights = md.tensor(jnp.array([10.0, 1.0]), (md.Dim("k", 2),))
    top = lambda x: md.sum(md.top_k(x, "b", md.Dim("k", 2))[0] * weights).array
    assert jax.grad(top)(x).array.tolist() == [0, 10, 0, 1, 0]
    places = md.iota(md.Dim("b", 5)) + 1
    numbered = lambda x: md.sum(md.sort(x, "b", descending=True) * places).array
    assert jax.grad(numbered)(x).array.tolist() == [5, 1, 4, 2, 3]
    third = lambda x: md.nth_largest(x, "b", 3).array
    np.testing.assert_allclose(jax.grad(third)(x).array, [0, 1 / 3, 0, 1 / 3, 1 / 3], rtol=1e-6)


SORTED = md.tensor(np.sort(_ties, 1), X.dims)
_WANTED = data(A, md.Dim("v", 6), seed=2)
WANTED = md.tensor(np.round(np.asarray(_WANTED.array) * 3) / 2, _WANTED.dims)


def searches(s, w):
    ends = [(f, side) for f in (1e9, -1e9) for side in ("left", "right")]
    whole = md.cast(s, jnp.int8), md.cast(w, jnp.int8) * 0 + 127
    return {
        "left": md.searchsorted(s, w, B),
        "right": md.searchsorted(s, w, "b", side="right"),
        "one row": md.searchsorted(md.sum(s, (A, C)), w, B, side="right"),
        "beyond the ends": [md.searchsorted(s, w * f, B, side=side) for f, side in ends],
        "whole numbers": md.searchsorted(*whole, B, side="right"),
    }


def test_searches_are_those_of_numpy():
    for side in ("left", "right"):
        found = searches(SORTED, WANTED)[side]
        assert found.dims == (A, C, WANTED.dims[1]) and found.dtype == jnp.int32
        for i in range(A.size):
            for j in range(C.size):
                assert np.array_equal(
                    found.array[i, j], np.searchsorted(SORTED.array[i, :, j], WANTED.array[i], side)
                )
    assert np.array_equal(
        searches(SORTED, WANTED)["one row"].array,
        np.searchsorted(SORTED.array.sum((0, 2)), WANTED.array, "right"),
    )


@every(LAYOUTS, "the dim over both", "three parts")
def test_searches_are_the_same_lowered(rules):
    assert_same(searches, SORTED, WANTED, layout=rules, dims=("k",), gradients=False)


@pytest.mark.parametrize("parts", range(1, 18))
def test_the_network_sorts_any_number_of_parts(parts):
    rng = np.random.default_rng(parts)
    for _ in range(200):
        bits = rng.integers(0, 2, parts).tolist()  # what sorts zeros and ones sorts everything
        for partners in _merge_partners(parts):
            assert [partners[p] for p in partners] == list(range(parts))
            bits = [
                min(bits[i], bits[p]) if i < p else max(bits[i], bits[p])
                for i, p in enumerate(partners)
            ]
        assert bits == sorted(bits)


LONG, FEW = dims(long=64, k=3)
ROWS = data(A, LONG)
SPLIT = layout("long -> m", mesh={"m": 8})


def bytes_of(fn, x=ROWS, rules=SPLIT):
    return [(c.operation, c.bytes) for c in md.lower(fn, rules).program(x).collectives]


def test_top_k_gathers_k_candidates_of_each_part():
    indices_and_values = [("all_gather", 8 * FEW.size * A.size * 4)] * 2
    assert bytes_of(lambda x: md.top_k(x, LONG, FEW)) == indices_and_values


def test_top_k_of_more_than_a_part_gathers_the_parts_without_indices():
    assert bytes_of(lambda x: md.top_k(x, LONG, md.Dim("k", 20))) == [
        ("all_gather", LONG.size * A.size * 4)
    ]


def test_the_gradient_of_top_k_moves_nothing():
    loss = lambda x: md.sum(md.top_k(x, LONG, FEW)[0] * 2.0)
    assert set(collectives(md.value_and_grad(loss), ROWS, layout=SPLIT)) == {("all_gather", ("m",))}


def test_nth_largest_gathers_candidates_or_counts():
    assert bytes_of(lambda x: md.nth_largest(x, LONG, 3)) == [("all_gather", 8 * 3 * A.size * 4)]
    long = data(A, md.Dim("long", 512))
    assert (
        bytes_of(lambda x: md.nth_smallest(x, "long", 256), long) == [("psum", 15 * A.size * 4)] * 8
    )  # four bits a time


def test_a_sort_of_few_rows_moves_a_part_each_round_and_no_device_has_the_whole():
    block = LONG.size // 8 * 4
    row = data(LONG)
    assert bytes_of(lambda x: md.sort(x, LONG), row) == [("ppermute", block)] * 6
    assert (
        bytes_of(lambda x: md.argsort(x, LONG), row) == [("ppermute", block)] * 12
    )  # elements and indices
    assert bytes_of(lambda x: md.sort(x, LONG), row, layout("long -> m", mesh={"m": 2})) == [
        ("ppermute", 4 * block)
    ]


def test_a_sort_of_many_rows_moves_a_part_there_and_back():
    rows = data(md.Dim("many", 16), LONG)
    there_and_back = [("all_to_all", 16 * LONG.size // 8 * 4)] * 2
    assert bytes_of(lambda x: md.sort(x, LONG), rows) == there_and_back
    assert bytes_of(lambda x: md.argsort(x, LONG), rows) == there_and_back
    step = bytes_of(md.value_and_grad(lambda x: md.sum(md.sort(x, LONG) * 2.0)), rows)
    assert [c for c in step if c[0] != "psum"] == there_and_back * 2
