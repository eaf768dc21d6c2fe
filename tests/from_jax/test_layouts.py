"""Models of all libraries equal themselves under shipped layouts, and others that split more."""

import dataclasses

import pytest

import meshdsl as md
from meshdsl.mesh import axis_sizes
from tests.from_jax import libraries, zoo
from tests.from_jax.test_from_jax import SIZES, assert_same, gpt, scanned_gpt
from tests.helpers import only

MODELS = {**zoo.ZOO, **libraries.LIBRARIES, "gpt": gpt, "scanned gpt": scanned_gpt}
OF_NAMES = {
    **zoo.SIZES,
    "equinox": {"heads": 4},
    "haiku": {"heads": 4},
    "gpt": SIZES,
    "scanned gpt": SIZES,
}
MESH = {"data": 2, "model": 2}
OWN = {
    "fsdp and sequence": md.Layout(
        [
            "batch -> data",
            "heads?, kv_heads?, d_ff?, vocab?, height?, experts? -> model",
            "length? -> model",
        ],
        ["d_model? -> data"],
        mesh=MESH,
    ),
    "context": md.Layout(
        ["length? -> data, model", "batch -> model", "width? -> model"], mesh=MESH
    ),
}
# What layouts have rules for, and a model may lack: an image has no length.
DIMS = ("length", "d_model", "d_ff", "vocab", "experts")
# A model has one of the layouts that split more, by turns, and those shipped ones that do something
# of their own have a model.
CASES = [(model, [*OWN][i % len(OWN)]) for i, model in enumerate(MODELS)]
CASES += [("linen", "context-ring"), ("dropout", "fsdp-sequence"), ("nnx", "fsdp-once")]
CASES += [("llama", "ulysses"), ("vit", "tensor"), ("unet", "spatial"), ("mamba2", "zero2")]
CASES += [("equinox", "experts-exchange"), ("equinox-rnn", "hybrid-fsdp")]
CASES += [("nano-moe", "fsdp-tensor"), ("gpt", "zero1")]
OFTEN = [*dict(CASES).items()]  # each model under the last of its layouts


@pytest.mark.parametrize("model, layout", only([], CASES, OFTEN))
def test_a_model_equals_itself_under_a_layout(model, layout):
    fn, names, args = MODELS[model]()
    named = md.from_jax(fn, names, sizes=OF_NAMES.get(model))
    if layout in OWN:
        assert_same(fn, named, args, OWN[layout])
        return
    loaded = md.Layout.load(layout)
    devices = 4 if loaded.mesh else 1
    uneven = "pad" if model == "vit" else loaded.uneven  # it has 9 patches
    loaded = dataclasses.replace(loaded, mesh=axis_sizes(loaded.mesh, devices), uneven=uneven)
    assert_same(fn, named, args, loaded, devices, dims=DIMS)
