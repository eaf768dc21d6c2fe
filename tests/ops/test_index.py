"""take, one_hot, iota, slice, split, concat, pad and cumsum: what numpy does, also along split dims."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import meshdsl as md
from tests.helpers import assert_same, collectives, data, dims, integers, layout, weight

A, B, C, V = dims(a=8, b=16, c=4, v=16)
X = data(A, B, C)
LAYOUTS = {
    "none": layout(mesh={"m": 2, "n": 4}),
    "other dim": layout("a -> m", mesh={"m": 2, "n": 4}),
    "the dim": layout("b -> n", "v? -> n", mesh={"m": 2, "n": 4}),
    "the dim over both": layout("b -> m, n", "v? -> m, n", mesh={"m": 2, "n": 4}),
    "the dim, minor first": layout("b -> n, m", "v? -> n, m", mesh={"m": 2, "n": 4}),
    "priority": layout("v? -> m", "b -> m", "a -> m", "c -> n", mesh={"n": 4, "m": 2}),
    "three axes": layout("a -> m", "b -> n", "c -> r", "v? -> r", mesh={"r": 2, "n": 2, "m": 2}),
}
CUTS = {
    "slice": (lambda x: md.slice(x, B, 0, 8), lambda x: x[:, :8]),
    "slice of everything": (lambda x: md.slice(x, "c", 0, 4), lambda x: x),
    "slice to another dim": (lambda x: md.slice(x, B, 3, md.Dim("w", 4)), lambda x: x[:, 3:7]),
    "pad": (lambda x: md.pad(x, B, 3, 13, value=2), lambda x: np.pad(x, [(0, 0), (3, 13), (0, 0)], constant_values=2)),
    "concat": (lambda x: md.concat([x, x * 2], "b"), lambda x: np.concatenate([x, x * 2], 1)),
    "concat of three": (lambda x: md.concat([x, md.slice(x, B, 2, 8), md.slice(x, B, 1, 8)], md.Dim("b", 32)),
                        lambda x: np.concatenate([x, x[:, 2:10], x[:, 1:9]], 1)),
    "split": (lambda x: md.split(x, B, [md.Dim("p", 3), md.Dim("q", 13)])[1], lambda x: x[:, 3:]),
    "split in two": (lambda x: md.concat(md.split(x, B, 2)[::-1], B), lambda x: np.concatenate([x[:, 8:], x[:, :8]], 1)),
    "cumsum": (lambda x: md.cumsum(x, B), lambda x: x.cumsum(1)),
    "cumsum backwards": (lambda x: md.cumsum(x, B, reverse=True), lambda x: x[:, ::-1].cumsum(1)[:, ::-1]),
    "shift": (lambda x: md.slice(md.pad(md.rename(x, B, "w"), "w", before=1), "w", 0, B), lambda x: np.pad(x, [(0, 0), (1, 0), (0, 0)])[:, :16]),
}  # fmt: skip


@pytest.mark.parametrize("name", CUTS)
def test_cuts_and_sums_are_those_of_numpy(name):
    ours, theirs = CUTS[name]
    np.testing.assert_allclose(ours(X).array, theirs(np.asarray(X.array)), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("rules", LAYOUTS.values(), ids=LAYOUTS)
def test_cuts_and_sums_are_the_same_lowered(rules):
    legal = {name: ours for name, (ours, _) in CUTS.items()}
    assert_same(lambda x: {name: fn(x) for name, fn in legal.items()}, X, layout=rules)


def test_concat_puts_together_tensors_whose_dims_lie_differently():
    run = lambda x, y: md.concat([x, md.transpose(y, (B, C, A)), md.slice(y, B, 0, 8)], "b")  # noqa: E731
    assert np.array_equal(run(X, X).array[:, 16:32], X.array)
    for rules in (LAYOUTS["other dim"], LAYOUTS["the dim"], LAYOUTS["three axes"]):
        assert_same(run, X, data(A, B, C, seed=9), layout=rules)


def test_cumsum_of_other_dtypes_is_the_same_lowered():
    run = lambda x: [md.cumsum(md.cast(x * 9, t), B) for t in (jnp.int8, jnp.int32, jnp.bool_, jnp.float16)]  # noqa: E731
    for rules in LAYOUTS.values():
        assert_same(run, X, layout=rules, gradients=False, tolerance=2e-3)


def test_cumsum_of_infinities_only_reaches_what_comes_after():
    array = np.ones(8, np.float32)
    array[5] = np.inf
    assert_same(lambda x: md.cumsum(x, A), md.tensor(array, (A,)), layout=layout("a -> m", mesh={"m": 4}), gradients=False)


def test_cumsum_sends_one_total_per_part():
    rules = layout("b -> m", mesh={"m": 4})
    program = md.lower(lambda x: md.cumsum(x, B), rules).program(X)
    assert [(c.operation, c.bytes) for c in program.collectives] == [("all_gather", 4 * A.size * C.size * 4)]


TABLE, IDS = weight(V, C), integers(A, B, below=16, seed=3)
ROWS, PICKS = data(A, V, C, seed=4), integers(C, A, below=16, seed=5)
TAKES = {
    "embedding": lambda t, i, r, p: md.take(t, i, V),
    "shared dim": lambda t, i, r, p: md.take(r, i, "v"),
    "two shared dims": lambda t, i, r, p: md.take(r, p, V),
    "one id": lambda t, i, r, p: md.take(r, md.max(i), V),
    "constant ids": lambda t, i, r, p: md.take(r, md.iota(md.Dim("w", 5)) * 3, V),
    "out of range": lambda t, i, r, p: md.take(t, i * 2 - 8, V),
    "as one_hot": lambda t, i, r, p: md.einsum(md.one_hot(i, V), t, out=(A, B, C)),
}


def test_take_is_indexing():
    assert np.array_equal(md.take(TABLE, IDS, V).array, TABLE.array[IDS.array])
    picked = np.take_along_axis(np.asarray(ROWS.array), np.asarray(PICKS.array).T[:, None], 1)[:, 0]
    assert np.array_equal(md.take(ROWS, PICKS, V).array, picked)
    found = md.take(TABLE, IDS * 2 - 8, V).array
    ids = np.asarray(IDS.array) * 2 - 8
    inside = (ids >= 0) & (ids < V.size)
    assert np.array_equal(found, np.where(inside[..., None], TABLE.array[np.clip(ids, 0, 15)], 0))


@pytest.mark.parametrize("rules", LAYOUTS.values(), ids=LAYOUTS)
def test_takes_are_the_same_lowered(rules):
    run = lambda *args: {name: fn(*args) for name, fn in TAKES.items()}  # noqa: E731
    assert_same(run, TABLE, IDS, ROWS, PICKS, layout=rules)


def test_a_lookup_in_a_split_table_costs_one_sum_and_no_gather():
    rules = layout("v -> m", "a -> n", mesh={"m": 4, "n": 2})
    assert collectives(lambda t, i: md.take(t, i, V), TABLE, IDS, layout=rules) == {("psum", ("m",)): 1}


@pytest.mark.parametrize("dtype", [jnp.uint8, jnp.int8, jnp.int16, jnp.uint32])
def test_indices_of_any_integer_dtype_work(dtype):
    wide = md.Dim("wide", 512)
    ids = integers(A, below=127, dtype=dtype)
    table = data(wide, C)
    rules = layout("wide -> m", mesh={"m": 8})
    assert_same(lambda t, i: [md.take(t, i, wide), md.one_hot(i, wide)], table, ids, layout=rules)
    assert np.array_equal(md.one_hot(ids, wide).array, jax.nn.one_hot(ids.array.astype(jnp.int32), 512))
    assert np.array_equal(md.take(table, ids, wide).array, table.array[ids.array.astype(jnp.int32)])


@pytest.mark.parametrize("rules", LAYOUTS.values(), ids=LAYOUTS)
def test_numbered_elements_are_the_same_lowered(rules):
    long = md.Dim("b", 4096)

    def run(x):
        every = [md.iota(B), md.iota(B, jnp.float32), md.iota(B, like=x), md.iota(long, jnp.bfloat16, like=x)]
        causal = md.broadcast(md.iota(A), (A, B)) >= md.iota(B)
        return every, md.where(causal, x, 0.0), md.one_hot(md.iota(A), B, jnp.bfloat16)

    assert_same(run, X, layout=rules)
    assert np.array_equal(run(X)[0][3].array, np.arange(4096).astype(jnp.bfloat16))
