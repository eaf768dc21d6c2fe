"""`md.init`: parameters born split, with the values of any layout."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import meshdsl as md
from meshdsl.mesh import abstract_mesh
from tests.helpers import assert_by_law, dims

IN, OUT = dims(inner=8, outer=4)
LAYOUTS = {
    "one device": md.Layout(),
    "tensor": md.Layout(["inner -> x"], mesh={"x": 8}),
    "fsdp": md.Layout([], ["outer -> x", "inner -> y"], mesh={"x": 4, "y": 2}),
    "zero1": md.Layout(optimizer=["inner -> x"], mesh={"x": 8}),
}


def make(key):
    up = md.parameter(md.random.normal(key, (IN, OUT)).array, (IN, OUT), ins=IN)
    return {"up": up, "bias": md.parameter(jnp.ones(4), OUT), "steps": jnp.int32(0)}


def state(key):
    params = make(key)
    return params, optax.adam(0.1).init(params)


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
def test_values_are_those_of_any_layout_and_each_device_has_its_part(layout):
    params, opt_state = md.init(state, jax.random.key(1), layout)
    expected = state(jax.random.key(1))
    jax.tree.map(np.testing.assert_array_equal, (params, opt_state), expected)
    mesh = md.make_mesh(layout)
    assert_by_law(params, layout, mesh)
    assert_by_law(opt_state, layout, mesh, "optimizer")


def test_no_device_makes_the_whole():
    made = []

    def noting(key):
        weights = make(key)
        jax.debug.inspect_array_sharding(weights["up"].array, callback=made.append)
        return weights

    md.init(noting, jax.random.key(1), LAYOUTS["tensor"])
    assert made[0].shard_shape((8, 4)) == (1, 4)


def test_a_mesh_without_devices_gives_shapes():
    layout = LAYOUTS["zero1"]
    params, opt_state = md.init(state, jax.random.key(1), layout, abstract_mesh({"x": 8}))
    assert isinstance(params["up"].array, jax.ShapeDtypeStruct)
    assert params["up"].split == {} and opt_state[0].mu["up"].split == {IN: ("x",)}


def test_shardings_find_the_state_of_an_optimizer():
    shapes = jax.eval_shape(state, jax.random.key(1))
    mesh = abstract_mesh({"x": 8})
    found = md.shardings(shapes, LAYOUTS["zero1"], mesh)
    apart = tuple(
        md.shardings(part, LAYOUTS["zero1"], mesh, level)
        for part, level in zip(shapes, (None, "optimizer"), strict=True)
    )
    assert jax.tree.leaves(found) == jax.tree.leaves(apart)
