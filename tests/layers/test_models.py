"""Models of other kinds, written of layers alone, learn the same under every layout.

A vision transformer, an encoder-decoder and a pair of contrastive towers. Nothing in them names an
axis, makes a raw Tensor or spells out a contraction.
"""

from __future__ import annotations

import functools

import jax
import numpy as np
import pytest
from flax.struct import PyTreeNode

import meshdsl as md
from meshdsl import layers
from tests.helpers import data, dims, integers, layout, only

BATCH, D_MODEL, HEADS, HEAD_DIM, D_FF = dims(batch=8, d_model=16, heads=4, head_dim=4, d_ff=32)
HEIGHT, WIDTH, COLORS, PATCHES = dims(height=8, width=8, colors=3, patches=4)
VOCAB, LENGTH, SOURCE, LAYERS = dims(vocab=16, length=8, source=6, layers=2)
LAYOUTS = {
    "data": layout("batch -> p", mesh={"p": 8}),
    "fsdp": layout("batch -> p", mesh={"p": 4}, parameters=["d_model, d_ff? -> p"]),
    "tensor": layout("batch -> d", "heads, d_ff, vocab? -> m", mesh={"d": 2, "m": 4}),
    "sequence": layout(
        "batch -> d",
        "heads, d_ff -> m",
        "length?, source?, patches? -> m",
        mesh={"d": 2, "m": 2},
        parameters=["d_model -> d"],
    ),
}


class Encoder(PyTreeNode):
    """A block of an encoder: attention to all that the mask shows, and a feed-forward layer."""

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

    def __call__(self, x, length, mask=None):
        x = x + self.attention(self.attention_norm(x), length=length, mask=mask)
        return x + self.mlp(self.mlp_norm(x))


class Decoder(PyTreeNode):
    """A block of a decoder: attention to what was written, then to the source."""

    written: layers.Attention
    source_norm: layers.RMSNorm
    source: layers.Attention
    mlp_norm: layers.RMSNorm
    mlp: layers.SwiGLU

    @classmethod
    def init(cls, key):
        written, source, mlp = jax.random.split(key, 3)
        return cls(
            written=layers.Attention.init(written, D_MODEL, HEADS, HEAD_DIM),
            source_norm=layers.RMSNorm.init(D_MODEL),
            source=layers.Attention.init(source, D_MODEL, HEADS, HEAD_DIM),
            mlp_norm=layers.RMSNorm.init(D_MODEL),
            mlp=layers.SwiGLU.init(mlp, D_MODEL, D_FF),
        )

    def __call__(self, x, encoded, rotary, mask, key):
        x = x + layers.Dropout(0.1)(self.written(x, causal=True, rotary=rotary), key)
        x = x + self.source(self.source_norm(x), encoded, memory="source", mask=mask)
        return x + self.mlp(self.mlp_norm(x))


class ViT(PyTreeNode):
    """A vision transformer (Dosovitskiy et al., 2021)."""

    patches: layers.Conv
    positions: md.Tensor
    blocks: layers.Stack
    norm: layers.LayerNorm
    head: layers.Linear

    @classmethod
    def init(cls, key):
        patches, positions, blocks, head = jax.random.split(key, 4)
        kernel = {"height": 4, "width": 4}
        return cls(
            patches=layers.Conv.init(patches, kernel, COLORS, D_MODEL, stride=4, bias=True),
            positions=md.normal(positions, (PATCHES, D_MODEL), std=0.02),
            blocks=layers.Stack.init(blocks, Encoder.init, LAYERS),
            norm=layers.LayerNorm.init(D_MODEL),
            head=layers.Linear.init(head, D_MODEL, VOCAB),
        )

    def loss(self, batch):
        x = md.reshape(self.patches(batch["image"]), (BATCH, PATCHES, D_MODEL)) + self.positions
        x = md.mean(self.norm(self.blocks(x, "patches")), "patches")
        return md.mean(layers.cross_entropy(self.head(x), batch["label"], VOCAB))


class EncoderDecoder(PyTreeNode):
    """From a sequence to another one, as in Vaswani et al., 2017, with rotary positions."""

    embedding: layers.Embedding
    positions: layers.Embedding
    encoder: layers.Stack
    decoder: layers.Stack
    norm: layers.RMSNorm

    @classmethod
    def init(cls, key):
        embedding, positions, encoder, decoder = jax.random.split(key, 4)
        return cls(
            embedding=layers.Embedding.init(embedding, VOCAB, D_MODEL, std=0.3),
            positions=layers.Embedding.init(positions, md.Dim("positions", 16), D_MODEL),
            encoder=layers.Stack.init(encoder, Encoder.init, LAYERS),
            decoder=layers.Stack.init(decoder, Decoder.init, LAYERS),
            norm=layers.RMSNorm.init(D_MODEL),
        )

    def loss(self, batch):
        seen = batch["source"] > 2  # the rest is padding
        x = self.embedding(batch["source"]) + self.positions(md.iota(SOURCE))
        encoded = self.encoder(x, "source", md.rename(seen, "source", "memory"))
        rotary = layers.angles(md.iota(LENGTH), HEAD_DIM)
        y = self.embedding(batch["tokens"])
        y = self.decoder(y, encoded, rotary, seen, key=jax.random.key(4))
        logits = self.embedding.logits(self.norm(y))
        return md.mean(layers.cross_entropy(logits, batch["targets"], VOCAB))


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


TOKENS, TARGETS = (integers(BATCH, LENGTH, below=VOCAB.size, seed=seed) for seed in (1, 2))
MODELS = {
    "vit": (
        ViT,
        {
            "image": data(BATCH, HEIGHT, WIDTH, COLORS),
            "label": integers(BATCH, below=VOCAB.size),
        },
    ),
    "encoder-decoder": (
        EncoderDecoder,
        {
            "source": integers(BATCH, SOURCE, below=VOCAB.size),
            "tokens": TOKENS,
            "targets": TARGETS,
        },
    ),
    "towers": (Towers, {"features": data(BATCH, D_MODEL), "tokens": TOKENS}),
}


def losses(step, name: str, steps: int = 4) -> list[float]:
    """The losses of some steps of gradient descent, all on one batch."""
    family, batch = MODELS[name]
    model, found = jax.jit(family.init)(jax.random.key(0)), []
    for _ in range(steps):
        model, value = step(model, batch)
        found.append(float(value))
    return found


def descend(model, batch):
    value, gradient = md.value_and_grad(lambda model, batch: model.loss(batch))(model, batch)
    return jax.tree.map(lambda p, g: p - 0.05 * g, model, gradient), value


@functools.cache
def on_one_device(name: str) -> list[float]:
    return losses(jax.jit(descend), name)


QUICK = [("towers", "fsdp")]


@pytest.mark.parametrize(
    "name, rules", only(QUICK, [(name, rules) for name in MODELS for rules in LAYOUTS])
)
def test_a_model_learns_the_same_under_every_layout(name, rules):
    expected = on_one_device(name)
    assert expected[-1] < expected[0]
    found = losses(md.lower(descend, LAYOUTS[rules]), name)
    np.testing.assert_allclose(found, expected, rtol=2e-5)
