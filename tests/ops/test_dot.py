"""dot: what an einsum over the weight's `ins` computes, under any layout."""

import jax.numpy as jnp
import pytest

import meshdsl as md
from tests.helpers import assert_same, data, dims, distance, every, layout, weight

A, B, C, D, E = dims(a=4, b=8, c=2, d=8, e=4)
X = data(A, B, C)
CASES = {
    "a matrix": ("abc,bd->acd", weight(B, D, ins=B), (A, C, D)),
    "dims in any order": ("abc,db->acd", weight(D, B, ins="b"), (A, C, D)),
    "several ins and outs": ("abc,bcde->ade", weight(B, C, D, E, ins=("b", C)), (A, D, E)),
    "nothing is left": ("abc,abc->", weight(A, B, C, ins=(A, B, C)), ()),
    "a dim of both": ("abc,abd->acd", weight(A, B, D, ins=B), (A, C, D)),
    "a dim of copies": ("abc,ebd->aced", weight(E, B, D, ins=B), (A, C, E, D)),
}
LAYOUTS = {
    "contracted": layout("b -> m", mesh={"m": 4}),
    "everything": layout("a -> m", "b -> n", "e -> r", "c -> r", mesh={"r": 2, "n": 2, "m": 2}),
}


@pytest.mark.parametrize("formula, w, out", CASES.values(), ids=CASES)
def test_dot_contracts_the_ins_of_its_weight(formula, w, out):
    made = md.dot(X, w)
    assert made.dims == out
    assert distance(made.array, jnp.einsum(formula, X.array, w.array)) < 1e-6


@every(LAYOUTS)
def test_dot_is_the_same_lowered(rules):
    weights = [w for _, w, _ in CASES.values()]
    assert_same(lambda x, weights: [md.dot(x, w) for w in weights], X, weights, layout=rules)


def test_a_weight_is_used_in_the_dtype_of_what_it_multiplies():
    w = weight(B, D, ins=B)
    assert md.dot(md.cast(X, jnp.bfloat16), w).dtype == jnp.bfloat16
    wide = {"preferred_element_type": jnp.float32}
    assert md.dot(md.cast(X, jnp.bfloat16), w, **wide).dtype == jnp.float32
    assert md.dot(md.cast(X, jnp.complex64), w).dtype == jnp.complex64
    whole = md.cast(md.cast(X, jnp.int32), jnp.int8), md.cast(w, jnp.int32)
    assert md.dot(*whole).dtype == jnp.int8


def test_dot_is_recorded_as_the_einsum_that_it_is():
    program = md.lower(md.dot, LAYOUTS["contracted"]).program(X, weight(B, D, ins=B))
    assert [op.name for op in program.ops] == ["einsum", "settle"]
