"""What attention asks of cuDNN, and what it makes of the answers."""

from functools import partial

import jax
import jax.numpy as jnp
import pytest

import meshdsl as md
from meshdsl.ops.attention import kernels
from tests.helpers import assert_equal, assert_same, layout
from tests.ops.attention_operands import blocks_and, operands


@pytest.fixture
def cudnn(monkeypatch):
    """A stand-in for cuDNN behind JAX's own function; gives the list of what was asked of it."""
    asked = []

    def function(q, k, v, *, implementation, key_value_seq_lengths=None, **how):
        asked.append((implementation, key_value_seq_lengths is not None))
        lengths = jnp.full(q.shape[0], k.shape[1])
        lengths = lengths if key_value_seq_lengths is None else key_value_seq_lengths
        return _like_cudnn(tuple(how.items()), q, k, v, lengths)

    monkeypatch.setattr(jax.nn, "dot_product_attention", function)
    monkeypatch.setattr(kernels, "_has_cudnn", lambda place: True)
    return asked


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _like_cudnn(how, q, k, v, lengths):
    return _like_cudnn_forward(how, q, k, v, lengths)[0]


def _like_cudnn_forward(how, q, k, v, lengths):
    scores, (_, _, v32) = _scores(how, q, k, v, lengths)
    normaliser = jax.nn.logsumexp(scores, -1)
    output = jnp.einsum("bnts,bsnd->btnd", jnp.exp(scores - normaliser[..., None]), v32)
    output = output.astype(q.dtype)
    return output, (q, k, v, lengths, normaliser, output)


def _like_cudnn_backward(how, saved, cotangent):
    """As cuDNN: weights come from the log-sum-exp that was kept, and no output is made again."""
    q, k, v, lengths, normaliser, output = saved
    scores, (q32, k32, v32) = _scores(how, q, k, v, lengths)
    weights = jnp.exp(scores - normaliser[..., None])
    cotangent = cotangent.astype(jnp.float32)
    through = jnp.einsum("btnd,btnd->bnt", cotangent, output.astype(jnp.float32))
    by_weights = jnp.einsum("btnd,bsnd->bnts", cotangent, v32) - through[..., None]
    by_scores = weights * by_weights * dict(how)["scale"]

    def summed(pattern, *arrays, like):
        whole = jnp.einsum(pattern, *arrays)
        grouped = whole.reshape(*like.shape[:3], -1, like.shape[-1])
        return grouped.sum(3).astype(like.dtype)

    return (
        summed("bnts,bsnd->btnd", by_scores, k32, like=q),
        summed("bnts,btnd->bsnd", by_scores, q32, like=k),
        summed("bnts,btnd->bsnd", weights, cotangent, like=v),
        None,
    )


_like_cudnn.defvjp(_like_cudnn_forward, _like_cudnn_backward)


def _scores(how, q, k, v, lengths):
    """The scores, and all three in float32 with a head of keys and values for each of queries."""
    how, group = dict(how), q.shape[2] // k.shape[2]
    k, v = (jnp.repeat(x, group, axis=2) for x in (k, v))
    q, k, v = (x.astype(jnp.float32) for x in (q, k, v))
    rows, columns = jnp.arange(q.shape[1])[:, None], jnp.arange(k.shape[1])
    visible = columns < lengths[:, None, None, None]
    if how["is_causal"]:
        visible &= columns <= rows
    if how["local_window_size"] is not None:
        visible &= rows - columns <= how["local_window_size"][0]
    scores = jnp.einsum("btnd,bsnd->bnts", q, k) * how["scale"]
    return jnp.where(visible, scores, -jnp.inf), (q, k, v)


@pytest.mark.parametrize("numbers", [{}, {"causal": True, "window": 5}], ids=str)
def test_cudnn_is_asked_for_the_same(numbers, cudnn):
    args = operands(rows=16, columns=16, features=64, dtype=jnp.bfloat16)
    expected, found = blocks_and("cudnn", numbers, *args)
    assert_equal(found, expected, tolerance=2e-2)
    assert set(cudnn) == {("cudnn", False)}
    fn = lambda q, k, v: md.attention(q, k, v, implementation="cudnn", **numbers)
    rules = layout("batch -> x", "heads -> y", mesh={"x": 2, "y": 2})
    assert_same(fn, *args, layout=rules, tolerance=2e-2)


def test_cudnn_attends_causally_where_queries_are_split(cudnn):
    """By two calls, of the keys before a part and of its own, whose outputs are merged."""
    args = operands(rows=16, columns=24, features=64, dtype=jnp.bfloat16)
    fn = lambda q, k, v: md.attention(q, k, v, causal=True, implementation="cudnn")
    rules = layout("batch -> x", "queries, memory -> y", mesh={"x": 2, "y": 4})
    assert_same(fn, *args, layout=rules, tolerance=2e-2)
    assert set(cudnn) == {("cudnn", False), ("cudnn", True)}
