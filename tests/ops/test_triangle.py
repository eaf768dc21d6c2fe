"""diagonal, tril, triu and eye: numpy's, on any two dims, split or not."""

import jax.numpy as jnp
import numpy as np
import pytest

import meshdsl as md
from meshdsl.ops.triangle import diagonal, eye, tril, triu
from tests.helpers import assert_same, collectives, data, dims, layout

A, B, C, W = dims(a=5, b=7, c=2, w=5)
X, SQUARE = data(A, C, B), data(A, md.Dim("d", 5))
RULES = layout(
    "b -> n, m", "d -> n", "a -> r", "w? -> n, r", mesh={"r": 2, "m": 2, "n": 2}, uneven="pad"
)


def matrices(x):
    return {
        "diagonal": diagonal(x, A, B, W),
        "diagonal, the other way round": diagonal(x, "b", "a", W),
        "diagonal that keeps a dim": diagonal(x, A, B, A),
        "diagonal that keeps a name": diagonal(x, A, B, md.Dim("b", 5)),
        "diagonal of truth": diagonal(x > 0, A, B, W),
        "tril": tril(x, A, B),
        "tril, rows and columns swapped": tril(x, "b", "a"),
        "tril above": tril(x, A, B, 2),
        "triu": triu(x, A, B),
        "triu below": triu(x, A, B, -1),
        "eye": eye(A, B),
        "part of eye": eye(B, A, jnp.int32, like=x),
    }


def of_numpy(x):
    """The same of an array [a, c, b]."""
    of_rows = lambda fn, *k: fn(x.transpose(1, 0, 2), *k).transpose(1, 0, 2)
    line = np.diagonal(x, axis1=0, axis2=2)
    return {
        "diagonal": line,
        "diagonal, the other way round": line,
        "diagonal that keeps a dim": line,
        "diagonal that keeps a name": line,
        "diagonal of truth": line > 0,
        "tril": of_rows(np.tril),
        "tril, rows and columns swapped": np.tril(x.transpose(1, 2, 0)).transpose(2, 0, 1),
        "tril above": of_rows(np.tril, 2),
        "triu": of_rows(np.triu),
        "triu below": of_rows(np.triu, -1),
        "eye": np.eye(5, 7),
        "part of eye": np.eye(7, 5),
    }


def test_matrices_are_those_of_numpy():
    expected = of_numpy(np.asarray(X.array))
    for name, found in matrices(X).items():
        np.testing.assert_array_equal(found.array, expected[name], err_msg=name)


def test_matrices_are_the_same_lowered():
    run = lambda x, y: [matrices(x), diagonal(y, "a", "d", W), diagonal(y, "a", "d", y.dims[1])]
    assert_same(run, X, SQUARE, layout=RULES)


COUNTS = {
    "one of them": ("a -> m", {}),
    "one of them, and the result": ("a, w -> m", {}),
    "the other": ("d -> m", {("psum", ("m",)): 1}),
    "the other, and the result": ("d, w -> m", {("psum_scatter", ("m",)): 1}),
}


@pytest.mark.parametrize("rule, expected", COUNTS.values(), ids=COUNTS)
def test_a_diagonal_moves_at_most_itself(rule, expected):
    a, d, w = dims(a=8, d=8, w=8)
    rules = layout(rule, mesh={"m": 4})
    found = collectives(lambda x: diagonal(x, a, d, w), data(a, d), layout=rules)
    assert found == (expected or ({} if "w" in rule else {("all_gather", ("m",)): 1}))


def test_masks_move_nothing():
    rules = layout("a -> m", "b -> n", mesh={"m": 2, "n": 4}, uneven="pad")
    whole = data(md.Dim("a", 4), md.Dim("b", 8))
    run = lambda x: [tril(x, "a", "b"), triu(x, "b", "a", 1), eye(*x.dims, like=x)]
    assert collectives(run, whole, layout=rules) == {}
