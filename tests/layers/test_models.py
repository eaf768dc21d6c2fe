"""A model of another kind, written of layers alone, learns the same under every layout.

A pair of contrastive towers. Nothing in it names an axis or makes a raw Tensor. Models with images,
with a decoder and a source, and with convolutions are among those that are shipped.
"""

from __future__ import annotations

import functools

import jax
import numpy as np
import pytest
from flax.struct import PyTreeNode

import meshdsl as md
from meshdsl import layers
from tests.helpers import data, dims, integers, layout

BATCH, D_MODEL, HEADS, HEAD_DIM, D_FF = dims(batch=8, d_model=16, heads=4, head_dim=4, d_ff=32)
VOCAB, LENGTH, LAYERS = dims(vocab=16, length=8, layers=2)
LAYOUTS = {
    "data": layout("batch -> p", mesh={"p": 8}),
    "fsdp": layout("batch -> p", mesh={"p": 4}, parameters=["d_model, d_ff -> p"]),
    "tensor": layout("batch -> d", "heads, d_ff, vocab -> m", mesh={"d": 2, "m": 4}),
    "sequence": layout(
        "batch -> d",
        "heads, d_ff -> m",
        "length -> m",
        mesh={"d": 2, "m": 2},
        parameters=["d_model -> d"],
    ),
}


class Encoder(PyTreeNode):
    """A block of an encoder: attention and a feed-forward layer."""

    attention_norm: layers.LayerNorm
    attention: layers.Attention
    mlp_norm: layers.LayerNorm
    mlp: layers.MLP

    @classmethod
    def init(cls, key):
        attention, mlp = jax.random.split(key)
        return cls(
            attention_norm=layers.LayerNorm.init(D_MODEL),
            attention=layers.Attention.init(attention, D_MODEL, HEADS, HEAD_DIM),
            mlp_norm=layers.LayerNorm.init(D_MODEL),
            mlp=layers.MLP.init(mlp, D_MODEL, D_FF),
        )

    def __call__(self, x, length):
        x = x + self.attention(self.attention_norm(x), length=length)
        return x + self.mlp(self.mlp_norm(x))


class Towers(PyTreeNode):
    """Images and texts that belong together come to lie close (CLIP, Radford et al., 2021)."""

    image: layers.MLP
    embedding: layers.Embedding
    text: layers.Stack
    warmth: md.Tensor

    @classmethod
    def init(cls, key):
        image, embedding, text = jax.random.split(key, 3)
        return cls(
            image=layers.MLP.init(image, D_MODEL, D_FF, activation=md.relu),
            embedding=layers.Embedding.init(embedding, VOCAB, D_MODEL, std=1.0),
            text=layers.Stack.init(text, Encoder.init, LAYERS, remat="none"),
            warmth=md.full((), 1.0),
        )

    def loss(self, batch):
        image = self.image(batch["features"])
        text = md.mean(self.text(self.embedding(batch["tokens"]), "length"), LENGTH)
        image, text = (x / md.norm(x, D_MODEL) for x in (image, text))
        others = md.Dim("others", BATCH.size)
        alike = md.einsum(image, md.rename(text, BATCH, others), out=(..., others))
        alike = alike * md.exp(self.warmth)
        texts = layers.cross_entropy(alike, md.iota(BATCH), others)
        images = layers.cross_entropy(alike, md.iota(others), BATCH)
        return (md.mean(texts) + md.mean(images)) / 2


BATCHED = {"features": data(BATCH, D_MODEL), "tokens": integers(BATCH, LENGTH, below=VOCAB.size)}


def losses(step, steps: int = 4) -> list[float]:
    """The losses of some steps of gradient descent, all on one batch."""
    model, found = jax.jit(Towers.init)(jax.random.key(0)), []
    for _ in range(steps):
        model, value = step(model, BATCHED)
        found.append(float(value))
    return found


def descend(model, batch):
    value, gradient = md.value_and_grad(lambda model, batch: model.loss(batch))(model, batch)
    return jax.tree.map(lambda p, g: p - 0.05 * g, model, gradient), value


@functools.cache
def on_one_device() -> list[float]:
    return losses(jax.jit(descend))


@pytest.mark.slow  # test_layers has each layer under every layout
@pytest.mark.parametrize("rules", LAYOUTS)
def test_a_model_learns_the_same_under_every_layout(rules):
    expected = on_one_device()
    assert expected[-1] < expected[0]
    np.testing.assert_allclose(losses(md.lower(descend, LAYOUTS[rules])), expected, rtol=2e-5)
