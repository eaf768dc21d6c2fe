"""A model whose sizes divide over nothing is the same padded as on one device.

It runs under shipped layouts with `uneven = "pad"`.
"""

import dataclasses

import jax
import numpy as np
import optax
import pytest

import meshdsl as md
from meshdsl.train.checkpoints import Checkpoints
from meshdsl.train.step import TrainStep
from tests.models import common

SIZES = {"d_ff": 60, "vocab": 67, "length": 18}
CONFIGS = {
    "llama": dataclasses.replace(common.CONFIGS["llama"], **SIZES, heads=10, kv_heads=5),
    "gpt2": dataclasses.replace(common.CONFIGS["gpt2"], **SIZES, heads=5),
}
BATCH = md.Dim("batch", 6)


def load(name, devices=8):
    layout = common.on(common.load(name), devices)
    return dataclasses.replace(layout, uneven="pad")


def batch(config, seed=1):
    return common.batch(config, seed, BATCH)


@pytest.mark.slow  # lowering/test_uneven does it by default
def test_loss_and_every_gradient_equal_one_device():
    common.assert_like_one_device(CONFIGS["llama"], load("fsdp-sequence"), BATCH)


def step_under(layout, optimizer):
    config = CONFIGS["gpt2"]
    init = lambda key: common.Transformer.init(key, config)
    return TrainStep(init, common.loss, optimizer, layout, md.make_mesh(layout), clip=1.0)


@pytest.mark.slow
def test_training_and_checkpoints_know_logical_sizes_only(tmp_path):
    """A run that trained under a layout that pads goes on on one device as if always there.

    Adafactor's factors have dims of their own, and its moments those of the parameters.
    """
    optimizer = optax.adafactor(1e-3)
    single = step_under(load("single", 1), optimizer)
    split = step_under(load("fsdp-tensor"), optimizer)
    losses = {}
    for name, step in (("single", single), ("fsdp-tensor", split)):
        state, losses[name] = step.init(jax.random.key(3)), []
        for i in range(3):
            state, metrics = step(state, batch(CONFIGS["gpt2"], seed=i))
            losses[name].append(float(metrics["loss"]))
    np.testing.assert_allclose(losses["fsdp-tensor"], losses["single"], rtol=1e-5)
    checkpoints = Checkpoints(tmp_path / "checkpoints", keep=1)
    checkpoints.save(3, state, {"next_index": 0})
    checkpoints.close()
    restored, _, _ = Checkpoints(tmp_path / "checkpoints", keep=1).restore(single.abstract)
    table = next(
        t
        for t in jax.tree.leaves(restored.params, is_leaf=lambda x: isinstance(x, md.Tensor))
        if any(d.name == "vocab" for d in t.dims)
    )
    assert table.array.shape == tuple(d.size for d in table.dims)
    _, metrics = single(restored, batch(CONFIGS["gpt2"], seed=3))
    _, expected = split(state, batch(CONFIGS["gpt2"], seed=3))
    np.testing.assert_allclose(float(metrics["loss"]), float(expected["loss"]), rtol=1e-5)
