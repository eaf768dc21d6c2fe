"""Models of all libraries equal themselves under every shipped layout."""

import dataclasses
from pathlib import Path

import pytest

import meshdsl as md
from meshdsl.mesh import axis_sizes
from tests.from_jax import libraries, zoo
from tests.from_jax.test_from_jax import assert_same

MODELS = {**zoo.ZOO, **libraries.LIBRARIES}
SIZES = {**zoo.SIZES, "equinox": {"heads": 4}, "haiku": {"heads": 4}}
FILES = sorted((Path(__file__).parents[2] / "layouts").glob("*.toml"))
LAYOUTS = [file.stem for file in FILES if not file.stem.startswith("pipeline")]
# What layouts have rules for, and a model may lack: an image has no length.
DIMS = ("length", "d_model", "d_ff", "vocab", "experts")


@pytest.mark.slow
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("model", MODELS)
def test_a_model_equals_itself_under_every_shipped_layout(model, layout):
    fn, names, args = MODELS[model]()
    loaded = md.Layout.load(layout)
    devices = 4 if loaded.mesh else 1
    uneven = "pad" if model == "vit" else loaded.uneven  # it has 9 patches
    loaded = dataclasses.replace(loaded, mesh=axis_sizes(loaded.mesh, devices), uneven=uneven)
    named = md.from_jax(fn, names, sizes=SIZES.get(model))
    assert_same(fn, named, args, loaded, devices, dims=DIMS)
