"""Attention as one op equals the formula that it stands for, under every layout."""

from collections import Counter
from functools import cache, partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import meshdsl as md
from tests.helpers import (
    assert_equal,
    assert_same,
    data,
    dims,
    distance,
    layout,
    on_one_device,
    only,
    with_gradients,
)
from tests.ops.attention_operands import BATCH, GROUP, HEADS, RING, beside, operands

pads = partial(layout, uneven="pad")
LAYOUTS = {
    "heads": pads("batch -> x", "heads? -> y", mesh={"x": 2, "y": 2}),
    "queries": pads("batch -> x", "queries -> y", mesh={"x": 2, "y": 4}),
    "memory at rest": pads("queries -> y", "memory -> y", mesh={"y": 4}),
    "context": pads("queries, memory -> y", "group? -> x", mesh={"x": 2, "y": 4}),
    "memory": pads("memory -> y", mesh={"y": 4}),
    "memory over two": pads("memory -> x, y", mesh={"x": 2, "y": 2}),
    "memory and heads": pads(
        "batch -> x", "heads? -> z", "memory -> y", mesh={"x": 2, "y": 2, "z": 2}
    ),
    "ring of 2": pads("queries -> y", RING, mesh={"y": 2}),
    "ring of 4": pads("queries -> y", RING, mesh={"y": 4}),
    "ring of 8": pads("queries -> y", RING, mesh={"y": 8}),
    "ring and heads": pads(
        "batch -> x", "heads? -> z", "queries -> y", RING, mesh={"x": 2, "y": 2, "z": 2}
    ),
    "ring by groups": pads("group? -> y", RING, mesh={"y": 4}),
    "ring over two": pads(
        "queries -> x, y", RING | {"rule": "memory -> y, x"}, mesh={"x": 2, "y": 2}
    ),
    "ring within parts": pads("queries -> y", "memory -> x", RING, mesh={"x": 2, "y": 2}),
}


def expected(q, k, v, *, causal=False, segments=None, window=None, softcap=None, scale=None, **how):
    """The formula on whole arrays.

    The query is [batch, heads, group, rows, features], key and value [batch, heads, columns,
    features]. Segments and positions are [batch, rows] and [batch, columns], the bias [heads, rows,
    columns] and the sinks [heads].
    """
    scores = jnp.einsum("bhgqd,bhkd->bhgqk", q, k, precision=lax.Precision.HIGHEST)
    scores = scores * (q.shape[-1] ** -0.5 if scale is None else scale)
    if softcap is not None:
        scores = softcap * jnp.tanh(scores / softcap)
    if (bias := how.get("bias")) is not None:
        scores = scores + bias[None, :, None]
    rows, columns = how.get("positions") or (None, None)
    rows = jnp.arange(q.shape[-2])[None] if rows is None else rows
    columns = jnp.arange(k.shape[-2])[None] if columns is None else columns
    away = rows[:, :, None] - columns[:, None, :]
    visible = jnp.ones(away.shape, bool)
    if causal:
        visible = visible & (away >= 0)
    if window is not None:
        visible = visible & (abs(away) < window)
    if segments is not None:
        visible = visible & (segments[0][:, :, None] == segments[1][:, None, :])
    visible = visible[:, None, None]
    scores = jnp.where(visible, scores, -1e30)
    top = scores.max(-1, keepdims=True)
    if (sinks := how.get("sinks")) is not None:
        top = jnp.maximum(top, sinks[:, None, None, None])
    top = lax.stop_gradient(top)
    weights = jnp.where(visible, jnp.exp(scores - top), 0)
    total = weights.sum(-1, keepdims=True)
    if sinks is not None:
        total = total + jnp.exp(sinks[:, None, None, None] - top)
    weights = weights / jnp.where(total > 0, total, 1)
    return jnp.einsum("bhgqk,bhkd->bhgqd", weights, v, precision=lax.Precision.HIGHEST)


def attending(tensors, numbers):
    """Attention as a function of Tensors in a row: query, key, value and what `tensors` names."""

    def fn(q, k, v, *others):
        rest, given = list(others), {}
        for name in tensors:
            pair = name in ("segments", "positions")
            given[name] = (rest.pop(0), rest.pop(0)) if pair else rest.pop(0)
        return md.attention(q, k, v, **given, **numbers)

    return fn


# For each case the Tensors beside query, key and value, the numbers, and the sizes.
CASES = {
    "plain": ((), {}, {}),
    "causal": ((), {"causal": True}, {}),
    "window": ((), {"window": 3}, {}),
    "causal window": ((), {"causal": True, "window": 5}, {"features": 80}),
    "soft cap": ((), {"causal": True, "softcap": 1.5, "scale": 0.3}, {"features": 64}),
    "bias": (("bias",), {"softcap": 1.5}, {}),
    "sinks": (("sinks",), {"causal": True, "window": 2}, {}),
    "segments": (("segments",), {"causal": True}, {}),
    "positions": (("positions",), {"causal": True, "window": 4}, {}),
    "other lengths": ((), {"window": 2}, {"rows": 9, "columns": 6}),
    "other features": ((), {"causal": True}, {"of_values": 5}),
    "several blocks": (
        ("segments", "sinks", "bias"),
        {"causal": True, "window": 700, "softcap": 4.0},
        {"rows": 33, "columns": 1030},
    ),
}


@cache
def case(name):
    """A function of Tensors, the Tensors, and the same by the formula as a function of arrays."""
    tensors, numbers, how = CASES[name]
    q, k, v = operands(**how)
    given = {name: beside(name, q, k) for name in tensors}
    flat = [t for x in given.values() for t in (x if isinstance(x, tuple) else (x,))]
    pairs = {name: tuple(t.array for t in x) for name, x in given.items() if isinstance(x, tuple)}

    def formula(q, k, v, *others):
        single = dict(zip([name for name in tensors if name not in pairs], others, strict=True))
        return expected(q, k, v, **numbers, **pairs, **single)

    return attending(tensors, numbers), (q, k, v, *flat), formula


@pytest.mark.parametrize("name", CASES)
def test_attention_is_its_formula(name):
    fn, args, formula = case(name)
    result, grads = on_one_device(fn, *args)
    floats = [t.array for t in args if jnp.issubdtype(t.dtype, jnp.floating)]
    weights = data(*result.dims, seed=100, low=0.5, high=1.5).array
    loss = lambda xs: (jnp.sum((made := formula(*xs)) * weights), made)
    slopes, made = jax.jit(jax.grad(loss, has_aux=True))(floats)
    assert_equal(result.array, made)
    assert_equal([t.array for t in grads], slopes, "gradient")


QUICK = [
    ("causal window", "ring and heads"),
    ("sinks", "memory and heads"),
    ("segments", "ring of 2"),
    ("positions", "memory at rest"),
    ("other features", "heads"),
    ("several blocks", "memory"),
]
SLOW = [
    ("soft cap", "context"),
    ("other lengths", "memory over two"),
    ("window", "queries"),
    ("causal window", "ring by groups"),
    ("segments", "ring over two"),
    ("bias", "ring within parts"),
    ("several blocks", "ring of 8"),
]


@pytest.mark.parametrize("name, under", only(QUICK, QUICK + SLOW))
def test_attention_is_the_same_under_every_layout(name, under):
    fn, args, _ = case(name)
    assert_same(fn, *args, layout=LAYOUTS[under])


def test_attention_in_bfloat16_sums_in_float32():
    q, k, v = operands(rows=40, columns=40, features=64, dtype=jnp.bfloat16)
    made = md.attention(q, k, v, causal=True)
    assert made.dtype == jnp.bfloat16
    wide = expected(*(t.array.astype(jnp.float32) for t in (q, k, v)), causal=True)
    assert distance(made.array, wide) < 4e-3  # of one rounding of weights and of the output


def test_a_query_that_sees_no_key_finds_nothing():
    q, k, v = operands()
    ones, twos = (
        md.tensor(jnp.full((BATCH.size, d.size), n), (BATCH, d))
        for n, d in ((1, q.dim("queries")), (2, k.dim("memory")))
    )
    fn = lambda q, k, v: md.attention(q, k, v, segments=(ones, twos))
    result, grads = with_gradients(fn, (q, k, v))(q, k, v)
    for t in (result, *grads):
        assert not np.any(t.array)


def test_dims_are_matched_by_name_alone():
    """Heads that only the values have, a query without a batch, and dims in any order."""
    rows, columns, features = dims(rows=5, columns=7, features=8)
    q, k, v = (
        data(features, GROUP, rows, seed=1),
        data(columns, features, BATCH, seed=2),
        data(HEADS, columns, BATCH, features, seed=3),
    )
    how = {"queries": "rows", "memory": columns, "head_dim": "features"}
    fn = lambda q, k, v: md.attention(q, k, v, causal=True, **how)
    made = fn(q, k, v)
    assert set(made.dims) == {BATCH, HEADS, GROUP, rows, features}
    whole = expected(
        md.broadcast(q, (BATCH, HEADS, GROUP, rows, features)).array,
        md.broadcast(k, (BATCH, HEADS, columns, features)).array,
        md.transpose(v, (BATCH, HEADS, columns, features)).array,
        causal=True,
    )
    assert_equal(md.transpose(made, (BATCH, HEADS, GROUP, rows, features)).array, whole)
    assert_same(
        fn, q, k, v, layout=layout("heads -> x", "rows -> y", mesh={"x": 2, "y": 2}, uneven="pad")
    )


def test_scores_do_not_stand_in_memory():
    """Temporaries of forward and backward pass grow with the length, and not with its square."""

    def bytes_of(length):
        args = operands(rows=length, columns=length)
        run = with_gradients(lambda q, k, v: md.attention(q, k, v, causal=True), args)
        found = jax.jit(run).lower(*args).compile().memory_analysis()
        assert found is not None
        return found.temp_size_in_bytes

    assert bytes_of(4096) < 2.2 * bytes_of(2048)


UNSEEN = {"one device": layout(mesh={}), "a ring": layout("queries -> y", RING, mesh={"y": 4})}


@pytest.mark.parametrize("rules", UNSEEN.values(), ids=UNSEEN)
def test_what_no_query_sees_is_not_computed(rules):
    """Keys beyond all queries are not even looked at: a NaN among them would be in every sum."""
    q, k, v = operands(rows=600, columns=2400, features=4)
    beyond = jnp.arange(2400)[:, None] >= 1200
    k, v = (t.replace(array=jnp.where(beyond, jnp.nan, t.array)) for t in (k, v))
    run = with_gradients(lambda q, k, v: md.attention(q, k, v, causal=True), (q, k, v))
    result, grads = md.lower(run, rules)(q, k, v)
    assert not any(np.any(np.isnan(t.array)) for t in (result, *grads))


def collectives_of(rules, how, *args, gradients=True):
    """What attention moves, by the record and by the jaxpr: (pass, operation, bytes) and how often.

    What is whole numbers has no gradient, whatever the record says of its way back.
    """
    fn = lambda *args: md.attention(*args, **how)
    program = md.lower(with_gradients(fn, args) if gradients else fn, rules).program(*args)
    (op,) = (op for op in program.ops if op.name == "attention")
    recorded, traced = Counter(), Counter()
    for move in op.moves:
        if move.operation not in ("slice", "vary", "follow"):
            recorded["forward", move.operation, move.bytes] += move.count
        if move.backward and gradients:
            recorded["backward", move.backward, move.bytes] += move.count
    for c in program.collectives:
        if program.op_of(c) is op:
            traced[c.phase, c.operation, c.bytes] += c.count
    return recorded, traced


def test_a_ring_sends_each_part_round_once_and_its_gradient_with_it():
    """No key is gathered, and all that moves is in the record."""
    args = operands(rows=64, columns=64, features=16, dtype=jnp.bfloat16)
    part = 2 * BATCH.size * HEADS.size * 16 * 64 // 8
    recorded, traced = collectives_of(LAYOUTS["ring of 8"], {"causal": True}, *args)
    assert recorded == traced
    assert traced == {
        ("forward", "ppermute", part): 2 * 7,
        ("backward", "ppermute", part): 2 * 7 + 2,  # gradients come home in the dtype of the keys
        ("backward", "ppermute", 2 * part): 2 * 7,
    }


def test_a_split_memory_sums_what_is_small():
    args = operands(rows=64, columns=64)
    rows = 4 * BATCH.size * HEADS.size * GROUP.size * 64
    recorded, traced = collectives_of(LAYOUTS["memory"], {"causal": True}, *args)
    assert recorded == traced
    assert traced == {
        ("forward", "pmax", rows): 1,
        ("forward", "psum", rows): 1,
        ("backward", "psum", rows): 1,
    }


def test_one_query_finds_what_it_seeks_in_a_split_cache():
    """Decoding: the cache stays where it is."""
    q, k, v = operands(rows=1, columns=40)
    q = md.sum(q, "queries")
    lengths = md.tensor(jnp.asarray([3, 40, 1, 17]), (BATCH,))
    fn = lambda q, k, v: md.attention(
        q, k, v, queries=None, causal=True, positions=(lengths - 1, None)
    )
    program, _ = assert_same(fn, q, k, v, layout=LAYOUTS["memory"], gradients=False)
    assert {c.operation for c in program.collectives} == {"pmax", "psum"}
    assert not [c for c in program.collectives if c.bytes > 4 * q.size]


def ring_layer(layers):
    """Attention in a scan over layers, each of which is recomputed in the backward pass."""

    def layer(x, weight):
        key, value = (md.rename(x * n, "queries", "memory") for n in (1.0, 2.0))
        return x + md.attention(x * weight, key, value, causal=True), ()

    return lambda x, weights: md.scan(md.checkpoint(layer), x, weights, dim=layers)[0]


@pytest.mark.slow
@pytest.mark.parametrize("under", ["ring within parts", "memory"])
def test_attention_in_parts_within_a_scan_and_a_checkpoint(under):
    layers, queries, head_dim = dims(layers=3, queries=13, head_dim=8)
    x, weights = data(BATCH, HEADS, queries, head_dim), data(layers, head_dim, seed=1)
    assert_same(ring_layer(layers), x, weights, layout=LAYOUTS[under])


@pytest.mark.slow
@pytest.mark.parametrize(
    "under, rows, columns", [("ring of 4", 0, 4), ("memory", 4, 0), ("ring of 4", 1, 5)]
)
def test_attention_in_parts_of_next_to_nothing(under, rows, columns):
    args = operands(rows=rows, columns=columns)
    fn = lambda q, k, v: md.attention(q, k, v, window=3)
    assert_same(fn, *args, layout=LAYOUTS[under], floor=1.0)
