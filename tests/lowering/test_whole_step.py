"""A whole step of training written inside one lowering: gradients, optimizer and update."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import meshdsl as md
from meshdsl.lowering.shardings import shardings
from meshdsl.machine import find_target
from meshdsl.predict.explain import explain
from meshdsl.tensor import is_tensor
from tests.helpers import assert_by_law, assert_equal, assert_explained, data, dims, only, weight
from tests.models import common

ROWS, INNER, OUTER = dims(rows=8, inner=16, outer=4)
PARAMS = {
    "up": weight(OUTER, INNER, ins=(OUTER,)),
    "bias": weight(INNER, seed=3),
    "down": weight(INNER, OUTER, ins=(INNER,), seed=5),
}
BATCH = data(ROWS, OUTER, seed=9)
LAYOUTS = {
    "one device": md.Layout(mesh={"x": 1}),
    "data": md.Layout(["rows -> x"], mesh={"x": 4}),
    "fsdp": md.Layout(["rows -> x"], ["outer, inner -> x"], mesh={"x": 4}),
    "fsdp-once": md.Layout(["rows -> x"], ["outer, inner -> x"], mesh={"x": 4}, gather="step"),
    "zero1": md.Layout(["rows -> x"], optimizer=["inner -> x"], mesh={"x": 4}),
    "zero2": md.Layout(["rows -> x"], gradients=["inner -> x"], mesh={"x": 4}),
    "hybrid": md.Layout(
        ["rows -> r, d", "inner -> m"], ["outer -> d"], ["outer -> r"], {"r": 2, "d": 2, "m": 2}
    ),
    "uneven": md.Layout(
        ["rows, inner -> x"], optimizer=["outer -> x"], mesh={"x": 3}, uneven="pad"
    ),
}
OPTIMIZERS = {
    "adamw": optax.adamw(0.01),
    "lion": optax.lion(0.01),
    "clipped": optax.chain(md.clip_by_global_norm(0.5), optax.sgd(0.1)),
    "momentum": optax.sgd(0.1, momentum=0.9, nesterov=True),
    "decay of matrices only": optax.chain(
        optax.add_decayed_weights(0.1, mask=lambda params: _matrices(params)), optax.scale(-0.1)
    ),
}


def _matrices(params):
    return jax.tree.map(lambda t: bool(t.role.ins), params, is_leaf=is_tensor)


def loss(params, batch):
    hidden = md.tanh(md.einsum(batch, params["up"], out=(ROWS, INNER)) + params["bias"])
    return md.mean(md.square(md.einsum(hidden, params["down"], out=(ROWS, OUTER)) - batch))


def descend(params, batch):
    value, grads = md.value_and_grad(loss)(params, batch)
    return jax.tree.map(lambda w, g: w - 0.1 * g, params, grads), value


def step_of(optimizer, loss=loss):
    def step(params, state, batch):
        value, grads = md.value_and_grad(loss)(params, batch)
        updates, state = optimizer.update(grads, state, params)
        return optax.apply_updates(params, updates), state, value

    return step


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
def test_a_tree_map_of_parameters_and_gradients(layout):
    lowered = md.lower(descend, layout)
    compiled = lowered.lower(PARAMS, BATCH).compile()
    found, expected = compiled(PARAMS, BATCH), descend(PARAMS, BATCH)
    assert_equal(found, expected)
    assert_by_law(found[0], layout, lowered.mesh)
    assert_explained(lowered.program(PARAMS, BATCH), compiled.as_text(), lowered.mesh)


STEPS = [(name, "hybrid") for name in OPTIMIZERS]
STEPS += [("adamw", name) for name in ("fsdp", "zero1", "zero2")]


@pytest.mark.parametrize("optimizer, layout", STEPS)
def test_three_steps_of_optax(layout, optimizer):
    optimizer = OPTIMIZERS[optimizer]
    layout, step = LAYOUTS[layout], step_of(optimizer)
    lowered = md.lower(step, layout, optimizer_argnums=1, donate_argnums=(0, 1))
    expected = PARAMS, optimizer.init(PARAMS)
    held = lambda tree, level=None: shardings(tree, layout, lowered.mesh, level)
    found = tuple(
        jax.device_put(jax.tree.map(jnp.copy, tree), held(tree, level))
        for tree, level in zip(expected, (None, "optimizer"), strict=True)
    )
    for _ in range(3):
        *found, value = lowered(*found, BATCH)
        *expected, same = step(*expected, BATCH)
        assert_equal(value, same)
    assert_equal(found, expected, tolerance=2e-5)
    assert_by_law(found[0], layout, lowered.mesh)
    assert_by_law(found[1], layout, lowered.mesh, "optimizer")


CONFIG = common.CONFIGS["llama"]


def first_state(key):
    params = common.Transformer.init(key, CONFIG)
    return params, CLIPPED.init(params)


def loss_of_model(model, batch):
    return common.loss(model, batch, None)[0]


CLIPPED = optax.chain(md.clip_by_global_norm(0.5), optax.adamw(1e-2))


def losses(step, params, state):
    found = []
    for i in range(3):
        params, state, value = step(params, state, common.batch(CONFIG, seed=i))
        found.append(float(value.array))
    return found


@pytest.mark.slow
def test_three_steps_of_a_transformer_are_those_without_a_lowering():
    """The optimizer's state is found by its classes, and born split as the layout says."""
    layout = common.on(common.load("fsdp-sequence"), 8)
    lowered = md.lower(step_of(CLIPPED, loss_of_model), layout, donate_argnums=(0, 1))
    found = losses(lowered, *md.init(first_state, jax.random.key(3), layout, lowered.mesh))
    alone = jax.jit(step_of(CLIPPED, loss_of_model))
    expected = losses(alone, *jax.jit(first_state)(jax.random.key(3)))
    np.testing.assert_allclose(found, expected, rtol=1e-5)


def test_zero1_scatters_each_gradient_and_gathers_each_parameter_once():
    state = optax.adamw(0.01).init(PARAMS)
    lowered = md.lower(step_of(optax.adamw(0.01)), LAYOUTS["zero1"], optimizer_argnums=1)
    program = lowered.program(PARAMS, state, BATCH)
    found = [c.operation for c in program.collectives]
    assert sorted(found) == ["all_gather"] * 3 + ["psum"] + ["psum_scatter"] * 3


def test_parts_of_different_splits_meet_as_their_dims_say():
    """One as it came, one resharded by hand, and one that is a sum which was not taken yet."""

    def fn(x, y):
        moved, summed = md.reshard(x, {INNER: "x"}), md.sum(y, OUTER)
        return jax.tree.map(lambda a, b, c: a * b + c, x, moved, summed)

    layout = md.Layout(["rows -> x", "outer -> y"], mesh={"x": 2, "y": 2})
    args = data(ROWS, INNER), data(ROWS, INNER, OUTER, seed=2)
    assert_equal(md.lower(fn, layout)(*args), fn(*args))


def test_constants_made_of_a_leaf_are_as_good_as_others():
    def fn(w):
        ones = jax.tree.map(jnp.ones_like, w)
        return md.sum(ones * w), jax.tree.map(lambda a: a.astype(jnp.bfloat16), w)

    w = weight(INNER, OUTER)
    assert_equal(md.lower(fn, LAYOUTS["fsdp"], dims=(ROWS,))(w), fn(w))


@pytest.mark.parametrize("layout", only(["hybrid"], ["fsdp", "zero2", "hybrid"]))
def test_a_step_inside_of_a_loss(layout):
    """Meta-learning: the gradient of a loss after a step of descent."""

    def after_a_step(params, batch):
        return md.value_and_grad(lambda params: loss(descend(params, batch)[0], batch))(params)

    found = md.lower(after_a_step, LAYOUTS[layout])(PARAMS, BATCH)
    assert_equal(found, after_a_step(PARAMS, BATCH))


def test_transformations_of_jax_itself_get_leaves():
    def fn(params, batch):
        again = jax.checkpoint(lambda params: loss(params, batch))
        return md.value_and_grad(again)(params)

    assert_equal(md.lower(fn, LAYOUTS["fsdp"])(PARAMS, BATCH), fn(PARAMS, BATCH))


WRONG = {
    "a norm over parts": (optax.clip_by_global_norm(1.0), "`reduce_sum`"),
    "a norm for each array": (optax.clip_by_block_rms(1.0), "`reduce_sum`"),
    "noise": (optax.add_noise(0.1, 0.5, key=0), "a random draw"),
}


@pytest.mark.parametrize("optimizer, what", WRONG.values(), ids=WRONG)
def test_what_does_not_treat_each_element_by_itself_is_an_error(optimizer, what):
    lowered = md.lower(step_of(optimizer), LAYOUTS["fsdp"], optimizer_argnums=1)
    with pytest.raises(md.MeshDSLError, match=f"^step: {what}.*one device's part.*on whole arrays"):
        lowered(PARAMS, optimizer.init(PARAMS), BATCH)


def test_state_of_other_shapes_than_the_parameters_is_an_error():
    optimizer = optax.adafactor(0.1, min_dim_size_to_factor=2)
    lowered = md.lower(step_of(optimizer), LAYOUTS["fsdp"], optimizer_argnums=1)
    with pytest.raises(md.MeshDSLError, match=r"adafactor\) runs outside of the lowering"):
        lowered(PARAMS, optimizer.init(PARAMS), BATCH)


def test_the_whole_step_is_explained_with_its_memory():
    optimizer = optax.adamw(0.01)
    state = optimizer.init(PARAMS)
    how = {"optimizer_argnums": 1, "donate_argnums": (0, 1)}
    lowered = md.lower(step_of(optimizer), LAYOUTS["zero1"], **how)
    without = md.lower(step_of(optimizer), LAYOUTS["zero1"], donate_argnums=(0, 1))
    v5p = find_target("v5p:2x2x1")
    memory, same = (
        explain(one.program(PARAMS, state, BATCH), target=v5p).memory for one in (lowered, without)
    )
    assert (same.at_rest, same.peak) == (memory.at_rest, memory.peak)
    held = {}
    for t in memory.at_rest:
        held[t.kind] = held.get(t.kind, 0) + t.bytes
    size = 4 * (2 * INNER.size * OUTER.size + INNER.size)
    assert held["parameter"] == size and held["gradient"] == size // 4
    assert held["optimizer"] == 2 * size // 4 + 4  # two moments, a quarter of each; and the count


@pytest.mark.parametrize("given", [True, -1, "0", 1.5])
def test_positions_of_arguments_are_whole_numbers(given):
    with pytest.raises(
        md.MeshDSLError, match="lower: optimizer_argnums are positions of arguments"
    ):
        md.lower(loss, LAYOUTS["data"], optimizer_argnums=given)
