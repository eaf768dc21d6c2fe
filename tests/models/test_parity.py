"""A model under every legal layout equals the same model on one device, gradients included."""

import dataclasses
import functools

import jax
import numpy as np
import optax
import pytest

import meshdsl as md
from benchmarks import einsum_attention
from meshdsl.tensor import is_tensor
from meshdsl.train.step import TrainStep
from tests.helpers import only
from tests.models import common

CASES = [("single", 1, False)]
CASES += [
    (name, n, False)
    for name in ("data", "zero1", "fsdp", "tensor", "sequence")
    for n in (1, 2, 4, 8)
]
CASES += [(name, 1, False) for name in ("hybrid-fsdp", "fsdp-tensor", "fsdp-sequence")]
CASES += [
    (name, n, r)
    for name in ("hybrid-fsdp", "fsdp-tensor", "fsdp-sequence")
    for n in (2, 4, 8)
    for r in (False, True)
]
CASES += [(name, 8, False) for name in common.STAGES]
CASES += [(name, n, False) for name in common.CONTEXT for n in (4, 8)]
CASES += [(name, n, False) for name in common.PIPELINES for n in (4, 8)]
CASES = [(style, *case) for style in common.CONFIGS for case in CASES]
# A layout of two axes stands for those of one: fsdp-sequence for data, fsdp and sequence.
QUICK = [("gpt2", "fsdp-tensor", 8, False)]
QUICK += [
    ("llama", name, 8, False) for name in ("zero2", "fsdp-sequence", "context-ring", "ulysses")
]

value_and_grad = md.value_and_grad(common.loss, has_aux=True)


@functools.cache
def one_device(style):
    config = common.CONFIGS[style]
    model, batch = common.init(config), common.batch(config)
    return model, batch, jax.jit(value_and_grad)(model, batch, jax.random.key(5))


@pytest.mark.parametrize("style, name, devices, reverse", only(QUICK, CASES))
def test_loss_and_every_gradient_equal_one_device(style, name, devices, reverse):
    model, batch, ((value, aux), grads) = one_device(style)
    layout = common.on(common.load(name), devices, reverse=reverse)
    (got, got_aux), got_grads = md.lower(value_and_grad, layout)(model, batch, jax.random.key(5))
    np.testing.assert_allclose(got.array, value.array, rtol=1e-6)
    np.testing.assert_allclose(
        got_aux["cross_entropy"].array, aux["cross_entropy"].array, rtol=1e-6
    )
    common.assert_same_gradients(got_grads, grads)


def in_a_ring(layout, **how):
    """The layout, where products take the length part by part."""
    ring = {"rule": "length -> model", "move": "ring", **how}
    rules = [ring if rule == "length -> model" else rule for rule in layout.rules]
    assert ring in rules
    return dataclasses.replace(layout, rules=rules)


@pytest.mark.slow
@pytest.mark.parametrize("how", [{}, {"order": "zigzag"}], ids=["natural", "zigzag"])
@pytest.mark.parametrize("style", common.CONFIGS)
@pytest.mark.parametrize("name, devices", [("sequence", 8), ("fsdp-sequence", 8), ("sequence", 2)])
def test_products_in_a_ring_give_the_loss_and_gradients_of_one_device(style, name, devices, how):
    model, batch, ((value, _), grads) = one_device(style)
    layout = in_a_ring(common.on(common.load(name), devices), **how)
    lowered = md.lower(value_and_grad, layout)
    traced, program = lowered.trace_program(model, batch, jax.random.key(5))
    (got, _), got_grads = traced.lower().compile()(model, batch, jax.random.key(5))
    np.testing.assert_allclose(got.array, value.array, rtol=1e-6)
    common.assert_same_gradients(got_grads, grads)
    moved = [(program.op_of(c), c) for c in program.collectives if c.axes == ("model",)]
    assert {c.operation for op, c in moved if op and op.name == "einsum"} == {"ppermute"}


@pytest.mark.parametrize("style", common.CONFIGS)
def test_fused_attention_is_that_of_einsums(style, monkeypatch):
    model, batch, ((value, _), grads) = one_device(style)
    monkeypatch.setattr(md, "attention", einsum_attention.attention)
    (got, _), got_grads = jax.jit(value_and_grad)(model, batch, jax.random.key(5))
    np.testing.assert_allclose(got.array, value.array, rtol=1e-6)
    common.assert_same_gradients(got_grads, grads)


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
TRAINED = [(style, name) for style in common.CONFIGS for name in LAYOUTS[1:]]


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
        *(pytest.param(style, LAYOUTS, marks=pytest.mark.slow) for style in common.CONFIGS),
    ],
    ids=["llama under three", *common.CONFIGS],
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
