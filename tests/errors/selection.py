"""Errors of ops that pick, sort or scatter elements, and of triangles and diagonals."""

import jax.numpy as jnp

import meshdsl as md
from tests.errors.common import IDS, A, B, C, T, X, Y
from tests.helpers import data, integers

ERRORS = [
    # Picking.
    (lambda: md.take(X, md.cast(IDS, jnp.float32), B), "take … [a=4] … float32 … whole numbers"),
    (lambda: md.take(X, IDS, A), "take … [a=4] … a=4 that they index; rename"),
    (lambda: md.one_hot(IDS, md.Dim("a", 9)), "one_hot: [a=4] has a dim `a` already"),
    (lambda: md.one_hot(X, C), "one_hot … [a=4, b=8] … float32 … whole numbers"),
    # Sorting.
    (lambda: md.sort(X, B, descending="yes"), "sort: `descending` is True or False, not 'yes'"),
    (
        lambda: md.searchsorted(X, IDS, B, side="middle"),
        "searchsorted … 'left' or 'right' … 'middle'",
    ),
    (lambda: md.searchsorted(X, IDS, A), "searchsorted … [a=4] … a=4 that is searched; rename"),
    (lambda: md.top_k(X, A, 5), "top_k: 5 elements along a=4 of [a=4, b=8], which has 4"),
    (
        lambda: md.nth_largest(X, A, 5),
        "nth_largest: no element number 5 along a=4 of [a=4, b=8] … 1 to 4",
    ),
    (
        lambda: md.nth_smallest(X, "a", 0),
        "nth_smallest: no element number 0 along a=4 … count from 1",
    ),
    # Scattering.
    (
        lambda: md.scatter(Y, IDS, X, C, how="mx"),
        "scatter … 'add', 'max', 'min', 'set' … 'mx'; did you mean `max`?",
    ),
    (lambda: md.scatter(Y, X, X, C), "scatter … [a=4, b=8] are float32 … whole numbers"),
    (lambda: md.scatter(X, IDS, X, A), "scatter … [a=4] … a=4 that they index; rename"),
    (lambda: md.scatter(Y, IDS, data(T), C), "scatter: the updates have [t=2] … among [b=8, a=4]"),
    (
        lambda: md.scatter(Y, IDS, X, (B, C)),
        "scatter: 1 Tensors of indices for [b=8, c=3]; each of these dims has its own",
    ),
    (
        lambda: md.scatter(Y, integers(md.Dim("b", 7), below=3), X, C),
        "scatter: `b` is 8 in operand 0 … 7 in operand 1 [b=7]",
    ),
    (lambda: md.segment_sum(X, IDS, B, C), "segment_sum: no dim `b` in [a=4]"),
    # Indices and triangles.
    (lambda: md.eye(A, A), "eye: `a` occurs twice"),
    (lambda: md.diagonal(X, A, "a", C), "diagonal … two dims of [a=4, b=8], not a=4 twice"),
    (lambda: md.diagonal(X, A, B, C), "diagonal: c=3 instead of [a=4, b=8] … it has 4 elements"),
]
