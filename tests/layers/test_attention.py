"""Attention is its formula, to itself and to another tensor, whole and position by position."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import meshdsl as md
from meshdsl.layers import Attention, Documents, angles
from tests.helpers import data, dims, distance, integers, made
from tests.layers.common import (
    BATCH,
    D_MODEL,
    D_SOURCE,
    GROUP,
    HEAD_DIM,
    HEADS,
    LENGTH,
    OTHER,
    SOURCE,
    X,
)

KEY = jax.random.key(3)
LAYER = made(Attention.init, KEY, D_MODEL, HEADS, HEAD_DIM, GROUP, bias=True)
CROSS = made(Attention.init, KEY, D_MODEL, HEADS, HEAD_DIM, GROUP, d_source=D_SOURCE)
BEFORE = np.tril(np.ones((LENGTH.size, LENGTH.size), bool))
SEGMENTS = integers(BATCH, LENGTH, below=3)
SAME = np.asarray(SEGMENTS)[:, :, None] == np.asarray(SEGMENTS)[:, None, :]
SEEN = data(BATCH, LENGTH, seed=5) > -0.5
SEEN_OF_OTHER = data(BATCH, SOURCE, seed=6) > -0.5


def formula(layer, x, source, visible=True):
    """In plain JAX: batch b, queries l, keys m, heads h, group g, head_dim e, features d."""
    of = lambda part: 0 if part.bias is None else part.bias.array
    q = jnp.einsum("bld,dhge->blhge", x, layer.query.weight.array) + of(layer.query)
    k = jnp.einsum("bmd,dhe->bmhe", source, layer.key.weight.array) + of(layer.key)
    v = jnp.einsum("bmd,dhe->bmhe", source, layer.value.weight.array) + of(layer.value)
    scores = jnp.einsum("blhge,bmhe->bhglm", q, k) / jnp.sqrt(q.shape[-1])
    visible = jnp.broadcast_to(visible, (x.shape[0], x.shape[1], source.shape[1]))
    weights = jax.nn.softmax(jnp.where(visible[:, None, None], scores, -jnp.inf), axis=-1)
    mixed = jnp.einsum("bhglm,bmhe->blhge", weights, v)
    return jnp.einsum("blhge,hged->bld", mixed, layer.out.weight.array) + of(layer.out)


MASK = md.rename(SEEN, LENGTH, "memory")
CASES = {
    "an encoder": ({}, True),
    "a decoder": ({"causal": True}, BEFORE),
    "a mask": ({"mask": MASK}, np.asarray(SEEN)[:, None, :]),
    "a mask and causal": ({"mask": md.iota(md.Dim("memory", 8)) != 3, "causal": True}, None),
    "documents": ({"documents": Documents.of(SEGMENTS)}, SAME),
    "documents, causal": (
        {"documents": Documents.of(SEGMENTS), "causal": True},
        SAME & BEFORE,
    ),
}


@pytest.mark.parametrize("how, visible", CASES.values(), ids=CASES)
def test_attention_to_itself_is_its_formula(how, visible):
    visible = BEFORE & (np.arange(LENGTH.size) != 3) if visible is None else visible
    expected = formula(LAYER, X.array, X.array, visible)
    found = LAYER(X, **how)
    assert found.dims == X.dims and distance(found.array, expected) < 1e-5


def test_attention_to_another_tensor_is_its_formula():
    expected = formula(CROSS, X.array, OTHER.array, np.asarray(SEEN_OF_OTHER)[:, None, :])
    found = CROSS(X, OTHER, memory="source", mask=SEEN_OF_OTHER)
    assert found.dims == X.dims and distance(found.array, expected) < 1e-5
    remembered = CROSS(X, CROSS.remember(OTHER), memory=SOURCE, mask=SEEN_OF_OTHER)
    assert distance(remembered.array, found.array) < 1e-6
    called = md.rename(OTHER, "source", "memory")
    mask = md.rename(SEEN_OF_OTHER, "source", "memory")
    assert distance(CROSS(X, called, mask=mask).array, found.array) < 1e-6


def test_the_dim_that_attends_has_any_name():
    patches = md.rename(X, "length", "patches")
    found = LAYER(patches, length="patches", memory="pixels")
    assert found.dims == patches.dims
    assert distance(found.array, LAYER(X).array) < 1e-6


def test_queries_need_no_batch_and_no_length():
    """Learned queries of all rows alike, and one query for each row."""
    (slots,) = dims(slots=3)
    latents = data(slots, D_MODEL, seed=8)
    found = CROSS(latents, OTHER, memory="source")
    assert set(found.dims) == {BATCH, slots, D_MODEL}
    repeated = jnp.broadcast_to(latents.array, (BATCH.size, *latents.shape))
    found = md.transpose(found, (BATCH, slots, D_MODEL))
    assert distance(found.array, formula(CROSS, repeated, OTHER.array)) < 1e-5
    one = md.mean(X, LENGTH)
    found = CROSS(one, OTHER, memory="source")
    assert found.dims == one.dims
    expected = formula(CROSS, one.array[:, None], OTHER.array)[:, 0]
    assert distance(found.array, expected) < 1e-5


def test_position_by_position_comes_what_comes_of_all_at_once():
    turn = lambda positions: angles(positions, HEAD_DIM)
    whole, cache = LAYER.prefill(X, rotary=turn(md.iota(LENGTH)))
    assert distance(whole.array, LAYER(X, causal=True, rotary=turn(md.iota(LENGTH))).array) < 1e-6
    cache = jax.tree.map(jnp.zeros_like, cache)
    advance = jax.jit(lambda x, cache, at: LAYER.step(x, cache, at, turn(at)))
    for i in range(LENGTH.size):
        position = md.broadcast(md.tensor(i, ()), (BATCH,))
        step, cache = advance(md.take(X, position, LENGTH), cache, position)
        assert distance(step.array, whole.array[:, i]) < 1e-5


def test_a_step_of_one_layer_leaves_the_cache_of_the_others():
    _, cache = LAYER.prefill(X)
    layers, position = md.Dim("layers", 3), md.broadcast(md.tensor(5, ()), (BATCH,))
    several = jax.tree.map(lambda a: jnp.stack([a, 2 * a, a]), cache)
    dims = lambda t: md.tensor(t.array, (layers, *t.dims))
    several = jax.tree.map(dims, several, is_leaf=lambda t: isinstance(t, md.Tensor))
    x = md.take(X, position - 1, LENGTH)
    found, after = LAYER.step(x, several, position, layer=md.tensor(2, ()))
    expected, alone = LAYER.step(x, cache, position)
    assert np.array_equal(found.array, expected.array)
    for name in ("key", "value"):
        before, now = getattr(several, name).array, getattr(after, name).array
        assert np.array_equal(now[:2], before[:2])
        assert np.array_equal(now[2], getattr(alone, name).array)


def test_where_nothing_may_be_seen_gradients_are_finite():
    none = md.tensor(np.zeros(LENGTH.size, bool), (md.Dim("memory", LENGTH.size),))
    loss = lambda x: md.sum(md.square(LAYER(x, mask=none)))
    gradient = md.value_and_grad(loss)(X)[1]
    assert np.isfinite(np.asarray(gradient)).all()


def test_scores_are_of_float32_and_the_result_of_the_dtype_of_x():
    narrow = jax.tree.map(lambda a: a.astype(jnp.bfloat16), LAYER)
    found = narrow(md.cast(X, jnp.bfloat16), causal=True)
    assert found.dtype == jnp.bfloat16
    assert distance(found.array, LAYER(X, causal=True).array) < 3e-2


WRONG = {
    "no length": (
        lambda: LAYER(OTHER),
        ["no `length` in [batch=4, source=6, d_source=12]", "`length=` names the dim that attends"],
    ),
    "no memory": (
        lambda: CROSS(X, OTHER),
        ["no `memory` in [batch=4, source=6, heads=4, head_dim=4]", "`memory=` names the dim of"],
    ),
    "memory of both": (
        lambda: LAYER(X, X, memory="length"),
        ["[batch=4, length=8, d_model=8] has `length`", 'md.rename(source, "length", "memory")'],
    ),
    "keys called as another dim": (
        lambda: LAYER(md.rename(X, "length", "memory"), length="memory"),
        ["[batch=4, memory=8, d_model=8] has `memory`", "`memory=` gives them another name"],
    ),
    "keys of another number": (
        lambda: LAYER(X, memory=md.Dim("memory", 5)),
        ["rename", "length=8", "not memory=5"],
    ),
    "causal to another": (
        lambda: CROSS(X, OTHER, memory="source", causal=True),
        ["`causal` is about positions of one sequence", "`mask`"],
    ),
    "rotary to another": (
        lambda: CROSS(X, OTHER, memory="source", rotary=angles(md.iota(LENGTH), HEAD_DIM)),
        ["`rotary` is about positions"],
    ),
    "a mask of numbers": (
        lambda: LAYER(X, mask=md.cast(MASK, jnp.float32)),
        ["the mask [batch=4, memory=8] is float32", "bools, True where a key may be seen"],
    ),
    "a mask of the queries": (
        lambda: LAYER(X, mask=SEEN),
        ["a mask [batch=4, length=8]", "has memory=8", 'md.rename(mask, "length", "memory")'],
    ),
    "a mask of something else": (
        lambda: LAYER(X, mask=md.tensor(np.ones((8, 6), bool), dims(memory=8, source=6))),
        ["a mask [memory=8, source=6] of scores [batch=4, length=8"],
    ),
    "another width": (
        lambda: CROSS(X, data(BATCH, SOURCE, D_MODEL), memory="source"),
        ["dot", "contracts d_source=12, which [batch=4, source=6, d_model=8] lacks"],
    ),
}


@pytest.mark.parametrize("wrong, said", WRONG.values(), ids=WRONG)
def test_what_is_wrong_is_said_in_names(wrong, said):
    with pytest.raises(md.MeshDSLError) as error:
        wrong()
    assert not [part for part in said if part not in str(error.value)], str(error.value)
