"""What the transformer promises beyond parity."""

import dataclasses
import re

import jax
import numpy as np
import pytest

import meshdsl as md
from meshdsl.plan.jaxpr import sub_jaxprs
from tests.models import common

CONFIG = common.CONFIGS["llama"]
value_and_grad = md.value_and_grad(common.loss, has_aux=True)


def program(config, name):
    lowered = md.lower(value_and_grad, common.load(name))
    return lowered, (common.init(config), common.batch(config), jax.random.key(0))


def local_sizes(jaxpr):
    for eqn in jaxpr.eqns:
        for variable in eqn.outvars:
            yield from getattr(variable.aval, "shape", ())
        for sub in sub_jaxprs(eqn.params):
            yield from local_sizes(sub)


@pytest.mark.parametrize("name", ["tensor", "sequence"])
def test_no_device_holds_unsplit_logits(name):
    config = dataclasses.replace(CONFIG, vocab=8 * 1009)
    lowered, args = program(config, name)
    (whole,) = [e for e in lowered.trace(*args).jaxpr.eqns if e.primitive.name == "shard_map"]
    sizes = set(local_sizes(whole.params["jaxpr"]))
    assert 1009 in sizes
    assert 8 * 1009 not in sizes


def test_bfloat16_computes_and_gathers_in_bfloat16_and_keeps_float32_gradients():
    config = dataclasses.replace(CONFIG, compute_dtype="bfloat16")
    lowered, args = program(config, "fsdp")
    (loss, _), grads = lowered(*args)
    (expected, _), _ = program(CONFIG, "fsdp")[0](*args)
    np.testing.assert_allclose(loss.array, expected.array, rtol=1e-2)
    assert {g.dtype for g in jax.tree.leaves(grads, is_leaf=lambda g: isinstance(g, md.Tensor))} == {np.dtype("float32")}
    gathered = [c for c in lowered.program(*args).collectives if c.operation == "all_gather" and c.bytes > 1000]
    assert gathered and {c.dtype for c in gathered} == {"bfloat16"}


@pytest.mark.parametrize("remat, gathers_again", [("none", False), ("dots", True), ("gathers", True), ("full", True)])
def test_what_is_recomputed_changes_collectives_and_no_gradient(remat, gathers_again):
    lowered, args = program(dataclasses.replace(CONFIG, remat=remat), "fsdp")
    reference, same = program(CONFIG, "single")
    (_, grads), (_, expected) = lowered(*args), reference(*same)
    for got, want in zip(jax.tree.leaves(grads), jax.tree.leaves(expected), strict=True):
        assert np.linalg.norm(np.asarray(got) - np.asarray(want)) <= 1e-5 * np.linalg.norm(want)
    again = [c for c in lowered.program(*args).collectives if c.phase == "recompute" and c.operation == "all_gather"]
    assert bool(again) == gathers_again


@pytest.mark.parametrize(
    "settings, text",
    [
        ({"style": "lama"}, "model: no style 'lama'; did you mean `llama`?"),
        ({"remat": "all"}, "model: no remat 'all'"),
        ({"compute_dtype": "float8"}, "model: no compute_dtype 'float8'; did you mean `float"),
        ({"layers": 0}, "model: layers is at least 1, not 0"),
        ({"dropout": 1.0}, "model: dropout is at least 0 and less than 1, not 1.0"),
        ({"d_model": 30, "heads": 8}, "model: d_model=30 does not divide into heads=8; set head_dim"),
        ({"heads": 8, "kv_heads": 3}, "model: heads=8 is not a multiple of kv_heads=3"),
        ({"head_dim": 3}, "model: rotary positions need an even head_dim, not 3"),
    ],
)
def test_a_wrong_setting_is_named(settings, text):
    with pytest.raises(md.MeshDSLError, match=re.escape(text)):
        common.Config(**settings)


def test_tokens_longer_than_the_model_are_an_error():
    length = md.Dim("length", 17)
    tokens = md.tensor(np.zeros((8, 17), np.int32), (common.BATCH, length))
    with pytest.raises(md.MeshDSLError, match="tokens of length=17 are longer than the model's length=16"):
        common.init(CONFIG)(tokens)
