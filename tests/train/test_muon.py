"""Muon under layouts: the steps of one device, by two all_to_alls for each stack of matrices."""

from collections import Counter

import jax
import numpy as np
import optax
import pytest
from flax.struct import PyTreeNode

import meshdsl as md
from meshdsl.layout import Layout
from meshdsl.mesh import make_mesh
from meshdsl.tensor import is_tensor
from meshdsl.train.config import Config, Optimizer, Schedule
from meshdsl.train.job import Job
from meshdsl.train.muon import is_matrix, matrices, muon, numbers_of
from meshdsl.train.optimizer import make_optimizer
from meshdsl.train.settings import override
from meshdsl.train.step import TrainStep
from tests.helpers import dims, only
from tests.train.common import TINY, tiny_job
from tests.train.test_optimizer import parameters
from tests.train.test_trained import steps

MUON = ("optimizer.name=muon", "optimizer.learning_rate=0.01", "schedule.warmup=0")
EXPERTS = ("model.experts=4", "model.experts_used=2", "model.capacity=2.0")
# By layout: further settings. Three layers divide over no axis.
LAYOUTS = {
    "zero1": ("model.layers=8",),
    "hybrid-fsdp": ("model.layers=3",),
    "pipeline-fsdp": ("model.layers=4",),
    "experts-tensor": ("model.layers=3", *EXPERTS),
}


@pytest.mark.parametrize("layout", only([], LAYOUTS, ["hybrid-fsdp", "experts-tensor"]))
def test_steps_are_those_of_one_device(layout):
    settings = [*MUON, *LAYOUTS[layout]]
    found, expected = (steps(name, *settings, count=3) for name in (layout, "single"))
    np.testing.assert_allclose(found, expected, rtol=3e-5)


LAYERS, BATCH, INNER, OUTER = dims(layers=3, batch=8, inner=8, outer=16)


class Stacked(PyTreeNode):
    """A stack of three matrices, which divides over no axis, and a matrix in no stack."""

    stack: md.Tensor
    lone: md.Tensor

    @classmethod
    def init(cls, key):
        stack, lone = (
            md.normal(key, dims, ins=INNER) for dims in ((LAYERS, INNER, OUTER), (INNER, OUTER))
        )
        stack.role = stack.role._replace(outs=("outer",))
        return cls(stack, lone)

    def loss(self, batch, key):
        of_stack = md.einsum(batch["x"], self.stack, out=(BATCH, LAYERS, OUTER))
        return md.mean(
            md.square(of_stack + md.einsum(batch["x"], self.lone, out=(BATCH, OUTER)))
        ), {}


def test_steps_of_a_small_model_are_those_of_one_device():
    batch = {
        "x": md.tensor(np.random.default_rng(0).normal(size=(8, 8)).astype("f"), (BATCH, INNER))
    }
    found = []
    for layout in (Layout(), Layout(["batch -> data"], ["inner -> data"], mesh={"data": 8})):
        tx = make_optimizer(Optimizer("muon", learning_rate=0.1), Schedule(warmup=0), 10)
        step = TrainStep(Stacked.init, Stacked.loss, tx, layout, make_mesh(layout))
        state = step.init(jax.random.key(0))
        for _ in range(2):
            state, _ = step(state, batch)
        found.append(state.params)
    same = lambda a, b: np.testing.assert_allclose(a, b, rtol=3e-5, atol=1e-6)
    jax.tree.map(same, *found)
    moves = Counter(c.operation for c in step.program(state, batch).collectives)
    assert moves["all_to_all"] == 2


def _ops_of_update(job: Job):
    """The ops of the optimizer in a recorded step, and how often each collective is in them."""
    program = job.program()
    moves = Counter(c.operation for c in program.collectives if c.phase == "optimizer")
    return [op for op in program.ops if op.tag.startswith("md.optimizer")], moves


MOVES = {
    "fsdp": {"all_to_all": 14, "all_gather": 2},
    "data": {},
    "tensor": {"all_to_all": 14, "all_gather": 2},
}


@pytest.mark.parametrize("layout", only(["fsdp"], MOVES))
def test_a_stack_takes_two_all_to_alls_and_a_lone_matrix_one_gather(layout):
    job = tiny_job(layout, *MUON, "model.layers=3")
    ops, found = _ops_of_update(job)
    assert sum(op.name == "newton_schulz" for op in ops) == 9  # 7 stacks, embedding and head
    assert found == MOVES[layout]


@pytest.mark.slow
def test_a_layout_that_is_strict_stays_usable():
    layout = Layout(
        ["batch -> data"], ["d_model -> data"], mesh={"data": 4}, strict=True, name="strict"
    )
    config = override(Config(), [*TINY, *MUON, "model.layers=4"])
    job = Job(config, layout, make_mesh(layout, jax.devices()[:4]))
    assert _ops_of_update(job)[1]["all_to_all"] == 14


def _by_optax(params, gradients, settings):
    """Parameters after three steps of optax's own muon, on one device."""
    numbers = lambda tree: jax.tree.map(
        lambda x: numbers_of(x) if is_matrix(x) else None, tree, is_leaf=is_tensor
    )
    tx = optax.contrib.muon(0.1, muon_weight_dimension_numbers=numbers, **settings)
    return _after_three(tx, params, gradients)


def _after_three(tx, params, gradients):
    state = tx.init(params)
    for _ in range(3):
        made, state = tx.update(gradients, state, params)
        params = optax.apply_updates(params, made)
    return params


SETTINGS = {
    "usual": {},
    "rms": {"consistent_rms": 0.3, "nesterov": False},
    "dion": {"adaptive": True, "ns_coeffs": "dion"},
    "aol": {"preconditioning": "aol", "ns_steps": 3, "beta": 0.8, "adam_b1": 0.7},
}


@pytest.mark.parametrize("name", only(["dion"], SETTINGS))
def test_it_is_that_of_optax(name):
    params = parameters()
    gradients = jax.tree.map(lambda x: jax.numpy.sin(7 * x) + 0.1, params)
    found = _after_three(muon(0.1, 0.0, matrices, **SETTINGS[name]), params, gradients)
    expected = _by_optax(params, gradients, SETTINGS[name])
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-7)
