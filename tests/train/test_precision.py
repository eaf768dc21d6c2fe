"""Casts, rounding at random, and the scale of the loss."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import meshdsl as md
from meshdsl.train import precision
from meshdsl.train.config import Config
from meshdsl.train.precision import LossScale, cast, round_at_random, stochastic_round
from meshdsl.train.settings import override

ROWS, COLUMNS = md.Dim("rows", 8), md.Dim("columns", 16)
LAYOUTS = {
    "split": md.Layout(["rows -> data"], mesh={"data": 8}),
    "split along both": md.Layout(
        ["rows -> data", "columns -> model"], mesh={"data": 2, "model": 4}
    ),
}


def parameters():
    values = jax.random.normal(jax.random.key(3), (8, 16))
    return {"a": md.parameter(values, (ROWS, COLUMNS)), "b": md.parameter(values, (ROWS, COLUMNS))}


def test_cast_changes_floats_of_tensors_only():
    tree = {
        "w": md.tensor(jnp.ones(8), (ROWS,)),
        "ids": md.tensor(jnp.arange(8), (ROWS,)),
        "rate": jnp.ones(()),
        "none": None,
    }
    found = cast(tree, "bfloat16")
    kinds = [found[name].dtype for name in ("w", "ids", "rate")]
    assert kinds == [jnp.bfloat16, jnp.int32, jnp.float32] and found["none"] is None
    assert cast(tree, "float32")["w"].array is tree["w"].array


@pytest.mark.parametrize("family", ["vit", "unet"])
def test_images_are_cast_so_that_products_are_in_the_dtype_of_compute(family):
    config = override(Config(), **{"model.family": family, "precision.compute": "bfloat16"})
    batch = config.model.batch(md.Dim("batch", 2))

    def loss(key, batch):
        found = config.model.loss(cast(config.model.init(key), "bfloat16"), batch, None)
        return jax.tree.leaves(found)[0]

    text = jax.jit(loss).lower(jax.random.key(0), batch).as_text()
    products = re.findall(r"stablehlo.(?:dot_general|convolution)\b.* : \((.*)\) ->", text)
    assert len(products) > 3 and all(x.count("xbf16>") == 2 for x in products), products


@pytest.mark.parametrize("value", [1.001, -1.001, 0.3, 3e-39, 1e30])
def test_a_rounded_number_is_a_neighbour_and_right_on_average(value):
    draws = 20_000
    values = jnp.full(draws, value, jnp.float32)
    found = np.asarray(jax.jit(stochastic_round)(values, jax.random.key(0)), np.float64)
    value = float(np.float32(value))
    below, above = sorted(set(found))
    assert below < value < above and above - below <= max(2**-7 * abs(value), 2.0**-133)
    deviation = np.sqrt((above - value) * (value - below) / draws)
    assert abs(found.mean() - value) < 4 * deviation


def test_what_needs_no_rounding_is_left_as_it_is():
    values = jnp.array([0.0, -0.0, 1.0, -2.5, jnp.inf, -jnp.inf, jnp.nan])
    for seed in range(5):
        found = stochastic_round(values, jax.random.key(seed))
        np.testing.assert_array_equal(np.asarray(found, np.float32), values)
        np.testing.assert_array_equal(np.signbit(np.asarray(found, np.float32)[:2]), [False, True])


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
def test_rounding_is_the_same_under_every_layout_and_asks_no_other_device(layout):
    params, key = parameters(), jax.random.key(7)
    places = md.shardings(params, layout, md.make_mesh(layout))
    placed = jax.device_put(params, places)
    compiled = jax.jit(round_at_random, out_shardings=places).lower(placed, key, 5).compile()
    found = compiled(placed, key, 5)
    jax.tree.map(np.testing.assert_array_equal, found, jax.jit(round_at_random)(params, key, 5))
    for word in ("all-gather", "all-reduce", "all-to-all", "collective-permute"):
        assert word not in compiled.as_text()


def test_every_parameter_and_every_step_is_rounded_by_draws_of_its_own():
    first, second = (round_at_random(parameters(), jax.random.key(7), step) for step in (0, 1))
    assert (first["a"].array != first["b"].array).any()
    assert (first["a"].array != second["a"].array).any()
    again = round_at_random(parameters(), jax.random.key(7), 0)
    np.testing.assert_array_equal(again["a"].array, first["a"].array)


def test_the_scale_stays_between_1_and_what_float16_can_use(monkeypatch):
    monkeypatch.setattr(precision, "GROWS_AFTER", 1)
    low = high = LossScale.first()
    for _ in range(40):
        low, high = low.after(jnp.asarray(False)), high.after(jnp.asarray(True))
    assert (float(low.value), float(high.value)) == (1.0, 2.0**24)
