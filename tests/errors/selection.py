"""Errors of ops that pick, sort or scatter elements, and of triangles and diagonals."""

import jax.numpy as jnp

import meshdsl as md
from tests.errors.common import IDS, A, B, C, T, X, Y
from tests.helpers import data, integers

ERRORS = {
    # Picking.
    "take, fractions": (
        lambda: md.take(X, md.cast(IDS, jnp.float32), B),
        ["take", "[a=4]", "float32", "whole numbers"],
    ),
    "take, the same dim": (
        lambda: md.take(X, IDS, A),
        ["take", "[a=4]", "a=4 that they index", "rename"],
    ),
    "one_hot, the same dim": (
        lambda: md.one_hot(IDS, md.Dim("a", 9)),
        ["one_hot", "[a=4] has a dim `a` already"],
    ),
    "one_hot, fractions": (
        lambda: md.one_hot(X, C),
        ["one_hot", "[a=4, b=8]", "float32", "whole numbers"],
    ),
    # Sorting.
    "sort, no such dim": (lambda: md.sort(X, "c"), ["sort", "no dim `c` in [a=4, b=8]"]),
    "sort, a word": (
        lambda: md.sort(X, B, descending="yes"),
        ["sort: `descending` is True or False, not 'yes'"],
    ),
    "searchsorted, a side": (
        lambda: md.searchsorted(X, IDS, B, side="middle"),
        ["searchsorted", "'left' or 'right'", "'middle'"],
    ),
    "searchsorted, the same dim": (
        lambda: md.searchsorted(X, IDS, A),
        ["searchsorted", "[a=4]", "a=4 that is searched", "rename"],
    ),
    "top_k, too many": (
        lambda: md.top_k(X, A, 5),
        ["top_k", "5 elements along a=4 of [a=4, b=8]", "which has 4"],
    ),
    "top_k, a name that is taken": (
        lambda: md.top_k(X, A, md.Dim("b", 2)),
        ["top_k", "`b` occurs twice", "[b=2, b=8]"],
    ),
    "top_k, a fraction": (
        lambda: md.top_k(X, B, 2.0),
        ["top_k: `k` is a whole number or a Dim", "not 2.0"],
    ),
    "nth_largest, too far": (
        lambda: md.nth_largest(X, A, 5),
        ["nth_largest", "no element number 5 along a=4 of [a=4, b=8]", "1 to 4"],
    ),
    "nth_largest, a fraction": (lambda: md.nth_largest(X, B, 2.0), ["nth_largest: `n`", "not 2.0"]),
    "nth_smallest, none": (
        lambda: md.nth_smallest(X, "a", 0),
        ["nth_smallest", "no element number 0 along a=4", "count from 1"],
    ),
    # Scattering.
    "scatter, another how": (
        lambda: md.scatter(Y, IDS, X, C, how="mx"),
        ["scatter", "'add', 'max', 'min', 'set'", "'mx'", "did you mean `max`?"],
    ),
    "scatter, fractions": (
        lambda: md.scatter(Y, X, X, C),
        ["scatter", "[a=4, b=8] are float32", "whole numbers"],
    ),
    "scatter, the same dim": (
        lambda: md.scatter(X, IDS, X, A),
        ["scatter", "[a=4]", "a=4 that they index", "rename"],
    ),
    "scatter, another dim in the updates": (
        lambda: md.scatter(Y, IDS, data(T), C),
        ["scatter", "the updates have [t=2]", "among [b=8, a=4]"],
    ),
    "scatter, one index for two dims": (
        lambda: md.scatter(Y, IDS, X, (B, C)),
        ["scatter", "1 Tensors of indices for [b=8, c=3]", "each of these dims has its own"],
    ),
    "scatter, another size": (
        lambda: md.scatter(Y, integers(md.Dim("b", 7), below=3), X, C),
        ["scatter", "`b` is 8 in operand 0", "7 in operand 1 [b=7]"],
    ),
    "segment_sum, ids without the dim": (
        lambda: md.segment_sum(X, IDS, B, C),
        ["segment_sum", "no dim `b` in [a=4]"],
    ),
    "segment_sum, the same dim": (
        lambda: md.segment_sum(X, IDS, A, A),
        ["segment_sum", "[a=4]", "a=4 that they index", "rename"],
    ),
    "bincount, fractions": (
        lambda: md.bincount(X, C),
        ["bincount", "[a=4, b=8] are float32", "whole numbers"],
    ),
    # Indices and triangles.
    "eye of one dim": (lambda: md.eye(A, A), ["eye", "`a` occurs twice"]),
    "diagonal of one dim": (
        lambda: md.diagonal(X, A, "a", C),
        ["diagonal", "two dims of [a=4, b=8]", "not a=4 twice"],
    ),
    "diagonal, another size": (
        lambda: md.diagonal(X, A, B, C),
        ["diagonal", "c=3 instead of [a=4, b=8]", "it has 4 elements"],
    ),
    "tril of one dim": (
        lambda: md.tril(X, B, B),
        ["tril", "two dims of [a=4, b=8]", "not b=8 twice"],
    ),
    "tril, a fraction": (lambda: md.tril(X, A, B, 0.5), ["tril: `k`", "not 0.5"]),
}
