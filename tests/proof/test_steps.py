"""Whole steps of training are proved, with their gradients and their optimizer."""

import pytest

import meshdsl as md
from meshdsl.train.stored_layout import find_layout
from tests.helpers import only
from tests.proof.common import LAYOUTS, computed, on_one_device, program, proof, same

SETTINGS = {
    "accumulated": ("microbatches=2",),
    "adafactor": ("optimizer.name=adafactor",),
    "bfloat16": ("precision.compute=bfloat16",),
    "dropout": ("model.dropout=0.1",),
    "gemma2": ("model.style=gemma2", "model.heads=4"),
    "gpt2": ("model.style=gpt2",),
    "in blocks": ("model.length=2048", "model.layers=1"),
    "no remat": ("model.remat=none",),
    "window": ("model.window=4",),
}
OFTEN = "adafactor", "bfloat16", "gemma2"
SHIPPED = (
    *("data", "fsdp", "fsdp-once", "fsdp-sequence", "fsdp-tensor", "hybrid-fsdp", "sequence"),
    *("single", "tensor", "ulysses", "context", "context-ring", "zero1", "zero2"),
)


@pytest.mark.parametrize("name", only(["fsdp-tensor"], LAYOUTS))
def test_a_step_is_proved_and_computes_the_same(name):
    assert proof(LAYOUTS[name]).proved
    args, expected = on_one_device()
    assert same(computed(program(LAYOUTS[name]).jaxpr, args), expected)


@pytest.mark.parametrize("settings", only(["accumulated", "dropout", "in blocks"], SETTINGS, OFTEN))
def test_a_step_is_proved_whatever_the_model(settings):
    assert proof(LAYOUTS["fsdp-tensor"], *SETTINGS[settings]).proved


@pytest.mark.slow
def test_a_loss_in_chunks_is_proved_also_where_the_vocabulary_is_split():
    assert proof(LAYOUTS["fsdp"], "model.loss_chunk=8").proved
    assert proof(LAYOUTS["fsdp-tensor"], "model.loss_chunk=8").proved


@pytest.mark.parametrize(
    "name", only([], SHIPPED, ["fsdp-sequence", "hybrid-fsdp", "ulysses", "context-ring", "zero2"])
)
def test_a_step_under_a_layout_that_comes_with_us_is_proved(name):
    sizes = "model.heads=8", "model.kv_heads=8", "batch=16"
    found = proof(find_layout(name), *sizes)
    assert found.proved, found.doubt


def test_what_is_not_proved_is_not_said_to_be():
    padded = md.Layout([{"rule": "batch -> data", "uneven": "pad"}], mesh={"data": 3})
    found = proof(padded)
    assert found.doubt is not None
    assert "params.embedding.table" in found.doubt.results
