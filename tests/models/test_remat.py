"""What a policy keeps for the backward pass, and that it changes no loss and no gradient."""

import dataclasses
import functools
from collections import Counter
from itertools import pairwise

import jax
import numpy as np
import pytest

import meshdsl as md
from meshdsl.layers.stack import REMATS
from meshdsl.mesh import abstract_mesh
from meshdsl.predict.explain import explain
from meshdsl.train.config import Config
from meshdsl.train.job import Job
from meshdsl.train.settings import override
from tests.helpers import only
from tests.models import common

CONFIG = common.CONFIGS["llama"]
POLICIES = REMATS[:-1]


@functools.cache
def step(remat: str, *settings: str, layout: str = "fsdp-sequence"):
    """What is explained of a training step of a small model; it is traced and not run."""
    found, small = common.load(layout), ["batch=8", f"model.remat={remat}", *settings]
    mesh = abstract_mesh(common.on(found, 8).mesh, "cpu")
    return explain(Job(override(Config(), small), found, mesh).program())


def computed_again(explanation) -> Counter:
    """How many products of each kind, and kernels of attention, run in the backward pass again."""
    found = Counter()
    for op in explanation.ops:
        contracts = op.name == "attention" or {"d_model", "d_ff"} <= {d.name for d in op.dims}
        projects = op.name == "einsum" and {"d_model", "head_dim"} <= {d.name for d in op.dims}
        again = op.flops.get("recompute", 0) > op.flops.get("forward", 0) / 2
        if again and op.loops and (contracts or projects):
            found["attention" if op.name == "attention" else op.source.split()[-2]] += 1
    return found


@pytest.mark.parametrize(
    "remat, attention, products",
    [
        # Of the seven matrices of a layer the last adds to the residual stream: nobody needs its
        # product again.
        ("full", 1, 6),
        ("attention", 0, 6),
        ("qkv", 0, 3),
        ("hidden", 0, 1),
        ("dots", 0, 0),
        ("gathers", 0, 0),
    ],
)
def test_what_is_kept_is_not_computed_again(remat, attention, products):
    again = computed_again(step(remat))
    assert again.pop("attention", 0) == attention
    assert again.total() == products


def test_each_policy_keeps_more_than_the_one_before_and_none_keeps_what_was_gathered():
    made = [step(remat) for remat in POLICIES]
    peaks = [explanation.memory.peak for explanation in made]
    assert all(less <= more for less, more in pairwise(peaks))
    # The seven matrices of a layer are gathered again under each, but where all is kept.
    again = [
        sum(m.count for op in e.ops for m in op.moves if (m.phase, m.operation) == GATHERED)
        for e in made
    ]
    assert min(again[:-1]) >= 14 and again[-1] == 0


GATHERED = ("recompute", "all_gather")


@pytest.mark.parametrize("remat", only(["hidden"], ["hidden", "full", "gathers"]))
def test_loss_and_gradients_are_those_of_one_device_that_keeps_all(remat, everything_kept):
    (loss, _), gradients = _step_of(remat, "fsdp-sequence")
    (expected, _), expected_gradients = everything_kept
    np.testing.assert_allclose(loss.array, expected.array, rtol=1e-6)
    common.assert_same_gradients(gradients, expected_gradients)


@pytest.fixture(scope="module")
def everything_kept():
    return _step_of("none", "single")


def _step_of(remat: str, layout: str):
    config = dataclasses.replace(CONFIG, remat=remat)
    lowered = md.lower(md.value_and_grad(common.loss, has_aux=True), common.load(layout))
    return lowered(common.init(config), common.batch(config), jax.random.key(0))


@pytest.mark.parametrize(
    "remat, offload, again",
    [
        ("attention", "attention,qkv,hidden", 1),
        ("full", "activations", 7),
        pytest.param("full", "qkv", 4, marks=pytest.mark.slow),
        pytest.param("qkv", "attention,qkv", 3, marks=pytest.mark.slow),
    ],
)
def test_what_waits_on_the_host_is_not_computed_again_and_takes_no_memory(remat, offload, again):
    waiting = step(remat, f"offload={offload}")
    assert computed_again(waiting).total() == again
    # What a layer needs of it comes back while that layer's backward pass runs.
    assert waiting.memory.peak <= 1.001 * step(remat).memory.peak


def test_a_model_that_marks_none_of_the_save_points_takes_every_policy():
    def layer(x):
        return md.sin(md.tanh(x))

    x = md.tensor(np.ones(3, np.float32), md.Dim("a", 3))
    for policy in POLICIES[:-1]:
        md.checkpoint(layer, policy)(x)
    with pytest.raises(md.MeshDSLError, match="marks no save point `attention`"):
        md.checkpoint(layer, save="attention")(x)


def test_a_function_of_the_users_own_may_mark_what_a_policy_keeps():
    a, b = md.Dim("a", 4), md.Dim("b", 4)
    x, w = md.tensor(np.ones(4, np.float32), a), md.tensor(np.eye(4, dtype=np.float32), (a, b))

    def products(policy):
        layer = lambda w: md.sum(md.sin(md.checkpoint_name(md.einsum(x, w, out=b), "hidden")))
        run = lambda w: md.value_and_grad(md.checkpoint(layer, policy))(w)[1]
        return str(jax.make_jaxpr(run)(w)).count("dot_general")

    assert products("hidden") == products("full") - 1


@pytest.mark.parametrize("remat, convolutions", [("full", 2), ("attention", 2), ("hidden", 0)])
def test_the_blocks_of_a_unet_keep_their_convolutions(remat, convolutions):
    found = step(remat, "model.family=unet", "model.levels=0", layout="data")
    again = [op for op in found.ops if op.name == "conv" and op.flops.get("recompute")]
    assert len(again) == convolutions
