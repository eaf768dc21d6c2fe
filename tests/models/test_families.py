"""Every family has the loss and the gradients of one device under the shipped layouts."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import meshdsl as md
from meshdsl.models import bert, t5, vit
from meshdsl.models.transformer import Config
from tests.models import common

pytestmark = pytest.mark.slow

SIZES = {"layers": 4, "d_model": 16, "heads": 16, "kv_heads": 8, "head_dim": 4, "d_ff": 16}
SIZES |= {"vocab": 32, "length": 16}
WINDOWS = {"window": 5, "pattern": ("local", "global")}
OTHER = {"layers": 4, "d_model": 16, "heads": 8, "d_ff": 16}
LONG = {"rotary_scaling": "longrope", "rotary_length": 8, "rotary_gain": 1.2}
LONG |= {"rotary_short": (1.0, 1.1), "rotary_long": (2.0, 3.0)}
TEXT = {"vocab": 32, "length": 16, "mask_token": 3}
PAIRS = {"decoder_layers": 4, "head_dim": 4, "vocab": 32, "source": 16, "length": 16}
# Llama and GPT-2 are in test_parity. Each of the others is here under layouts that, together with
# those of the other families, are all that are shipped.
CASES = {
    "mistral": (Config(style="mistral", **SIZES, window=5), ("fsdp-tensor", "context-ring")),
    "qwen2": (Config(style="qwen2", **SIZES), ("pipeline-fsdp", "zero1")),
    "qwen3": (Config(style="qwen3", **SIZES), ("fsdp-sequence", "zero2")),
    "gemma2": (
        Config(style="gemma2", **SIZES, **WINDOWS, attention_softcap=5.0, logit_softcap=3.0),
        ("ulysses", "tensor"),
    ),
    "gemma3": (
        Config(style="gemma3", **SIZES, **WINDOWS, rotary_local_base=100.0),
        ("pipeline-tensor", "context"),
    ),
    "phi3": (Config(style="phi3", **SIZES, **LONG), ("hybrid-fsdp", "sequence")),
    "olmo2": (Config(style="olmo2", **SIZES), ("fsdp", "pipeline")),
    "mixtral": (Config(style="mixtral", **SIZES, experts=4), ("experts", "fsdp-tensor")),
    "bert": (bert.Config(**OTHER, **TEXT), ("fsdp-tensor", "data")),
    "vit": (vit.Config(height=16, width=16, patch=4, classes=8, **OTHER), ("fsdp-tensor",)),
    "t5": (t5.Config(**PAIRS, **OTHER, gated=True), ("fsdp-sequence", "fsdp-once")),
}


def drawn(config):
    """A batch of random numbers that mean something."""
    below, batch = {"label": 8, "source_length": 17, "seen": 2}, {}
    for place, (name, field) in enumerate(config.batch(common.BATCH).items()):
        shape, key = [dim.size for dim in field.dims], jax.random.key(place)
        if field.dtype == jnp.float32:
            array = jax.random.normal(key, shape)
        else:
            array = jax.random.randint(key, shape, 1, below.get(name, 32), jnp.int32)
        batch[name] = md.tensor(array, field.dims)
    return batch


# The norms of OLMo 2 are behind its sublayers, so the residual stream begins with the embedding's
# small numbers, and the gradients are 67 for a loss of 5: rounding is 1.1e-5 of them on some CPUs.
TOLERANCE = {"olmo2": 3e-5}


@functools.cache
def one_device(name):
    config = CASES[name][0]

    def loss(model, batch):
        found = config.loss(model, batch, jax.random.key(1))
        found = found[0] if isinstance(found, tuple) else found
        if isinstance(found, md.Average):
            return found.total / md.cast(found.count, jnp.float32)
        return found

    model, step = jax.jit(config.init)(jax.random.key(0)), md.value_and_grad(loss)
    return model, drawn(config), step, jax.jit(step)(model, drawn(config))


@pytest.mark.parametrize("name, layout", [(n, each) for n in CASES for each in CASES[n][1]])
def test_a_family_has_the_loss_and_gradients_of_one_device(name, layout):
    model, batch, step, (value, slopes) = one_device(name)
    found, found_slopes = md.lower(step, common.on(common.load(layout), 8))(model, batch)
    np.testing.assert_allclose(found.array, value.array, rtol=1e-6)
    common.assert_same_gradients(found_slopes, slopes, TOLERANCE.get(name, 1e-5))
