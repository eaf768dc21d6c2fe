"""A model under every legal layout equals the same model on one device, gradients included."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import meshdsl as md
from meshdsl.models import bert, t5, vit
from meshdsl.models.transformer import Config
from meshdsl.tensor import is_tensor
from meshdsl.train.step import TrainStep
from tests.helpers import only
from tests.models import common

CASES = [("fsdp-tensor", 1, False), ("zero1", 8, False), ("fsdp", 2, False), ("tensor", 8, False)]
CASES += [("sequence", 2, False), ("hybrid-fsdp", 4, True), ("fsdp-sequence", 4, True)]
CASES += [(name, 8, False) for name in (*common.STAGES, *common.CONTEXT, *common.PIPELINES)]
CASES += [("fsdp-sequence", 8, False), ("data", 8, False)]
# Each layout has one of the styles, by turns.
CASES = [(("gpt2", "llama")[i % 2], *case) for i, case in enumerate(CASES)]
# A layout of two axes stands for those of one: fsdp-sequence for data, fsdp and sequence.
QUICK = [("gpt2", "fsdp-sequence", 8, False)]
# So do these for others; each kind of split is among them.
OFTEN = ("fsdp-tensor", "sequence", "hybrid-fsdp", "fsdp-once", "context-ring", "ulysses")
OFTEN += ("pipeline-tensor", "pipeline-rounds")


@pytest.mark.parametrize(
    "style, name, devices, reverse",
    only(QUICK, CASES, [case for case in CASES if case[1] in OFTEN]),
)
def test_loss_and_every_gradient_equal_one_device(style, name, devices, reverse):
    layout = common.on(common.load(name), devices, reverse=reverse)
    common.assert_like_one_device(common.CONFIGS[style], layout)


def in_a_ring(layout, order):
    """The layout, where products take the length part by part."""
    ring = {"rule": "length -> model", "move": "ring", "order": order}
    rules = [ring if rule == "length -> model" else rule for rule in layout.rules]
    assert ring in rules
    return dataclasses.replace(layout, rules=rules)


@pytest.mark.slow
@pytest.mark.parametrize(
    "style, name, devices, order",
    [
        ("llama", "fsdp-sequence", 8, "zigzag"),
        ("gpt2", "sequence", 8, "natural"),
    ],
)
def test_products_in_a_ring_give_the_loss_and_gradients_of_one_device(style, name, devices, order):
    layout = in_a_ring(common.on(common.load(name), devices), order)
    program = common.assert_like_one_device(common.CONFIGS[style], layout)
    moved = [(program.op_of(c), c) for c in program.collectives if c.axes == ("model",)]
    assert {c.operation for op, c in moved if op and op.name == "einsum"} == {"ppermute"}


def run(style, layout, steps=10):
    config = common.CONFIGS[style]
    micro = md.Dim("micro", 2)
    step = TrainStep(
        lambda key: common.Transformer.init(key, config),
        common.loss,
        optax.adamw(1e-3),
        layout,
        md.make_mesh(layout),
        clip=1.0,
        microbatches=micro,
    )
    state, losses = step.init(jax.random.key(3)), []
    for i in range(steps):
        state, metrics = step(state, common.batch(config, seed=10 + i % 3, micro=2))
        losses.append(float(metrics["loss"]))
    return losses


@functools.cache
def losses_on_one_device(style):
    return run(style, common.load("single"))


LAYOUTS = (*common.LAYOUTS, *common.PIPELINES)
TRAINED = [("gpt2", name) for name in ("hybrid-fsdp", "pipeline-tensor")]


@pytest.mark.slow  # test_whole_step, test_uneven and test_loop train under layouts by default
@pytest.mark.parametrize("style, name", TRAINED)
def test_ten_steps_of_training_give_the_same_losses(style, name):
    np.testing.assert_allclose(
        run(style, common.on(common.load(name), 8)), losses_on_one_device(style), rtol=1e-5
    )


@pytest.mark.parametrize(
    "style, names",
    [
        ("llama", ("single", "hybrid-fsdp", "fsdp-sequence")),
        pytest.param("gpt2", LAYOUTS, marks=pytest.mark.slow),
    ],
    ids=["llama", "gpt2"],
)
def test_initial_parameters_are_bit_equal_under_every_layout(style, names):
    config = common.CONFIGS[style]
    expected = None
    for name in names:
        layout = common.load(name)
        mesh = md.make_mesh(layout)
        made = jax.jit(
            lambda key: common.Transformer.init(key, config),
            out_shardings=md.shardings(jax.eval_shape(lambda: common.init(config)), layout, mesh),
        )(jax.random.key(0))
        got = [np.asarray(t.array) for t in jax.tree.leaves(made, is_leaf=is_tensor)]
        expected = expected or got
        assert all(np.array_equal(a, b) for a, b in zip(got, expected, strict=True)), name


SIZES = {"layers": 4, "d_model": 16, "heads": 16, "kv_heads": 8, "head_dim": 4, "d_ff": 16}
SIZES |= {"vocab": 32, "length": 16}
WINDOWS = {"window": 5, "pattern": ("local", "global")}
OTHER = {"layers": 4, "d_model": 16, "heads": 8, "d_ff": 16}
LONG = {"rotary_scaling": "longrope", "rotary_length": 8, "rotary_gain": 1.2}
LONG |= {"rotary_short": (1.0, 1.1), "rotary_long": (2.0, 3.0)}
TEXT = {"vocab": 32, "length": 16, "mask_token": 3}
PAIRS = {"decoder_layers": 4, "head_dim": 4, "vocab": 32, "source": 16, "length": 16}
# Each other family under a layout that splits what is its own. The tests above have the shipped
# layouts, and test_architecture has the windows, biases and norms of other styles under more.
FAMILIES = {
    "qwen3": (Config(style="qwen3", **SIZES), "fsdp-sequence"),
    "gemma2": (
        Config(style="gemma2", **SIZES, **WINDOWS, attention_softcap=5.0, logit_softcap=3.0),
        "ulysses",
    ),
    "phi3": (Config(style="phi3", **SIZES, **LONG), "sequence"),
    "olmo2": (Config(style="olmo2", **SIZES), "hybrid-fsdp"),
    "bert": (bert.Config(**OTHER, **TEXT), "fsdp-tensor"),
    "vit": (vit.Config(height=16, width=16, patch=4, classes=8, **OTHER), "fsdp-tensor"),
    "t5": (t5.Config(**PAIRS, **OTHER, gated=True, dropout=0.1), "fsdp-sequence"),
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


@pytest.mark.slow
@pytest.mark.parametrize("name", FAMILIES)
def test_a_family_has_the_loss_and_gradients_of_one_device(name):
    config, layout = FAMILIES[name]

    def loss(model, batch):
        found = config.loss(model, batch, jax.random.key(1))
        found = found[0] if isinstance(found, tuple) else found
        if isinstance(found, md.Average):
            return found.total / md.cast(found.count, jnp.float32)
        return found

    model, batch = jax.jit(config.init)(jax.random.key(0)), drawn(config)
    step = md.value_and_grad(loss)
    value, slopes = jax.jit(step)(model, batch)
    found, found_slopes = md.lower(step, common.on(common.load(layout), 8))(model, batch)
    np.testing.assert_allclose(found.array, value.array, rtol=1e-6)
    common.assert_same_gradients(found_slopes, slopes, TOLERANCE.get(name, 1e-5))
