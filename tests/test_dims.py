"""Dims and the algebra of tuples of them."""

import jax
import pytest

import meshdsl as md
from meshdsl.dims import (
    distinct,
    find,
    find_all,
    replace,
    resolve,
    resolve_one,
    show,
    size,
    union,
    without,
)
from tests.helpers import dims

A, B, C = dims(a=2, b=3, c=4)


def test_a_dim_is_a_value():
    assert A == md.Dim("a", 2) and A != md.Dim("a", 3) and A != md.Dim("b", 2)
    assert len({A, md.Dim("a", 2), B}) == 2
    assert show((A, B)) == "[a=2, b=3]" and show(()) == "[]"


def test_a_dim_is_structure_and_not_data():
    assert jax.tree.leaves((A, {"b": B})) == []
    jax.jit(lambda d: d)(A)


ALGEBRA = {
    "size": (lambda: size((A, B, C)), 24),
    "size of none": (lambda: size(()), 1),
    "union": (lambda: union("x", [(A, B), (), (C, B)]), (A, B, C)),
    "without": (lambda: without((A, B, C), [B]), (A, C)),
    "replace": (lambda: replace((A, B, C), B, (C, A)), (A, C, A, C)),
    "replace by nothing": (lambda: replace((A, B), B, ()), (A,)),
    "find by name": (lambda: find("x", (A, B), "b"), B),
    "find by Dim": (lambda: find("x", (A, B), B), B),
    "find all": (lambda: find_all("x", (A, B, C), ("c", A)), (C, A)),
    "resolve names": (lambda: resolve("x", (A, B, A), ("b", A, C, ...)), (B, A, C, ...)),
    "resolve one name": (lambda: resolve("x", (A, B), "b"), (B,)),
    "resolve one": (lambda: (resolve_one("x", (A, B), "b"), resolve_one("x", (), C)), (B, C)),
    "alias": (lambda: A.alias("memory"), md.Dim("memory", 2)),
    "find one": (lambda: find_all("x", (A, B), "b"), (B,)),
    "find every": (lambda: find_all("x", (A, B), None), (A, B)),
    "distinct": (lambda: distinct([A, B], "x"), (A, B)),
    "distinct of one": (lambda: distinct(A, "x"), (A,)),
}


@pytest.mark.parametrize("fn, expected", ALGEBRA.values(), ids=ALGEBRA)
def test_algebra(fn, expected):
    assert fn() == expected
