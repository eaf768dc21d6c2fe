"""Documents that share a sequence have the loss that each has alone.

So it is under every layout, with microbatches, and where the length is split.
"""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import meshdsl as md
from tests.helpers import only
from tests.models import common

CONFIGS = {
    style: dataclasses.replace(config, dropout=0.0) for style, config in common.CONFIGS.items()
}
# Where the documents of each row end, but for the last.
CUTS = ((8,), (1, 8), (16,), (3, 6, 10), (7,), (15,), (2, 4), (11, 12))
NAMES = ("sequence", "fsdp-tensor", "fsdp-once", "pipeline-tensor")
LAYOUTS = dict.fromkeys(NAMES) | {
    "context": md.Layout(
        ["batch -> data", "length, queries -> context"], mesh={"data": 2, "context": 4}
    ),
    "context of keys": md.Layout(
        ["batch -> data", "length, queries, memory -> context"], mesh={"data": 2, "context": 4}
    ),
}


def layout_of(name: str) -> md.Layout:
    return LAYOUTS[name] or common.on(common.load(name), 8)


@functools.cache
def packed(style: str, **outer: int) -> dict[str, md.Tensor]:
    """A batch of rows with several documents each; the last token of a document has no target."""
    batch = common.batch(CONFIGS[style], **outer)
    length = CONFIGS[style].length
    rows = [np.searchsorted(cuts, np.arange(length), side="right") for cuts in CUTS]
    places = [
        np.arange(length) - np.array([0, *cuts])[row] for row, cuts in zip(rows, CUTS, strict=True)
    ]
    ends = np.array([[i + 1 in cuts or i + 1 == length for i in range(length)] for cuts in CUTS])
    dims = batch["tokens"].dims

    def shaped(rows):
        return md.tensor(
            jnp.asarray(np.broadcast_to(np.asarray(rows, np.int32), [d.size for d in dims])), dims
        )

    targets = md.where(shaped(ends) == 1, -1, batch["targets"])
    return {
        "tokens": batch["tokens"],
        "targets": targets,
        "segments": shaped(rows),
        "positions": shaped(places),
    }


def loss(model, batch):
    return model.loss(**batch)


gradients = md.value_and_grad(loss, has_aux=True)


@functools.cache
def on_one_device(style):
    model = common.init(CONFIGS[style])
    return model, jax.jit(gradients)(model, packed(style))


def assert_like_one_device(style, result):
    (value, aux), grads = result
    _, ((expected, expected_aux), expected_grads) = on_one_device(style)
    for name in expected_aux:
        np.testing.assert_allclose(aux[name].array, expected_aux[name].array, rtol=1e-5)
    np.testing.assert_allclose(value.array, expected.array, rtol=1e-5)
    common.assert_same_gradients(grads, expected_grads)


@pytest.mark.slow
@pytest.mark.parametrize("style", CONFIGS)
def test_a_document_has_the_loss_that_it_has_alone(style):
    model, batch = on_one_device(style)[0], packed(style)
    nats = jax.jit(lambda batch: model.nats(**batch).array)
    together, half = np.asarray(nats(batch))[0], md.Dim("length", CONFIGS[style].length // 2)
    alone = {
        name: md.tensor(batch[name].array[0].reshape(2, -1), (md.Dim("batch", 2), half))
        for name in ("tokens", "targets")
    }
    np.testing.assert_allclose(together, np.asarray(nats(alone)).ravel(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("style", only(["llama"], CONFIGS))
def test_the_loss_is_the_sum_over_all_tokens_and_the_report_says_how_many_counted(style):
    model, ((value, aux), _) = on_one_device(style)
    batch = packed(style)
    counted = np.asarray(batch["targets"].array) >= 0
    nats = np.asarray(jax.jit(lambda batch: model.nats(**batch).array)(batch))
    assert not nats[~counted].any()
    np.testing.assert_allclose(aux["trained"].array, counted.mean(), rtol=1e-6)
    np.testing.assert_allclose(aux["cross_entropy"].array, nats.sum() / nats.size, rtol=1e-6)
    assert CONFIGS[style].z_loss or value.array == aux["cross_entropy"].array


QUICK = [("llama", "sequence"), ("gpt2", "context")]


@pytest.mark.parametrize(
    "style, name",
    only(QUICK, [("llama", name) for name in LAYOUTS if name != "context"] + [("gpt2", "context")]),
)
def test_every_layout_keeps_documents_apart(style, name):
    layout = layout_of(name)
    assert_like_one_device(
        style,
        md.lower(gradients, layout, dims=["d_ff", "vocab"])(on_one_device(style)[0], packed(style)),
    )


@pytest.mark.parametrize(
    "style, name",
    only(
        [("llama", "sequence")],
        [("llama", "sequence"), ("llama", "pipeline-tensor"), ("gpt2", "fsdp-tensor")],
    ),
)
def test_the_loss_of_chunks_is_that_of_all_tokens(style, name):
    """With a z-loss, rotary and learned positions, an output layer of its own and a shared one."""
    model, batch = on_one_device(style)[0], packed(style)
    chunked = model.replace(config=dataclasses.replace(model.config, loss_chunk=5))
    lowered = md.lower(gradients, layout_of(name), dims=["d_ff", "vocab"])
    assert_like_one_device(style, lowered(chunked, batch))


@pytest.mark.parametrize(
    "style, name",
    [("llama", "fsdp"), pytest.param("gpt2", "sequence", marks=pytest.mark.slow)],
)
def test_microbatches_of_rows_with_more_and_with_fewer_targets_come_to_the_same(style, name):
    """Four microbatches of two rows, with 1 to 15 targets a row, against all rows at once."""
    batch, micro, rows = packed(style), md.Dim("micro", 4), md.Dim("batch", 2)
    cut = {
        key: md.tensor(t.array.reshape(4, 2, -1), (micro, rows, t.dims[1]))
        for key, t in batch.items()
    }
    accumulated = md.value_and_grad(loss, has_aux=True, accumulate=micro)
    layout = common.on(common.load(name), 2)
    assert_like_one_device(style, md.lower(accumulated, layout)(on_one_device(style)[0], cut))


def test_segments_are_gathered_as_keys_are_and_once_for_all_layers():
    layout = layout_of("context")
    program = md.lower(loss, layout).program(on_one_device("llama")[0], packed("llama"))
    length, rows = CONFIGS["llama"].length, common.BATCH.size // 2
    gathers = [
        (program.op_of(c).name, c.count, c.bytes)
        for c in program.collectives
        if c.operation == "all_gather"
    ]
    keys = rows * length * CONFIGS["llama"].kv_heads * CONFIGS["llama"].head_dim * 4
    assert sorted(gathers) == [
        ("rename", 1, rows * length * 4),
        ("rename", CONFIGS["llama"].layers, keys),
        ("rename", CONFIGS["llama"].layers, keys),
    ]
