"""Attention in plain JAX is recognised where it is nothing else, and equals it."""

import functools
import operator

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import meshdsl as md
from tests.from_jax.test_primitives import mixed
from tests.helpers import distance

ROWS, LENGTH, HEADS, SIZE = 2, 8, 4, 4
IDS = jnp.arange(LENGTH)
TABLE = jnp.sin(IDS[:, None] * 0.7 + IDS)


def heads(x, count=HEADS):
    return x.reshape(*x.shape[:-1], count, SIZE)


def of_scores(scores, v):
    return jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores), v)


def scores_of(q, k, scale=0.5):
    return jnp.einsum("bqhd,bkhd->bhqk", heads(q), heads(k)) * scale


def causal(scores):
    return jnp.where(jnp.tril(jnp.ones((LENGTH, LENGTH), bool)), scores, -1e30)


def additive(scores):
    return scores + (1 - jnp.tril(jnp.ones((1, 1, LENGTH, LENGTH)))) * -1e9


def windowed(scores):
    distance = IDS[:, None] - IDS[None]
    return jnp.where((distance >= 0) & (distance < 3), scores, jnp.finfo(scores.dtype).min)


def padded(scores, keep):
    return jnp.where(keep[:, None, None, :], scores, jnp.finfo(scores.dtype).min)


def grouped(q, k, v, keep):
    return jax.nn.dot_product_attention(
        heads(q), heads(k[..., :8], 2), heads(v[..., :8], 2), is_causal=True
    )


def repeated(q, k, v, keep):
    k, v = (jnp.repeat(heads(x[..., :8], 2), 2, axis=2) for x in (k, v))
    scores = jnp.einsum("bqhd,bkhd->bhqk", heads(q), k)
    return of_scores(causal(scores), v)


def rotated(q, k, v, keep):
    """Rotary positions take the features apart."""
    half = lambda x: jnp.split(heads(x), 2, axis=-1)
    turned = [
        jnp.concatenate([a * 0.8 - b * 0.6, b * 0.8 + a * 0.6], -1) for a, b in map(half, (q, k))
    ]
    return of_scores(causal(jnp.einsum("bqhd,bkhd->bhqk", *turned)), heads(v))


def short(q, k, v, keep):
    q, k, v = (heads(x).astype(jnp.bfloat16) for x in (q, k, v))
    return jax.nn.dot_product_attention(q, k, v, is_causal=True).astype(jnp.float32)


def one_head_of_keys(q, k, v, keep):
    scores = jnp.einsum("bqhd,bkd->bhqk", heads(q), k[..., :4])
    return jnp.einsum("bhqk,bkd->bqhd", jax.nn.softmax(causal(scores)), v[..., :4])


def flax_masked(q, k, v, keep):
    mask = nn.combine_masks(nn.make_attention_mask(keep, keep), nn.make_causal_mask(keep))
    return nn.dot_product_attention(heads(q), heads(k), heads(v), mask=mask)


def scanned(q, k, v, keep):
    mask = jnp.tril(jnp.ones((LENGTH, LENGTH), bool))

    def body(x, _):
        scores = jnp.where(mask, scores_of(x, k), -1e30)
        return of_scores(scores, heads(v)).reshape(x.shape), None

    return jax.lax.scan(jax.checkpoint(body), q, None, length=2)[0]


def reused(q, k, v, keep):
    weights = jax.nn.softmax(scores_of(q, k))
    return jnp.einsum("bhqk,bkhd->bqhd", weights, heads(v)), weights.sum(-1)


def dropped(q, k, v, keep):
    weights = jax.nn.softmax(scores_of(q, k))
    some = jax.random.bernoulli(jax.random.key(0), 0.5, weights.shape)
    return jnp.einsum("bhqk,bkhd->bqhd", jnp.where(some, weights * 2, 0), heads(v))


# By what is recognised; None for what must stay as it is.
CASES = {
    "plain": ("attention", lambda q, k, v, keep: of_scores(scores_of(q, k), heads(v))),
    "scaled before": (
        "attention (causal)",
        lambda q, k, v, keep: of_scores(causal(scores_of(q / 2, k, 1.0)), heads(v)),
    ),
    "causal": (
        "attention (causal)",
        lambda q, k, v, keep: of_scores(causal(scores_of(q, k)), heads(v)),
    ),
    "causal, added": (
        "attention (with a bias)",
        lambda q, k, v, keep: of_scores(additive(scores_of(q, k)), heads(v)),
    ),
    "a window": (
        "attention (masked)",
        lambda q, k, v, keep: of_scores(windowed(scores_of(q, k)), heads(v)),
    ),
    "padding": (
        "attention (masked)",
        lambda q, k, v, keep: of_scores(padded(scores_of(q, k), keep > 0), heads(v)),
    ),
    "causal and padding, hidden by two numbers": (
        None,
        lambda q, k, v, keep: of_scores(padded(causal(scores_of(q, k)), keep > 1), heads(v)),
    ),
    "a bias of its own": (
        "attention (causal, with a bias)",
        lambda q, k, v, keep: of_scores(causal(scores_of(q, k) + TABLE * v.mean()), heads(v)),
    ),
    "a soft cap": (
        None,
        lambda q, k, v, keep: of_scores(causal(jnp.tanh(scores_of(q, k) / 2.5) * 2.5), heads(v)),
    ),
    "grouped": ("attention (causal)", grouped),
    "repeated": ("attention (causal)", repeated),
    "rotated": ("attention (causal)", rotated),
    "one head of keys": (None, one_head_of_keys),
    "flax": ("attention (masked)", flax_masked),
    "jax": (
        "attention",
        lambda q, k, v, keep: jax.nn.dot_product_attention(heads(q), heads(k), heads(v)),
    ),
    "jax with a mask": (
        "attention (masked)",
        lambda q, k, v, keep: jax.nn.dot_product_attention(
            heads(q), heads(k), heads(v), mask=(keep > 0)[:, None, None]
        ),
    ),
    "one query": (
        "attention",
        lambda q, k, v, keep: of_scores(scores_of(q[:, 2:3], k), heads(v)),
    ),
    "other features": (
        "attention",
        lambda q, k, v, keep: of_scores(
            scores_of(q, k), v.reshape(ROWS, LENGTH, HEADS, 4)[..., 1:]
        ),
    ),
    "in a scan": ("attention (causal)", scanned),
    "weights used elsewhere": (None, reused),
    "dropout": (None, dropped),
    "a soft mask": (
        None,
        lambda q, k, v, keep: of_scores(
            jnp.where(q[:, None, :, :8] > 0, scores_of(q, k), -3.0), heads(v)
        ),
    ),
    "softmax over the queries": (
        None,
        lambda q, k, v, keep: jnp.einsum(
            "bhqk,bkhd->bqhd", jax.nn.softmax(scores_of(q, k), axis=2), heads(v)
        ),
    ),
}
LAYOUT = md.Layout(
    ["batch? -> data", "length? -> model", "dim4_1? -> model"],
    mesh={"data": 2, "model": 2},
)


def operands(seed):
    keys = jax.random.split(jax.random.key(seed), 3)
    made = [jax.random.normal(k, (ROWS, LENGTH, HEADS * SIZE)) for k in keys]
    keep = np.ones((ROWS, LENGTH), np.int32)
    keep[0, :3] = 0  # queries that see nothing
    return *made, jnp.array(keep)


def check(names):
    functions, packed, wanted = {}, {}, {}
    for i, name in enumerate(names):
        recognised, fn = CASES[name]
        args = operands(i)
        loss = lambda *args, fn=fn: mixed(fn(*args))
        wanted[name] = jax.jit(jax.value_and_grad(loss, (0, 1, 2)))(*args)
        functions[name] = md.from_jax(loss, {"0|1|2": "batch length _", "3": "batch length"})
        text = functions[name].describe(*args)
        packed[name] = functions[name].pack(*args)
        if recognised is None:
            assert "recognised: attention" not in text, name
        else:
            assert f"recognised: {recognised} at test_attention.py:" in text, (name, text)

    def program(qkv, keeps):
        each = [functions[n](*qkv[n], keeps[n]) for n in names]
        return functools.reduce(operator.add, each)

    step = md.lower(md.value_and_grad(program), LAYOUT)
    qkv = {n: packed[n][:3] for n in names}
    total, gradients = step(qkv, {n: packed[n][3] for n in names})
    wrong = []
    for name in names:
        found = [functions[name].unpack(x, i) for i, x in enumerate(gradients[name])]
        error = max(distance(np.asarray(a), b) for a, b in zip(found, wanted[name][1], strict=True))
        if not error < 1e-5:
            wrong.append(f"{name}: {error}")
    assert not wrong, wrong
    np.testing.assert_allclose(np.asarray(total.array), sum(w[0] for w in wanted.values()), 1e-5)


def test_attention_is_recognised():
    check(["grouped"])


def test_attention_of_short_floats_is_recognised():
    named = md.from_jax(short, {"q|k|v": "batch length _", "keep": "batch length"})
    assert "recognised: attention (causal) at " in named.describe(*operands(0))


@pytest.mark.slow
def test_every_attention_equals_plain_jax():
    check(list(CASES))
