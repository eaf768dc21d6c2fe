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

# Each is called with the dims a, b, c, and then with their names.
CALLS = {
    "einsum": lambda a, b, c: md.einsum(X, Y, out=(c, a)),
    "einsum of one": lambda a, b, c: md.einsum(X, Y, out=c),
    "einsum, the rest": lambda a, b, c: md.einsum(X, Y, out=(..., c), contract=b),
    "einsum, a linear map": lambda a, b, c: md.einsum(X, Y, out=(..., c)),
    "conv": lambda a, b, c: md.conv(IMAGE, KERNEL, {b: "k"}, out=(a, b, "heads")),
    "conv_transpose": lambda a, b, c: md.conv_transpose(IMAGE, KERNEL, {b: K}, out=(a, b, HEADS)),
    "conv, a dim that goes in": lambda a, b, c: md.conv(
        IMAGE, KERNEL, {b: K}, out=(a, b, HEADS), stride=2
    ),
    "conv, a dim that comes out": lambda a, b, c: md.conv(
        IMAGE, KERNEL, {b: K}, out=(a, "half", HEADS), stride=2, into={b: "half"}
    ),
    "max_pool": lambda a, b, c: md.max_pool(IMAGE, {b: 2}),
    "sum": lambda a, b, c: md.sum(IMAGE, (a, c)),
    "softmax": lambda a, b, c: md.softmax(X, b),
    "argmax": lambda a, b, c: md.argmax(X, b),
    "transpose": lambda a, b, c: md.transpose(IMAGE, (c, a, b)),
    "broadcast": lambda a, b, c: md.broadcast(X, (HEADS, b, a)),
    "reshape": lambda a, b, c: md.reshape(X, (a, md.Dim("p", 3), C)),
    "reshape to what is there": lambda a, b, c: md.reshape(IMAGE, (b, a, md.Dim("p", 2))),
    "rename": lambda a, b, c: md.rename(X, {b: "p"}),
    "diagonal": lambda a, b, c: md.diagonal(IMAGE, a, b, "ab"),
    "tril": lambda a, b, c: md.tril(X, a, b),
    "slice": lambda a, b, c: md.slice(X, b, 1, 3),
    "pad": lambda a, b, c: md.pad(X, b, 1),
    "split": lambda a, b, c: md.split(X, b, 2),
    "stack and unstack": lambda a, b, c: md.stack(md.unstack(X, b), "b"),
    "shift": lambda a, b, c: md.shift(X, b, 1),
    "cumsum": lambda a, b, c: md.cumsum(X, b),
    "sort": lambda a, b, c: md.sort(X, b),
    "top_k": lambda a, b, c: md.top_k(X, b, 2),
    "searchsorted": lambda a, b, c: md.searchsorted(md.sort(X, b), data(A, K), b),
    "take": lambda a, b, c: md.take(X, IDS, b),
    "scatter": lambda a, b, c: md.scatter(X, IDS, data(A), b),
    "segment_sum": lambda a, b, c: md.segment_sum(X, IDS, a, md.Dim("s", 6)),
    "scan": lambda a, b, c: md.scan(add, md.sum(X, A), X, dim=a),
    "map_over": lambda a, b, c: md.map_over(lambda x: x * md.sum(x), X, dim=b),
    "map_over, in batches": lambda a, b, c: md.map_over(lambda x: x * 2, X, dim=b, batch=4),
    "over": lambda a, b, c: md.over(b, lambda x: md.sort(x, "a"))(X),
    "local": lambda a, b, c: md.local(lambda x: x[:, None], X, out=(a, md.Dim("n", 1), b), whole=b),
    "value_and_grad": lambda a, b, c: md.value_and_grad(lambda w, x: md.sum(w * x), accumulate=a)(
        weight(B), X
    ),
    "iota": lambda a, b, c: md.iota(b, like=X),
    "eye": lambda a, b, c: md.eye(a, b, like=X),
    "normal": lambda a, b, c: md.random.normal(KEY, (b, HEADS), like=X),
    "bernoulli": lambda a, b, c: md.random.bernoulli(KEY, 0.5, (a, b), like=X),
    "permutation": lambda a, b, c: md.random.permutation(KEY, b, like=X),
    "permute": lambda a, b, c: md.random.permute(KEY, X, b),
    "categorical": lambda a, b, c: md.random.categorical(KEY, X, b),
    "reshard": lambda a, b, c: md.reshard(X, {}),
    "parameter": lambda a, b, c: md.parameter(jnp.ones((4, 6)), (A, B), ins=a),
    "an index": lambda a, b, c: X[b, 1:, a, 0],
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_a_name_is_the_dim(call):
    assert_equal(call("a", "b", "c"), call(A, B, C), tolerance=0)


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
