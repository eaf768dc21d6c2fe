"""What the transformer promises beyond parity."""

import dataclasses

import jax
import numpy as np
import pytest

import meshdsl as md
from tests.models import common

CONFIG = common.CONFIGS["llama"]


@pytest.mark.parametrize("name", ["tensor", "sequence"])
def test_no_device_holds_unsplit_logits(name):
    config = dataclasses.replace(CONFIG, vocab=8 * 1009)
    lowered = md.lower(md.value_and_grad(common.loss, has_aux=True), common.load(name))
    args = common.init(config), common.batch(config), jax.random.key(0)
    (whole,) = [e for e in lowered.trace(*args).jaxpr.eqns if e.primitive.name == "shard_map"]
    sizes = set(common.sizes_in(whole.params["jaxpr"]))
    assert 1009 in sizes
    assert 8 * 1009 not in sizes


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
