"""A weight with an adapter beside it computes what their sum does, in every op."""

import jax
import numpy as np
import pytest

import meshdsl as md
from meshdsl.ops.low_rank import LowRank
from tests.helpers import data, weight

A, B, C, Q, RANK = md.Dim("a", 3), md.Dim("b", 4), md.Dim("c", 5), md.Dim("q", 2), md.Dim("rank", 2)
WEIGHT = LowRank(
    weight(A, B, ins=A, seed=1),
    weight(A, RANK, ins=A, seed=2),
    weight(RANK, B, ins=RANK, seed=3),
)
SUM = WEIGHT.as_tensor()
X = data(C, A, seed=4)
IDS, PAIR = md.tensor(np.array([0, 2, 1, 1, 5]), C), md.tensor(np.array([1, 3]), Q)

CALLS = {
    "dot": lambda w: md.dot(X, w),
    "dot by name": lambda w: md.dot(X, weight=w),
    "method": lambda w: X.dot(w.cast("float32")),
    "einsum": lambda w: md.einsum(X, w, out=(..., B)),
    "einsum of three": lambda w: md.einsum(w, X, X, out=(B, C), contract=A),
    "einsum of both": lambda w: md.einsum(w, w, out=()),
    "cast": lambda w: md.einsum(X, md.cast(w, "float32"), out=(C, B)),
    "take of rows": lambda w: md.take(w, IDS, A),
    "take of columns": lambda w: md.take(w, PAIR, "b"),
    "arithmetic": lambda w: 1 - w * 2 + SUM * w,
    "compared": lambda w: md.where(w > 0, w, -w),
    "reduced": lambda w: md.sum(w) + w.sum(),
    "transposed": lambda w: md.transpose(w, (B, A)),
    "a list": lambda w: md.concat([w, SUM], "a"),
    "a tuple": lambda w: md.concat((w, SUM), "a"),
    "experts": lambda w: md.routed(
        lambda groups, rows, table: rows * groups.take(table)[:, :1],
        X,
        md.tensor(np.zeros((5, 1), int), (C, md.Dim("top", 1))),
        md.tensor(np.ones((5, 1), np.float32), (C, md.Dim("top", 1))),
        (md.rename(w, "a", "z"),),
        "z",
    ),
    "indexed": lambda w: w["a", 0:2],
}


@pytest.mark.parametrize("name", CALLS)
def test_it_computes_what_the_sum_does(name):
    found, expected = CALLS[name](WEIGHT), CALLS[name](SUM)
    assert found.dims == expected.dims and found.dtype == expected.dtype
    np.testing.assert_allclose(found.array, expected.array, rtol=1e-5, atol=1e-6)


def test_linear_ops_make_nothing_of_the_size_of_the_weight():
    def thin(weight, a, b):
        return md.dot(X, LowRank(weight, a, b)).array

    jaxpr = jax.make_jaxpr(thin)(WEIGHT.weight, WEIGHT.a, WEIGHT.b)
    assert (3, 4) not in {v.aval.shape for eqn in jaxpr.eqns for v in eqn.outvars}


def test_it_has_what_a_weight_has():
    assert (WEIGHT.dims, WEIGHT.role, WEIGHT.shape) == (SUM.dims, SUM.role, (3, 4))
    assert WEIGHT.dim("a") == A
    assert len(jax.tree.leaves(WEIGHT)) == 3
