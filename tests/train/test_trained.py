"""What of a model is trained: frozen parameters, and groups with settings of their own."""

from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import meshdsl as md
from meshdsl.errors import MeshDSLError
from meshdsl.predict.memory.memory_view import kind_of
from meshdsl.tensor import is_tensor
from meshdsl.train.config import Group, Optimizer, Schedule
from meshdsl.train.optimizer import groups_of, make_optimizer
from meshdsl.train.trained import matched, only, together, without
from tests.train.common import first_state, tiny_job
from tests.train.test_step import Model, batch_of, make
from tests.train.test_step import run as run_step

NAMES = ["embedding.table", "blocks.layer.mlp.up.weight", "blocks.layer.norm.scale", "head.weight"]


def test_the_last_pattern_that_matches_counts():
    assert matched(["*", "!head.*"], NAMES, "frozen") == set(NAMES[:3])
    assert matched(["!head.*", "*"], NAMES, "frozen") == set(NAMES)
    assert matched(["blocks.*.weight"], NAMES, "frozen") == {NAMES[1]}
    assert matched([], NAMES, "frozen") == set()


@pytest.mark.parametrize(
    ("pattern", "said"),
    [
        ("head.wight", "frozen: no parameter is called `head.wight`; did you mean `head.weight`?"),
        ("!x", "frozen: no parameter is called `x`; the model has `embedding.table`, "),
        ("Head.*", "frozen: no parameter is called `Head.*`"),
    ],
)
def test_a_pattern_that_matches_nothing_is_an_error(pattern, said):
    with pytest.raises(MeshDSLError) as error:
        matched(["*", pattern], NAMES, "frozen")
    assert str(error.value).startswith(said)


def test_a_model_is_parted_and_put_together():
    model = Model.init(jax.random.key(0))
    first, second = without(model, {"up"}), only(model, {"up"})
    assert first.up is None and second.down is None
    assert len(jax.tree.leaves(first)) == 2 and len(jax.tree.leaves(second)) == 1
    assert jax.tree.structure(together(first, second)) == jax.tree.structure(model)


def test_a_group_has_settings_of_its_own():
    settings = Optimizer(
        name="sgd",
        learning_rate=0.1,
        groups={"head": Group(("head.*",), learning_rate=0.01, weight_decay=0.0)},
    )
    params: Any = {
        name: md.parameter(jnp.full((4,), 2.0), (md.Dim("a", 4),), ins="a")
        for name in ("head.weight", "body.weight")
    }
    groups = groups_of(settings, params)
    tx = make_optimizer(settings, Schedule(shape="constant", warmup=0), 10, groups)
    grads = jax.tree.map(jnp.ones_like, params)
    made: Any
    made, state = tx.update(grads, tx.init(params), params)
    # Nesterov's momentum of the first step is 1.9 times the gradient.
    np.testing.assert_allclose(made["head.weight"].array, -0.01 * 1.9, rtol=1e-6)
    np.testing.assert_allclose(made["body.weight"].array, -0.1 * 1.9 * (1 + 0.1 * 2), rtol=1e-6)
    kept = [x for x in jax.tree.leaves(state, is_leaf=is_tensor) if jax.tree.leaves(x)]
    assert sum(is_tensor(x) for x in kept) == 2  # one momentum for each parameter


@pytest.mark.parametrize(
    ("groups", "said"),
    [
        ({"a": Group()}, "optimizer.groups.a.parameters: name at least one pattern"),
        ({"a": Group(("hed",))}, "optimizer.groups.a.parameters: no parameter is called `hed`"),
        (
            {"a": Group(("*",)), "b": Group(("head.*",))},
            "optimizer.groups.b.parameters: `head.weight` is in the group a too",
        ),
    ],
)
def test_groups_that_cannot_be(groups, said):
    with pytest.raises(MeshDSLError, match="^optimizer") as error:
        groups_of(Optimizer(groups=groups), NAMES)
    assert str(error.value).startswith(said)


def test_what_is_frozen_has_no_gradient_and_no_optimizer_state():
    step = make("zero3", frozen=frozenset({"up"}))
    state, measured = run_step(step, [batch_of(0)])
    before = step.init(jax.random.key(3))
    np.testing.assert_array_equal(state.params.up.array, before.params.up.array)
    assert not np.array_equal(state.params.down.array, before.params.down.array)
    assert not [x for x in jax.tree.leaves(state.opt_state) if x.shape == (8, 16)]
    program = step.program(step.abstract, batch_of(0))
    trained = [a.name for a in program.arguments if kind_of(a) == "parameter" and not a.frozen]
    assert trained == ["params.down", "params.bias"]

    def loss(part):
        down, bias = (each.array for each in part)
        parts = batch_of(0)["x"].array
        found = jnp.tanh(parts @ up) @ down + bias
        return jnp.mean((found - parts) ** 2)

    up = np.asarray(before.params.up)
    value, grads = jax.value_and_grad(loss)((before.params.down, before.params.bias))
    assert measured[0]["loss"] == pytest.approx(float(value), rel=1e-5)
    assert measured[0]["gradient_norm"] == pytest.approx(float(optax.global_norm(grads)), rel=1e-5)


SETTINGS = (
    "frozen=embedding.*,*norm*,!norm.*",
    "optimizer.groups.mlp.parameters=*mlp*",
    "optimizer.groups.mlp.learning_rate=1e-4",
    "optimizer.groups.mlp.weight_decay=0",
)


@cache
def steps(layout: str, *settings: str, count: int = 2) -> list[tuple[float, float]]:
    """The loss and the gradient's norm of each of the first steps of a tiny job."""
    job = tiny_job(layout, *settings)
    state, random = first_state(job, *settings), np.random.default_rng(0)
    found = []
    for _ in range(count):
        batch = {
            name: md.tensor(
                jax.device_put(random.integers(0, 200, x.shape, x.dtype), x.array.sharding), x.dims
            )
            for name, x in job.batch.items()
        }
        state, measured = job.step(state, batch)
        found.append((float(measured["loss"]), float(measured["gradient_norm"])))
    return found


@pytest.mark.slow
@pytest.mark.parametrize("layout", ["fsdp-once"])
def test_layouts_do_not_change_what_is_trained(layout):
    np.testing.assert_allclose(steps(layout, *SETTINGS), steps("single", *SETTINGS), rtol=1e-5)


def test_nothing_left_to_train_is_an_error():
    with pytest.raises(MeshDSLError, match="^frozen: no parameter is left to be trained"):
        tiny_job("single", "frozen=*")
