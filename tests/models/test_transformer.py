"""What the transformer promises beyond parity."""

import dataclasses
import functools

import jax
import numpy as np
import pytest

import meshdsl as md
from meshdsl.tensor import is_tensor
from tests.models import common

CONFIG = common.CONFIGS["llama"]
value_and_grad = md.value_and_grad(common.loss, has_aux=True)


def program(config, name):
    lowered = md.lower(value_and_grad, common.load(name))
    return lowered, (common.init(config), common.batch(config), jax.random.key(0))


@functools.cache
def on_one_device():
    lowered, args = program(CONFIG, "single")
    return lowered(*args)


@pytest.mark.parametrize("name", ["tensor", "sequence"])
def test_no_device_holds_unsplit_logits(name):
    config = dataclasses.replace(CONFIG, vocab=8 * 1009)
    lowered, args = program(config, name)
    (whole,) = [e for e in lowered.trace(*args).jaxpr.eqns if e.primitive.name == "shard_map"]
    sizes = set(common.sizes_in(whole.params["jaxpr"]))
    assert 1009 in sizes
    assert 8 * 1009 not in sizes


def test_a_model_computes_in_the_dtype_of_its_parameters_and_gathers_them_in_it():
    def in_bfloat16(model, batch, key):
        return common.loss(
            jax.tree.map(lambda t: md.cast(t, "bfloat16"), model, is_leaf=is_tensor), batch, key
        )

    _, args = program(CONFIG, "fsdp")
    lowered = md.lower(md.value_and_grad(in_bfloat16, has_aux=True), common.load("fsdp"))
    traced, recorded = lowered.trace_program(*args)
    (loss, _), grads = traced.lower().compile()(*args)
    (expected, _), _ = on_one_device()
    np.testing.assert_allclose(loss.array, expected.array, rtol=1e-2)
    assert {
        g.dtype for g in jax.tree.leaves(grads, is_leaf=lambda g: isinstance(g, md.Tensor))
    } == {np.dtype("float32")}
    gathered = [c for c in recorded.collectives if c.operation == "all_gather" and c.bytes > 1000]
    assert gathered and {c.dtype for c in gathered} == {"bfloat16"}


@pytest.mark.parametrize(
    "remat, layout, gathers_again",
    [("none", "fsdp", False), ("hidden", "fsdp-sequence", True)],
)
def test_what_is_recomputed_changes_collectives_and_no_gradient(remat, layout, gathers_again):
    lowered, args = program(dataclasses.replace(CONFIG, remat=remat), layout)
    traced, recorded = lowered.trace_program(*args)
    (_, grads), (_, expected) = traced.lower().compile()(*args), on_one_device()
    for got, want in zip(jax.tree.leaves(grads), jax.tree.leaves(expected), strict=True):
        assert np.linalg.norm(np.asarray(got) - np.asarray(want)) <= 1e-5 * np.linalg.norm(want)
    again = [
        c for c in recorded.collectives if c.phase == "recompute" and c.operation == "all_gather"
    ]
    assert bool(again) == gathers_again


def test_what_a_layer_is_given_waits_in_the_memory_of_the_host():
    def loss(model, batch, offload):
        return model.loss(batch["tokens"], batch["targets"], offload=offload)[0]

    lowered = [
        md.lower(md.value_and_grad(functools.partial(loss, offload=offload)), common.load("fsdp"))
        for offload in (("activations",), ())
    ]
    args = common.init(CONFIG), common.batch(CONFIG)
    assert [
        "Host" in str(each.trace(*args).jaxpr) or "pinned_host" in str(each.trace(*args).jaxpr)
        for each in lowered
    ] == [True, False]
    with pytest.raises(
        md.MeshDSLError, match="offload of activations: needs layers that are recomputed"
    ):
        model = common.init(dataclasses.replace(CONFIG, remat="none"))
        model.loss(**args[1], offload=("activations",))


def test_logits_are_rounded_to_the_dtype_that_is_asked_for_and_the_loss_is_not():
    model, batch = common.init(CONFIG), common.batch(CONFIG)
    chunked = model.replace(config=dataclasses.replace(CONFIG, loss_chunk=50))
    nats, by_chunks, exact = (
        np.asarray(jax.jit(lambda model, to=to: model.nats(**batch, output=to).array)(model))
        for model, to in ((model, "bfloat16"), (chunked, "bfloat16"), (model, "float32"))
    )
    logits = jax.jit(
        lambda model: md.transpose(model(batch["tokens"]), ("batch", "length", "vocab")).array
    )(model)
    logits = np.asarray(logits.astype("bfloat16").astype("float32"))
    chosen = np.take_along_axis(logits, np.asarray(batch["targets"].array)[..., None], -1)[..., 0]
    np.testing.assert_allclose(
        nats, np.asarray(jax.nn.logsumexp(logits, -1)) - chosen, rtol=1e-6, atol=1e-6
    )
    np.testing.assert_allclose(nats, by_chunks, rtol=1e-5, atol=1e-6)
    assert not np.array_equal(nats, exact)


def test_tokens_longer_than_the_model_are_an_error():
    length = md.Dim("length", 17)
    tokens = md.tensor(np.zeros((8, 17), np.int32), (common.BATCH, length))
    with pytest.raises(
        md.MeshDSLError, match="tokens of length=17 are longer than the model's length=16"
    ):
        common.init(CONFIG)(tokens)
