"""diagonal, tril, triu and eye: numpy's, on any two dims, split or not."""

import jax.numpy as jnp
import numpy as np
import pytest

import meshdsl as md
from meshdsl.ops.triangle import diagonal, eye, tril, triu
from tests.helpers import assert_same, collectives, data, dims, every, layout

A, B, C, W = dims(a=5, b=7, c=2, w=5)
X, SQUARE = data(A, C, B), data(A, md.Dim("d", 5))
LAYOUTS = {
    "other dim": layout("c -> m", mesh={"m": 2}),
    "rows": layout("a -> m", "w? -> m", mesh={"m": 4}, uneven="pad"),
    "columns": layout("b -> m", "d -> m", "w? -> m", mesh={"m": 4}, uneven="pad"),
    "both": layout("a -> m", "b -> n", "d -> n", mesh={"m": 2, "n": 4}, uneven="pad"),
    "three axes": layout(
        "b -> n, m", "d -> n", "a -> r", "w? -> n, r", mesh={"r": 2, "m": 2, "n": 2}, uneven="pad"
    ),
}
# What is computed of X [a, c, b], and the same on its array.
MATRIX = {
    "diagonal": (lambda x: diagonal(x, A, B, W), lambda a: np.diagonal(a, axis1=0, axis2=2)),
    "diagonal, the other way round": (
        lambda x: diagonal(x, "b", "a", W),
        lambda a: np.diagonal(a, axis1=0, axis2=2),
    ),
    "diagonal that keeps a dim": (
        lambda x: diagonal(x, A, B, A),
        lambda a: np.diagonal(a, axis1=0, axis2=2),
    ),
    "diagonal that keeps a name": (
        lambda x: diagonal(x, A, B, md.Dim("b", 5)),
        lambda a: np.diagonal(a, axis1=0, axis2=2),
    ),
    "diagonal of truth": (
        lambda x: diagonal(x > 0, A, B, W),
        lambda a: np.diagonal(a > 0, axis1=0, axis2=2),
    ),
    "tril": (lambda x: tril(x, A, B), lambda a: np.tril(a.transpose(1, 0, 2)).transpose(1, 0, 2)),
    "tril, rows and columns swapped": (
        lambda x: tril(x, "b", "a"),
        lambda a: np.tril(a.transpose(1, 2, 0)).transpose(2, 0, 1),
    ),
    "tril above": (
        lambda x: tril(x, A, B, 2),
        lambda a: np.tril(a.transpose(1, 0, 2), 2).transpose(1, 0, 2),
    ),
    "triu": (lambda x: triu(x, A, B), lambda a: np.triu(a.transpose(1, 0, 2)).transpose(1, 0, 2)),
    "triu below": (
        lambda x: triu(x, A, B, -1),
        lambda a: np.triu(a.transpose(1, 0, 2), -1).transpose(1, 0, 2),
    ),
    "eye": (lambda x: eye(A, B), lambda a: np.eye(5, 7)),
    "part of eye": (lambda x: eye(B, A, jnp.int32, like=x), lambda a: np.eye(7, 5)),
}


@pytest.mark.parametrize("name", MATRIX)
def test_matrix_is_that_of_numpy(name):
    ours, theirs = MATRIX[name]
    assert np.array_equal(ours(X).array, theirs(np.asarray(X.array)))


@every(LAYOUTS, "other dim", "both")
def test_matrices_are_the_same_lowered(rules):
    run = lambda x, y: [
        {name: ours(x) for name, (ours, _) in MATRIX.items()},
        diagonal(y, "a", "d", W),
        diagonal(y, "a", "d", y.dims[1]),
    ]
    assert_same(run, X, SQUARE, layout=rules)


def test_a_sum_stays_pending_through_a_triangle_and_a_diagonal():
    rules = layout("c -> m", mesh={"m": 2})
    assert collectives(lambda x: diagonal(tril(md.sum(x, C), A, B), A, B, W), X, layout=rules) == {
        ("psum", ("m",)): 1
    }


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
    assert (
        collectives(
            lambda x: [tril(x, "a", "b"), triu(x, "b", "a", 1), eye(*x.dims, like=x)],
            whole,
            layout=rules,
        )
        == {}
    )
