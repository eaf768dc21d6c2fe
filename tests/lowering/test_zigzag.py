"""A dim in zigzag order: the same results, and blocks move only where they must."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import meshdsl as md
from meshdsl.lowering.law import apply_op
from meshdsl.ops.attention import attention
from tests.helpers import assert_same, data, dims, every, integers, layout, weight

BATCH, LENGTH, HEADS, VOCAB, D = dims(batch=2, length=16, heads=4, vocab=6, d=4)
QUERIES, MEMORY = dims(queries=16, memory=16)
KEY = jax.random.key(7)


def zigzag(rule: str, **how) -> dict:
    return {"rule": rule, "order": "zigzag", **how}


BOTH = {"data": 2, "context": 4}
LAYOUTS = {
    "two axes": layout("batch -> data", zigzag("length, memory? -> context, data"), mesh=BOTH),
    "queries in natural order": layout(
        "batch -> data", zigzag("length -> context"), "queries? -> context", mesh=BOTH
    ),
    "heads first": layout(
        "heads -> context", zigzag("length, queries? -> context"), "vocab -> data", mesh=BOTH
    ),
    "parameters too": layout(
        "batch -> data",
        zigzag("length, queries? -> context"),
        mesh=BOTH,
        parameters=["length -> data", "d -> context"],
        gradients=["vocab -> data"],
    ),
    "padded": layout(zigzag("length, queries? -> context", uneven="pad"), mesh={"context": 3}),
}


def model(positions, table, w, ids):
    """What an element of a dim knows of its place: positions, masks, draws, neighbours."""
    x = md.take(table, ids, VOCAB) + positions
    angle = md.iota(LENGTH, jnp.float32, like=x) * 0.1
    x = md.dropout(x * md.cos(angle), 0.2, KEY) + md.shift(x, LENGTH, 1)
    q = md.rename(md.einsum(x, w, out=(..., HEADS)), LENGTH, QUERIES)
    k = md.rename(q, QUERIES, MEMORY)
    seen = md.where(md.tril(md.einsum(q, k, contract=HEADS, out=...), QUERIES, MEMORY) == 0, -9, 0)
    scores = md.softmax(md.einsum(q, k, out=(BATCH, HEADS, QUERIES, MEMORY)) + seen, MEMORY)
    made = md.rename(md.einsum(scores, k, out=(BATCH, QUERIES, HEADS)), QUERIES, LENGTH)
    logits = md.einsum(made, md.cumsum(x, LENGTH), table, out=(BATCH, LENGTH, VOCAB))
    return md.mean(md.logsumexp(logits, VOCAB)), made, md.argmax(logits, LENGTH)


@every(LAYOUTS, "two axes", "parameters too", night=("heads first", "queries in natural order"))
def test_a_model_is_the_same_in_zigzag_order(rules):
    args = weight(LENGTH, D), weight(VOCAB, D, seed=2), weight(D, HEADS, ins=D, seed=3)
    assert_same(model, *args, integers(BATCH, LENGTH, below=6), layout=rules, dims=("memory",))


def test_any_split_leads_to_any_other_in_zigzag_order():
    x, y = dims(x=16, y=16)
    rules = layout(zigzag("x, y -> a, b, c"), mesh={"a": 2, "b": 2, "c": 2})
    splits = [("a", ""), ("ab", "c"), ("", "cab"), ("b", "ca"), ("bca", ""), ("cb", "a"), ("", "")]
    pending = ["", "c", "", "", "", "", "ab", "c"]

    def program(t):
        found = []
        for (first, second), waits in zip([*splits, splits[1]], pending, strict=True):
            waits = [a for a in waits if a not in first + second]
            t = md.reshard(t, {x: tuple(first), y: tuple(second)}, pending=waits)
            found.append(md.replicate(t) * md.iota(x, jnp.float32))
        return found

    assert_same(program, data(x, y), layout=rules)


def moves(fn, *args, rules) -> dict[str, list[str]]:
    """For each op the collectives that it takes, in a program without gradients."""
    program = md.lower(fn, rules, dims=("length", "batch", "queries", "memory")).program(*args)
    return {op.name: [m.operation for m in op.moves] for op in program.ops}


def test_an_axis_of_one_device_has_all_of_a_dim():
    """Where it splits a dim at rest that zigzag order would pad over all axes."""
    (a,) = dims(a=3)
    rules = layout({"rule": "a -> x, y", "order": "zigzag"}, mesh={"x": 1, "y": 4}, uneven="pad")
    assert_same(md.tanh, data(a), layout=rules, gradients=False)


def test_blocks_are_exchanged_at_the_edges_and_for_ops_that_need_runs_only():
    rules = layout(zigzag("length, queries -> context"), "other? -> context", mesh={"context": 4})
    x, there = data(BATCH, LENGTH), ["ppermute"] * 2

    def anywhere(x):
        y = md.rename(md.sin(x) + md.random.normal(KEY, x.dims, like=x), LENGTH, QUERIES)
        return md.sum(md.softmax(y, QUERIES) * md.iota(QUERIES, jnp.float32, like=y), BATCH)

    taken = moves(anywhere, x, rules=rules)
    assert taken.pop("zigzag") == taken.pop("settle") == there
    assert {m for op in taken.values() for m in op} <= {"psum", "pmax"}, taken
    assert moves(lambda x: md.flip(x, LENGTH), x, rules=rules)["flip"][:2] == there
    assert moves(lambda x: md.flip(x, BATCH), x, rules=rules)["flip"] == []
    renamed = moves(lambda x: md.rename(x, LENGTH, "other"), x, rules=rules)
    assert renamed == {"zigzag": there, "rename": there}
    assert moves(md.replicate, x, rules=rules)["reshard"] == ["all_gather"]


def test_an_exchange_moves_at_most_what_a_device_has():
    rules = layout("batch -> data", zigzag("length -> context"), mesh=BOTH)
    ids = integers(BATCH, LENGTH, below=9)
    program = md.lower(lambda ids: ids + 1, rules).program(ids)
    (entry, *_) = program.ops
    part = BATCH.size // 2 * LENGTH.size // 4 * 4
    assert [m.bytes for m in entry.moves] == [part // 2, part // 2]
    assert all("rule 2: length -> context" in m.why for m in entry.moves)


def test_a_loop_knows_the_runs_that_a_device_has():
    seen = {}

    def count(x):
        def local(at, a):
            seen["sizes"] = [size for _, size in at.runs(LENGTH)]
            starts = jnp.stack([jnp.asarray(start, jnp.int32) for start, _ in at.runs(LENGTH)])
            return at.gather(starts, LENGTH, in_order=False)

        pairs = dims(part=4, run=2)
        return apply_op(
            "runs", local, (x,), loop=x.dims, out=pairs, in_order=(), sums=False, like=x
        )

    rules = layout(zigzag("length -> context"), mesh={"context": 4})
    starts = md.lower(count, rules)(data(LENGTH)).array
    assert np.array_equal(starts, [[0, 14], [2, 12], [4, 10], [6, 8]])
    assert seen["sizes"] == [2, 2]


def test_keys_of_random_draws_are_cut_and_exchanged():
    keys = md.tensor(jax.random.split(KEY, LENGTH.size), (LENGTH,))
    draw = md.over(LENGTH, lambda x, key: x + md.random.uniform(key.array, x.dims, like=x))
    rules = layout(zigzag("length -> context"), mesh={"context": 4})
    x = data(LENGTH, D)
    found = md.lower(lambda x, keys: draw(x, keys), rules, dims=("d",))(x, keys)
    np.testing.assert_allclose(found.array, draw(x, keys).array, rtol=1e-6)


ATTENTION = {
    "memory in natural order": layout(
        "batch -> data", zigzag("queries -> context"), "memory -> context", mesh=BOTH
    ),
    "heads first": layout(
        "heads -> data", zigzag("queries, memory -> context, data"), mesh={"context": 2, "data": 2}
    ),
    "a ring of keys alone": layout(
        "queries -> context", zigzag("memory -> context", move="ring"), mesh={"context": 4}
    ),
    "rings of parts": layout(
        zigzag("queries -> context"), zigzag("memory -> data, context", move="ring"), mesh=BOTH
    ),
    "ring, padded": layout(
        zigzag("queries -> context", uneven="pad"),
        zigzag("memory -> context", move="ring", uneven="pad"),
        mesh={"context": 3},
    ),
    "keys that are split": layout(zigzag("memory -> context"), mesh={"context": 4}),
}


@every(
    ATTENTION,
    *("heads first", "rings of parts"),
    night=("memory in natural order", "a ring of keys alone"),
)
def test_attention_is_the_same_in_zigzag_order(rules):
    how = {"causal": True, "window": 9, "head_dim": "d", "implementation": "blocks"}
    fn = lambda q, k, v, s, t, bias: md.attention(q, k, v, segments=(s, t), bias=bias, **how)
    key, value = (data(BATCH, MEMORY, HEADS, D, seed=i) for i in (2, 3))
    of_queries, of_memory = (md.tensor(jnp.arange(16) // 5, (d,)) for d in (QUERIES, MEMORY))
    args = data(BATCH, QUERIES, HEADS, D), key, value, of_queries, of_memory, data(QUERIES, MEMORY)
    assert_same(fn, *args, layout=rules, dims=("batch", "heads"))


@pytest.mark.slow
@pytest.mark.parametrize(
    "move, moved", [("ring", {"ppermute", "follow"}), ("collective", {"all_gather"})]
)
def test_splash_attends_to_the_runs_of_zigzag_order_as_they_are(move, moved):
    queries, memory, features = dims(queries=512, memory=512, d=64)
    rules = layout(
        zigzag("queries -> context"), zigzag("memory -> context", move=move), mesh={"context": 2}
    )
    fn = lambda q, k, v: md.attention(q, k, v, causal=True, head_dim="d", implementation="splash")
    args = data(queries, features), *(data(memory, features, seed=i) for i in (2, 3))
    program, _ = assert_same(fn, *args, layout=rules)
    (op,) = (op for op in program.ops if op.name == "attention")
    assert op.kernel == "splash" and {m.operation for m in op.moves} == moved


@pytest.mark.parametrize("order", ["zigzag", "natural"])
def test_causal_attention_is_balanced_in_zigzag_order(order, monkeypatch):
    """Each query is told how many pairs of it and a key its device sees as visible."""

    def counted(*arguments):
        query, _, value, sides = arguments[-4:]
        pairs = jnp.sum(sides.columns <= sides.rows)
        return jnp.broadcast_to(pairs.astype(value.dtype), (*query.shape[:-1], value.shape[-1]))

    blocks = attention.IMPLEMENTATIONS["blocks"]._replace(attend=counted)
    monkeypatch.setitem(attention.IMPLEMENTATIONS, "blocks", blocks)
    queries, memory = dims(queries=64, memory=64)
    fn = lambda q, k: md.attention(q, k, k, causal=True, head_dim="d", implementation="blocks")
    rules = layout({"rule": "queries, memory -> context", "order": order}, mesh={"context": 4})
    made = md.lower(fn, rules)(data(queries, D), data(memory, D)).array
    if order == "zigzag":
        assert np.all(np.asarray(made) == 64 * 65 / 2 / 4)
    else:
        assert np.asarray(made)[::16, 0].tolist() == [136, 392, 648, 904]
