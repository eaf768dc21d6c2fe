"""Flax modules, grouped heads, images, recurrences and dropout, under layouts that split them."""

import pytest

import meshdsl as md
from tests.from_jax import zoo
from tests.from_jax.test_from_jax import assert_same

LAYOUTS = {
    "fsdp and sequence": md.Layout(
        [
            "batch -> data",
            "heads?, kv_heads?, d_ff?, vocab?, height?, experts? -> model",
            "length? -> model",
        ],
        ["d_model? -> data"],
        mesh={"data": 2, "model": 2},
    ),
    "experts": md.Layout(["batch -> data", "experts? -> model"], mesh={"data": 2, "model": 2}),
    "context": md.Layout(
        ["length? -> data, model", "batch -> model", "width? -> model"],
        mesh={"data": 2, "model": 2},
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("model", zoo.ZOO)
def test_a_model_equals_itself_under_a_layout(model, layout):
    fn, names, args = zoo.ZOO[model]()
    named = md.from_jax(fn, names, sizes=zoo.SIZES.get(model))
    assert_same(fn, named, args, LAYOUTS[layout])
