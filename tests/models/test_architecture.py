"""The choices of a transformer beyond those of GPT-2 and Llama, under layouts and step by step."""

import dataclasses
import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import meshdsl as md
from meshdsl.layers.rotary import Llama3Scaling, YarnScaling, angles
from meshdsl.models.architecture import STYLES
from tests.models import common

SMALL = {
    "layers": 2,
    "d_model": 32,
    "heads": 16,
    "kv_heads": 8,
    "head_dim": 8,
    "d_ff": 64,
    "vocab": 64,
    "length": 16,
}
# Between them they make every choice.
CONFIGS = {
    "gemma3": common.Config(
        style="gemma3",
        **SMALL,
        window=5,
        pattern=("local", "global"),
        rotary_local_base=100.0,
        rotary_scaling="linear",
        rotary_factor=8.0,
        attention_softcap=2.0,
        logit_softcap=1.5,
        query_scale=5.0,
    ),
    "olmo2": common.Config(
        style="olmo2",
        **SMALL,
        rotary_scaling="yarn",
        rotary_factor=4.0,
        rotary_length=8,
        rotary_high=32.0,
        window=4,
        biases=("query", "mlp"),
    ),
    "parallel": common.Config(
        style="llama",
        **SMALL,
        parallel="shared",
        norm="layer",
        rotary_fraction=0.5,
        rotary_scaling="llama3",
        rotary_factor=8.0,
        rotary_length=8,
        activation="gelu_exact",
        tied="yes",
        embedding_scale="root",
        causal=False,
    ),
}
# What a choice meets: sequences that are split, heads that are split, and pipelines.
LAYOUTS = {
    "gemma3": ("context-ring", "pipeline-tensor"),
    "olmo2": ("ulysses",),
    "parallel": ("tensor", "context"),
}
CASES = [(name, layout) for name in CONFIGS for layout in LAYOUTS[name]]

LATENT = {"latent": 8, "turned": 4, "heads": 4}


@functools.cache
def drawn(name):
    """A model whose weights that begin with zeros or ones are drawn, so that they count."""
    leaves, tree = jax.tree.flatten(common.init(CONFIGS[name]))
    keys = jax.random.split(jax.random.key(7), len(leaves))
    noise = [0.3 * jax.random.normal(key, x.shape) for x, key in zip(leaves, keys, strict=True)]
    return jax.tree.unflatten(tree, [x + y for x, y in zip(leaves, noise, strict=True)])


@functools.cache
def one_device(name):
    return jax.jit(common.value_and_grad)(drawn(name), common.batch(CONFIGS[name]), None)


@pytest.mark.slow  # the next test, and test_parity, see the same capability another way
@pytest.mark.parametrize("name, layout", CASES)
def test_loss_and_every_gradient_equal_one_device(name, layout):
    model, batch, ((value, _), grads) = drawn(name), common.batch(CONFIGS[name]), one_device(name)
    lowered = md.lower(common.value_and_grad, common.on(common.load(layout), 8))
    (got, _), got_grads = lowered(model, batch, None)
    np.testing.assert_allclose(got.array, value.array, rtol=1e-6)
    common.assert_same_gradients(got_grads, grads)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["gemma3", "olmo2"])
def test_a_token_at_a_time_gives_the_logits_of_the_whole(name):
    model, tokens = drawn(name), common.batch(CONFIGS[name])["tokens"]

    @jax.jit
    def both(model, tokens):
        every = md.transpose(model(tokens), ("length", "batch", "vocab"))
        first = md.slice(tokens, "length", 0, 14)
        last = md.tensor(jnp.full(common.BATCH.size, 13), (common.BATCH,))
        logits, cache = model.prefill(first, last, md.Dim("memory", 16))
        found = [logits]
        for at in range(14, 16):
            position = md.tensor(jnp.full(common.BATCH.size, at), (common.BATCH,))
            logits, cache = model.step(
                md.take(tokens, md.tensor(at, ()), "length"), cache, position
            )
            found.append(logits)
        return every.array[13:], [md.transpose(x, ("batch", "vocab")).array for x in found]

    expected, found = both(model, tokens)
    np.testing.assert_allclose(np.stack(found), expected, rtol=2e-5, atol=2e-5)


def test_a_layer_with_the_window_sees_that_far_and_one_without_sees_all():
    config = dataclasses.replace(CONFIGS["gemma3"], layers=1, attention_softcap=0.0)
    model = common.init(config)
    model = jax.tree.map(lambda x: x + 0.1, model)
    tokens = np.zeros((8, 16), np.int32)
    changed = tokens.copy()
    changed[:, 3] = 5

    @jax.jit
    def logits(model, tokens):
        tokens = md.tensor(tokens, (common.BATCH, md.Dim("length", 16)))
        return md.transpose(model(tokens), ("length", "batch", "vocab")).array

    def differs(model):
        return np.abs(logits(model, tokens) - logits(model, changed)).max((1, 2)) > 0

    assert differs(model).nonzero()[0].tolist() == list(range(3, 8))  # one layer, window of 5
    everywhere = model.replace(config=dataclasses.replace(config, pattern=("global",)))
    assert differs(everywhere).nonzero()[0].tolist() == list(range(3, 16))


def test_scaled_wavelengths_are_those_of_their_formulas():
    def frequencies(scaling):
        _, sin = angles(md.tensor(1, ()), md.Dim("head_dim", 128), 500_000.0, scaling=scaling)
        return np.arcsin(np.asarray(sin.array, np.float64) / scaling.gain)

    plain = 500_000.0 ** (-np.arange(64) / 64)
    found = frequencies(Llama3Scaling(factor=8, length=8192))[1:] / plain[1:]
    lengths = 2 * np.pi / plain[1:]
    np.testing.assert_allclose(found[lengths < 8192 / 4], 1, rtol=1e-5)
    np.testing.assert_allclose(found[lengths > 8192], 1 / 8, rtol=1e-5)
    assert (np.diff(found) <= 1e-5).all()
    found = frequencies(YarnScaling(factor=4, length=4096, gain=1.5))[1:] / plain[1:]
    np.testing.assert_allclose([found[0], found[-1]], [1, 1 / 4], rtol=1e-5)
    assert (np.diff(found) <= 1e-5).all()


def test_a_style_is_a_set_of_defaults_of_which_each_can_be_chosen_otherwise():
    assert set(STYLES) >= {"gpt2", "llama", "qwen3", "gemma3"}
    assert common.Config(style="gpt2").choice("norm") == "layer"
    assert common.Config(style="gpt2", norm="rms").choice("norm") == "rms"
    assert common.Config(style="gpt2", biases=()).choice("biases") == ()
    assert common.Config(style="qwen2").choice("biases") == ("query", "key", "value")


@pytest.mark.parametrize(
    "settings, text",
    [
        ({"norm": "rsm"}, "model: no norm 'rsm'; did you mean `rms`?"),
        ({"biases": ("quary",)}, "model: no biases 'quary'; did you mean `query`?"),
        ({"pattern": ("locl",)}, "model: no pattern 'locl'; did you mean `local`?"),
        ({"pattern": ()}, "model: pattern is empty; it has `local`, `global`, or both"),
        (
            {"rotary_fraction": 0.2},
            "model: rotary positions need an even head_dim, not 16, of which rotary_fraction=0.2",
        ),
        (
            {"rotary_scaling": "yarn"},
            "model: rotary_scaling=yarn needs rotary_length, the tokens of the sequences that "
            "the model was trained on",
        ),
        (
            {"rotary_scaling": "llama3", "rotary_length": 8, "rotary_low": 5.0},
            "model: rotary_high=4 is to be more than rotary_low=5",
        ),
        ({"norm": "layer", "norm_from_one": "yes"}, "model: norm_from_one=yes needs norm=rms"),
        ({"style": "lama"}, "model: no style 'lama'; did you mean `llama`?"),
        ({"remat": "all"}, "model: no remat 'all'"),
        ({"layers": 0}, "model: layers is at least 1, not 0"),
        ({"dropout": 1.0}, "model: dropout is at least 0 and less than 1, not 1.0"),
        (
            {"d_model": 30, "heads": 8},
            "model: d_model=30 does not divide into heads=8; set head_dim",
        ),
        ({"heads": 8, "kv_heads": 3}, "model: heads=8 is not a multiple of kv_heads=3"),
        ({"head_dim": 3}, "model: rotary positions need an even head_dim, not 3"),
        ({"value_dim": 4}, "model: value_dim is of latent attention; set model.latent"),
        ({"latent": 8}, "needs an even number of features that are turned, not turned=0"),
        ({"latent": 8, "turned": 3}, "that are turned, not turned=3"),
        ({**LATENT, "sinks": "yes"}, "latent attention has no such sinks; leave model.sinks out"),
        ({**LATENT, "biases": ("query",)}, "latent attention has no such biases"),
        ({**LATENT, "kv_heads": 2}, "latent attention has no such kv_heads"),
        ({"activation": "clamped", "mlp": "plain"}, "model: activation=clamped needs mlp=gated"),
        ({"experts": 8, "style": "gpt2"}, "experts need mlp=gated"),
        ({"experts": 8, "dense_layers": 4}, "dense_layers=4 are followed by layers with experts"),
        (
            {"experts": 8, "experts_used": 9},
            "experts=8 in router_groups=1, of which router_groups_used=1, do not give each token "
            "experts_used=9",
        ),
        ({"experts": 8, "router_groups": 3}, "do not give each token experts_used=2"),
        ({"experts": 8, "experts_shared_gate": True}, "experts_shared_gate needs experts_shared"),
    ],
)
def test_choices_that_do_not_go_together_are_named(settings, text):
    with pytest.raises(md.MeshDSLError, match=re.escape(text)):
        common.Config(**settings)


@pytest.mark.slow
def test_a_loss_in_chunks_bounds_its_logits_too():
    config = dataclasses.replace(CONFIGS["gemma3"], z_loss=0.01)
    model = common.init(config)
    drawn = np.random.default_rng(0).integers(0, 64, (2, 8, 16)).astype(np.int32)
    dims = common.BATCH, md.Dim("length", 16)
    tokens, targets = (md.tensor(each, dims) for each in drawn)

    def loss(model, chunk):
        other = model.replace(config=dataclasses.replace(config, loss_chunk=chunk))
        return other.loss(tokens, targets)[0].array

    wanted, in_chunks = (
        jax.jit(jax.value_and_grad(functools.partial(loss, chunk=chunk)))(model) for chunk in (0, 8)
    )
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=2e-5, atol=1e-7), wanted, in_chunks
    )
