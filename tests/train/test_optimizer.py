"""Optimizers by name: what they do to matrices, to stacked matrices and to everything else."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from meshdsl.dims import Dim
from meshdsl.errors import MeshDSLError
from meshdsl.layout import Layout
from meshdsl.lowering.shardings import shardings
from meshdsl.mesh import make_mesh
from meshdsl.tensor import parameter
from meshdsl.train.config import Optimizer, Schedule
from meshdsl.train.optimizer import (
    TABLE,
    average_of,
    make_optimizer,
    make_schedule,
    optimizers_of_optax,
)

LAYERS, ROWS, COLUMNS = Dim("layers", 2), Dim("rows", 4), Dim("columns", 6)


def parameters():
    stacked = parameter(
        jax.random.normal(jax.random.key(0), (2, 4, 6)), (LAYERS, ROWS, COLUMNS), ins=(ROWS,)
    )
    stacked.role = stacked.role._replace(outs=("columns",))
    scale = parameter(jnp.ones((2, 4)), (LAYERS, ROWS))
    return {"weight": stacked, "scale": scale}


def optimizer(name, rate=0.1, *, warmup=0, steps=10, **settings):
    return make_optimizer(
        Optimizer(name=name, learning_rate=rate, **settings), Schedule(warmup=warmup), steps
    )


def updates(name, gradient, **settings):
    tx = optimizer(name, **settings)
    params = parameters()
    made, _ = jax.jit(tx.update)(
        jax.tree.map(lambda x: jnp.full_like(x, gradient), params), tx.init(params), params
    )
    return jax.tree.map(np.asarray, made)


@pytest.mark.parametrize("name", TABLE)
def test_weight_decay_is_of_matrices_only(name):
    plain, decayed = (updates(name, 0.0, weight_decay=decay) for decay in (0.0, 0.5))
    np.testing.assert_array_equal(decayed["scale"].array, plain["scale"].array)
    expected = -0.1 * 0.5 * np.asarray(parameters()["weight"].array)
    if name == "sgd":  # decay enters nesterov's momentum
        expected *= 1.9
    np.testing.assert_allclose(decayed["weight"].array - plain["weight"].array, expected, rtol=1e-5)


@pytest.mark.parametrize("name", TABLE)
def test_a_loss_falls(name):
    tx = optimizer(name, 0.03, warmup=2, steps=30, weight_decay=0.0)
    loss = lambda params: sum(jnp.mean((x - 0.5) ** 2) for x in jax.tree.leaves(params))

    @jax.jit
    def step(params, state):
        made, state = tx.update(jax.grad(loss)(params), state, params)
        return optax.apply_updates(params, made), state

    params = parameters()
    state, first = tx.init(params), loss(params)
    for _ in range(30):
        params, state = step(params, state)
    assert loss(params) < 0.9 * first


LAYOUT = Layout(["columns -> model"], ["rows -> data"], mesh={"data": 2, "model": 2})


@pytest.mark.parametrize("name", TABLE)
def test_split_parameters_get_the_updates_of_whole_ones(name):
    params, mesh = parameters(), make_mesh(LAYOUT)
    split = jax.device_put(params, shardings(params, LAYOUT, mesh, "optimizer"))
    state = optimizer(name).init(params)
    jax.device_put(state, shardings(state, LAYOUT, mesh, "optimizer"))
    same = lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)
    jax.tree.map(same, two_updates(name, split), two_updates(name, params))


def two_updates(name, params):
    """`params` after two updates by gradients that differ."""
    tx = optimizer(name)
    state = jax.jit(tx.init)(params)
    for factor in (1.0, -0.3):
        gradients = jax.tree.map(lambda x, factor=factor: factor * x * x, params)
        made, state = jax.jit(tx.update)(gradients, state, params)
        params = jax.tree.map(jnp.add, params, made)
    return params


def rates(steps, **settings):
    """The learning rate of each step, and the one that the run ends at; the peak is 1."""
    schedule = make_schedule(Schedule(**settings), 1.0, steps)
    return [float(schedule(step)) for step in range(steps + 1)]


# steps after a warmup of 4, of a run of 24 that ends at a fifth of the peak
SHAPES = {
    "cosine": {0: 1.0, 10: 0.6, 20: 0.2},
    "linear": {0: 1.0, 5: 0.8, 10: 0.6, 20: 0.2},
    "constant": {0: 1.0, 10: 1.0, 20: 1.0},
    "wsd": {0: 1.0, 10: 1.0, 15: 0.6, 20: 0.2},  # falls over the last half
}


@pytest.mark.parametrize("shape", SHAPES)
def test_a_schedule_has_its_shape(shape):
    found = rates(24, shape=shape, warmup=4, final=0.2, decay=0.5)
    np.testing.assert_allclose(found[:5], [0.2, 0.4, 0.6, 0.8, 1.0])
    assert found[4:] == sorted(found[4:], reverse=True)
    for step, rate in SHAPES[shape].items():
        assert found[4 + step] == pytest.approx(rate), step
    assert rates(1, shape=shape, warmup=50)[0] == 1.0  # a run shorter than its warmup


def make_mine(learning_rate, weight_decay, factor=1.0):
    return optax.chain(optax.scale(-factor * weight_decay), optax.scale_by_schedule(learning_rate))


def test_an_optimizer_is_one_of_optax_or_of_the_users():
    mine = f"{__file__}:make_mine"
    for name, settings, expected in (
        ("adam", {"b1": 0.5}, -0.1),
        ("sign_sgd", {}, -0.1),
        (mine, {"factor": 2.0}, -0.1 * 2 * 0.5),
    ):
        made = updates(name, 1.0, settings=settings, weight_decay=0.5)
        np.testing.assert_allclose(made["scale"].array, expected, rtol=2e-2)


@pytest.mark.slow
def test_every_optimizer_of_optax_makes_updates_or_says_why_not():
    refused = {}
    for name in optimizers_of_optax():
        try:
            tx = optimizer(name)
        except MeshDSLError as error:
            refused[name] = str(error)
            continue
        params = parameters()
        made, _ = optax.with_extra_args_support(tx).update(
            params, tx.init(params), params, value=jnp.ones(())
        )
        assert jax.tree.structure(made) == jax.tree.structure(params)
    known = "dpsgd optimistic_adam schedule_free sophia lbfgs rprop sm3"
    assert set(refused) <= set(known.split())
    assert all(text.startswith(f"optimizer.name={name}: ") for name, text in refused.items())


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"name": "adem"}, "optimizer.name=adem: expected adamw, adafactor, lion, sgd, muon, "),
        ({"name": "chain"}, "optimizer.name=chain: expected adamw"),
        ({"name": "sophia"}, "optimizer.name=sophia: cannot be used in a run: obj_fn must be"),
        (
            {"name": "adam", "settings": {"b3": 1}},
            "optimizer.settings.b3: adam has no such setting; known: `b1`",
        ),
        (
            {"settings": {"learning_rate": 1}},
            "optimizer.settings.learning_rate: is set by optimizer.learning_rate",
        ),
        ({"name": f"{__file__}:SHAPES"}, f"optimizer.name={__file__}:SHAPES: is no function"),
        ({"name": f"{__file__}:rates"}, f"optimizer.name={__file__}:rates: cannot be made"),
        ({"name": f"{__file__}:absent"}, f"optimizer.name={__file__}:absent: "),
    ],
)
def test_an_optimizer_that_cannot_be_is_one_error(settings, said):
    with pytest.raises(MeshDSLError) as error:
        make_optimizer(Optimizer(**settings), Schedule(), 10)
    assert str(error.value).startswith(said)


def test_an_average_follows_the_parameters():
    tx = optimizer("sgd", average=0.5, weight_decay=0.0)
    params = parameters()
    state, expected = tx.init(params), np.asarray(params["scale"].array)
    for count in (1, 2, 3):
        made, state = tx.update(params, state, params)
        params = jax.tree.map(jnp.add, params, made)
        old = min(0.5, count / (count + 9))
        expected = old * expected + (1 - old) * np.asarray(params["scale"].array)
    np.testing.assert_allclose(average_of(state)["scale"].array, expected, rtol=1e-6)
