"""Sampling with a cache: the same tokens under every layout, and the same as without a cache."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import meshdsl as md
from meshdsl.models.generate import generate
from tests.models import common

PROMPT = md.Dim("prompt", 5)
COUNT = 6


@functools.cache
def on_one_device(style, temperature):
    model = common.init(common.CONFIGS[style])
    prompt = md.tensor(jax.random.randint(jax.random.key(1), (common.BATCH.size, PROMPT.size), 0, 64), (common.BATCH, PROMPT))
    return model, prompt, np.asarray(generate(model, prompt, COUNT, jax.random.key(7), temperature).array)


@pytest.mark.parametrize("style", common.CONFIGS)
@pytest.mark.parametrize("name", ["data", "fsdp", "tensor", "fsdp-sequence"])
def test_every_layout_writes_the_same(style, name):
    model, prompt, expected = on_one_device(style, 0.8)
    layout = common.on(common.load(name), 8)
    lowered = md.lower(lambda m, p, k: generate(m, p, COUNT, k, 0.8), layout, dims=common.CONFIGS[style].dims)
    assert np.array_equal(lowered(model, prompt, jax.random.key(7)).array, expected)


@pytest.mark.parametrize("style", common.CONFIGS)
def test_the_cache_changes_nothing(style):
    model, prompt, written = on_one_device(style, 0.0)
    for end in range(PROMPT.size, PROMPT.size + COUNT):
        tokens = md.tensor(jnp.asarray(written[:, :end]), (common.BATCH, md.Dim("length", end)))
        likeliest = np.argmax(md.transpose(model(tokens), ("batch", "length", "vocab")).array[:, -1], -1)
        assert np.array_equal(written[:, end], likeliest)


def test_a_continuation_longer_than_the_model_is_an_error():
    model, prompt, _ = on_one_device("gpt2", 0.0)
    with pytest.raises(md.MeshDSLError, match="5 tokens of prompt and 12 more exceed the model's length=16"):
        generate(model, prompt, 12, jax.random.key(0))
