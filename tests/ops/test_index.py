"""take, one_hot and iota: what numpy does, also along split dims."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import meshdsl as md
from meshdsl.lowering.device_loop import DeviceLoop
from tests.helpers import assert_same, collectives, data, dims, every, integers, layout, weight

A, B, C, V = dims(a=8, b=16, c=4, v=16)
X = data(A, B, C)
LAYOUTS = {
    "three axes": layout("a -> m", "b -> n", "c -> r", "v? -> r", mesh={"r": 2, "n": 2, "m": 2}),
    "uneven": layout("v? -> n, m", "b -> m", "a -> n", mesh={"m": 2, "n": 3}, uneven="pad"),
}

TABLE, IDS = weight(V, C), integers(A, B, below=16, seed=3)
ROWS, PICKS = data(A, V, C, seed=4), integers(C, A, below=16, seed=5)


def takes(t, i, r, p):
    return {
        "embedding": md.take(t, i, V),
        "shared dim": md.take(r, i, "v"),
        "two shared dims": md.take(r, p, V),
        "one id": md.take(r, md.max(i), V),
        "constant ids": md.take(r, md.iota(md.Dim("w", 5)) * 3, V),
        "out of range": md.take(t, i * 3 - 8, V),
        "as one_hot": md.einsum(md.one_hot(i, V), t, out=(A, B, C)),
    }


def test_take_is_indexing():
    assert np.array_equal(md.take(TABLE, IDS, V).array, TABLE.array[IDS.array])
    picked = np.take_along_axis(np.asarray(ROWS.array), np.asarray(PICKS.array).T[:, None], 1)[:, 0]
    assert np.array_equal(md.take(ROWS, PICKS, V).array, picked)
    found = md.take(TABLE, IDS * 3 - 8, V).array
    ids = np.asarray(IDS.array) * 3 - 8
    inside = (ids >= 0) & (ids < V.size)
    assert np.array_equal(found, np.where(inside[..., None], TABLE.array[np.clip(ids, 0, 15)], 0))


@every(LAYOUTS, "three axes")
def test_takes_are_the_same_lowered(rules):
    assert_same(takes, TABLE, IDS, ROWS, PICKS, layout=rules)


def test_a_lookup_in_a_split_table_costs_one_sum_and_no_gather():
    rules = layout("v -> m", "a -> n", mesh={"m": 4, "n": 2})
    assert collectives(lambda t, i: md.take(t, i, V), TABLE, IDS, layout=rules) == {
        ("psum", ("m",)): 1
    }


@pytest.mark.parametrize("rules", [(), ("many -> m",), ("few -> m",)])
def test_a_gpu_adds_gradients_of_bfloat16_in_float32(rules, monkeypatch):
    """In bfloat16 the sum of 4,096 ones would stay at 256."""
    monkeypatch.setattr(DeviceLoop, "platform", "gpu")
    many, few = md.Dim("many", 4096), md.Dim("few", 8)
    ids, table = (
        md.tensor(jnp.zeros(4096, jnp.int32), (many,)),
        md.tensor(jnp.ones(8, "bfloat16"), (few,)),
    )
    slope = md.value_and_grad(lambda t: md.sum(md.take(t, ids, few)))
    found = md.lower(slope, layout(*rules, mesh={"m": 8}))(table)[1].array
    assert found.dtype == jnp.bfloat16 and found.tolist() == [4096] + [0] * 7


def test_indices_of_any_integer_dtype_work():
    wide = md.Dim("wide", 512)
    dtypes = (jnp.uint8, jnp.int8, jnp.int16, jnp.uint32)
    table, every_ids = data(wide, C), [integers(A, below=127, dtype=t) for t in dtypes]
    run = lambda t, *ids: [(md.take(t, i, wide), md.one_hot(i, wide)) for i in ids]
    assert_same(run, table, *every_ids, layout=layout("wide -> m", mesh={"m": 8}))
    for ids, (rows, hot) in zip(every_ids, run(table, *every_ids), strict=True):
        at = ids.array.astype(jnp.int32)
        assert np.array_equal(hot.array, jax.nn.one_hot(at, 512))
        assert np.array_equal(rows.array, table.array[at])


@every(LAYOUTS)
def test_numbered_elements_are_the_same_lowered(rules):
    long = md.Dim("b", 4096)

    def run(x):
        every = [
            md.iota(B),
            md.iota(B, jnp.float32),
            md.iota(B, like=x),
            md.iota(long, jnp.bfloat16, like=x),
        ]
        causal = md.broadcast(md.iota(A), (A, B)) >= md.iota(B)
        return every, md.where(causal, x, 0.0), md.one_hot(md.iota(A), B, jnp.bfloat16)

    assert_same(run, X, layout=rules)
    assert np.array_equal(run(X)[0][3].array, np.arange(4096).astype(jnp.bfloat16))
