"""The epsilon of norms is a setting of the model; formulas are those of the papers, in numpy."""

import dataclasses
import re

import jax
import numpy as np
import pytest

import meshdsl as md
from meshdsl.layers.norm import NORMS
from meshdsl.models import unet
from meshdsl.train.config import Config as Run
from meshdsl.train.settings import read, to_toml
from tests.models import common

SMALL = {
    "llama": dataclasses.replace(common.CONFIGS["llama"], dropout=0.0, kv_heads=0, heads=4),
    "gpt2": dataclasses.replace(common.CONFIGS["gpt2"], dropout=0.0, heads=4),
}


def rms(x, norm, epsilon):
    return x / np.sqrt((x**2).mean(-1, keepdims=True) + epsilon) * array(norm.scale)


def layer(x, norm, epsilon):
    centred = x - x.mean(-1, keepdims=True)
    normed = centred / np.sqrt(x.var(-1, keepdims=True) + epsilon)
    return normed * array(norm.scale) + array(norm.bias)


def array(tensor):
    return np.asarray(tensor.array, np.float64)


def linear(x, weights, dims=1):
    """`x` times a weight, over the last `dims` of `x`."""
    weight = array(weights.weight)
    bias = 0 if weights.bias is None else array(weights.bias)
    return np.tensordot(x, weight, dims) + bias


def turned(x, base):
    """Rotary positions of (batch, length, heads, head_dim); halves of head_dim are the pairs."""
    half = x.shape[-1] // 2
    angle = np.arange(x.shape[1])[:, None, None] * base ** (-np.arange(half) / half)
    first, second = x[..., :half], x[..., half:]
    cos, sin = np.cos(angle), np.sin(angle)
    return np.concatenate([first * cos - second * sin, second * cos + first * sin], -1)


def attention(x, layer, rotary_base):
    q, k, v = (linear(x, part) for part in (layer.query, layer.key, layer.value))
    q, k = (q, k) if rotary_base is None else (turned(q, rotary_base), turned(k, rotary_base))
    scores = np.einsum("blnh,bmnh->bnlm", q, k) * q.shape[-1] ** -0.5
    scores = np.where(np.tril(np.ones(scores.shape[-2:], bool)), scores, -np.inf)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    mixed = np.einsum("bnlm,bmnh->blnh", weights / weights.sum(-1, keepdims=True), v)
    return linear(mixed, layer.out, 2)


def gelu(x):
    return 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))


def logits(model, tokens, epsilon):
    """Of the whole transformer, in float64."""
    llama = model.config.style == "llama"
    norm = rms if llama else layer
    x = array(model.embedding.table)[tokens]
    x = x if llama else x + array(model.positions.table)
    for i in range(model.config.layers):
        block = jax.tree.map(lambda a, i=i: a[i], jax.tree.map(np.asarray, model.blocks.layer))
        base = model.config.rotary_base if llama else None
        x = x + attention(norm(x, block.attention_norm, epsilon), block.attention, base)
        h, mlp = norm(x, block.mlp_norm, epsilon), block.mlp
        if llama:
            gate = linear(h, mlp.gate)
            x = x + linear(gate / (1 + np.exp(-gate)) * linear(h, mlp.up), mlp.down)
        else:
            x = x + linear(gelu(linear(h, mlp.up)), mlp.down)
    x = norm(x, model.norm, epsilon)
    return linear(x, model.head) if llama else x @ array(model.embedding.table).T


def norms(model):
    is_norm = lambda part: isinstance(part, tuple(NORMS.values()))
    return [part for part in jax.tree.leaves(model, is_leaf=is_norm) if is_norm(part)]


@pytest.mark.parametrize("style, epsilon", [("llama", 1e-6), ("llama", 0.5), ("gpt2", 0.5)])
def test_logits_are_those_of_the_formula_with_the_epsilon_of_the_model(style, epsilon):
    config = dataclasses.replace(SMALL[style], norm_epsilon=epsilon)
    model, tokens = common.init(config), common.batch(config)["tokens"]
    assert [norm.epsilon for norm in norms(model)] == 3 * [epsilon]
    found = md.transpose(jax.jit(lambda m, t: m(t))(model, tokens), ("batch", "length", "vocab"))
    expected = logits(model, np.asarray(tokens.array), epsilon)
    np.testing.assert_allclose(found.array, expected, rtol=2e-4, atol=2e-5)


def test_every_norm_of_a_unet_has_the_epsilon_of_its_configuration():
    model = unet.UNet.init(jax.random.key(0), unet.Config(levels=1, channels=2, norm_epsilon=1e-3))
    assert [norm.epsilon for norm in norms(model)] == 6 * [1e-3]


@pytest.mark.parametrize("config", [common.Config, unet.Config])
@pytest.mark.parametrize("epsilon", [0.0, -1e-5, 1.0, float("nan")])
def test_an_epsilon_out_of_bounds_is_refused(config, epsilon):
    text = f"model: norm_epsilon is more than 0 and less than 1, not {epsilon}"
    with pytest.raises(md.MeshDSLError, match=re.escape(text)):
        config(norm_epsilon=epsilon)


def test_a_run_without_a_configured_epsilon_has_the_one_that_it_was_trained_with(tmp_path):
    text = to_toml(Run())
    without = "".join(line for line in text.splitlines(True) if not line.startswith("norm_epsilon"))
    assert without != text
    (tmp_path / "config.toml").write_text(without)
    assert read(tmp_path / "config.toml", Run()).model.norm_epsilon == 1e-5
