"""Wherever a dim of an operand is named, its name means the same as the Dim."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import meshdsl as md
from tests.helpers import assert_equal, assert_same, data, dims, integers, layout, weight

A, B, C, K, HEADS = dims(a=4, b=6, c=2, k=3, heads=2)
X, Y, KERNEL = data(A, B), data(B, C, seed=2), weight(K, C, HEADS, ins=(K, C))
IMAGE, IDS, KEY = data(A, B, C), integers(A, below=B.size), jax.random.key(0)
add = lambda total, x: (total + x, total * x)


def calls(a, b, c):
    """Ops with the dims `a`, `b` and `c`, or their names."""
    return {
        "einsum": md.einsum(X, Y, out=(c, a)),
        "einsum of one": md.einsum(X, Y, out=c),
        "einsum, the rest": md.einsum(X, Y, out=(..., c), contract=b),
        "einsum, a linear map": md.einsum(X, Y, out=(..., c)),
        "conv": md.conv(IMAGE, KERNEL, {b: "k"}, out=(a, b, "heads")),
        "conv_transpose": md.conv_transpose(IMAGE, KERNEL, {b: K}, out=(a, b, HEADS)),
        "conv, a dim that goes in": md.conv(IMAGE, KERNEL, {b: K}, out=(a, b, HEADS), stride=2),
        "conv, a dim that comes out": md.conv(
            IMAGE, KERNEL, {b: K}, out=(a, "half", HEADS), stride=2, into={b: "half"}
        ),
        "max_pool": md.max_pool(IMAGE, {b: 2}),
        "sum": md.sum(IMAGE, (a, c)),
        "softmax": md.softmax(X, b),
        "argmax": md.argmax(X, b),
        "transpose": md.transpose(IMAGE, (c, a, b)),
        "broadcast": md.broadcast(X, (HEADS, b, a)),
        "reshape": md.reshape(X, (a, md.Dim("p", 3), C)),
        "reshape to what is there": md.reshape(IMAGE, (b, a, md.Dim("p", 2))),
        "rename": md.rename(X, {b: "p"}),
        "diagonal": md.diagonal(IMAGE, a, b, "ab"),
        "tril": md.tril(X, a, b),
        "slice": md.slice(X, b, 1, 3),
        "pad": md.pad(X, b, 1),
        "split": md.split(X, b, 2),
        "stack and unstack": md.stack(md.unstack(X, b), "b"),
        "shift": md.shift(X, b, 1),
        "cumsum": md.cumsum(X, b),
        "sort": md.sort(X, b),
        "top_k": md.top_k(X, b, 2),
        "searchsorted": md.searchsorted(md.sort(X, b), data(A, K), b),
        "take": md.take(X, IDS, b),
        "scatter": md.scatter(X, IDS, data(A), b),
        "segment_sum": md.segment_sum(X, IDS, a, md.Dim("s", 6)),
        "scan": md.scan(add, md.sum(X, A), X, dim=a),
        "map_over": md.map_over(lambda x: x * md.sum(x), X, dim=b),
        "map_over, in batches": md.map_over(lambda x: x * 2, X, dim=b, batch=4),
        "over": md.over(b, lambda x: md.sort(x, "a"))(X),
        "local": md.local(lambda x: x[:, None], X, out=(a, md.Dim("n", 1), b), whole=b),
        "value_and_grad": md.value_and_grad(lambda w, x: md.sum(w * x), accumulate=a)(weight(B), X),
        "iota": md.iota(b, like=X),
        "eye": md.eye(a, b, like=X),
        "normal": md.random.normal(KEY, (b, HEADS), like=X),
        "bernoulli": md.random.bernoulli(KEY, 0.5, (a, b), like=X),
        "permutation": md.random.permutation(KEY, b, like=X),
        "permute": md.random.permute(KEY, X, b),
        "categorical": md.random.categorical(KEY, X, b),
        "reshard": md.reshard(X, {}),
        "parameter": md.parameter(jnp.ones((4, 6)), (A, B), ins=a),
        "an index": X[b, 1:, a, 0],
    }


def test_a_name_is_the_dim():
    compiled = jax.jit(calls, static_argnums=(0, 1, 2))
    assert_equal(compiled("a", "b", "c"), compiled(A, B, C), tolerance=0)


def test_names_are_the_dims_lowered():
    def run(x, y):
        return [
            md.einsum(x, y, out=("a", "c")),
            md.broadcast(md.sum(x, "b"), (md.Dim("v", 3), "a")),
            md.scan(add, md.sum(x, "b"), x, dim="b"),
            md.over("a", lambda t: md.cumsum(t, "b"))(x),
            md.random.normal(KEY, ("a", "b"), like=x) * x,
            md.local(jnp.sin, x, out=("a", "b")),
        ]

    assert_same(run, X, Y, layout=layout("a -> m", "b -> n", mesh={"m": 2, "n": 3}))


def test_a_dim_that_two_operands_have_means_both():
    with pytest.raises(md.MeshDSLError, match="`b` is 6 in operand 0 .* and 3 in operand 1"):
        md.einsum(X, data(md.Dim("b", 3), C), out=("a", "c"))


def test_an_alias_has_the_size():
    memory = B.alias("memory")
    assert memory == md.Dim("memory", 6)
    scores = md.einsum(X, md.rename(X, B, memory), out=("b", memory))
    assert scores.dims == (B, memory) and np.array_equal(scores.array, scores.array.T)
