"""Every layer equals itself on one device under four layouts, gradients included."""

import inspect

import jax
import pytest

import meshdsl as md
from meshdsl import layers
from tests.helpers import data, dims, integers, made, only
from tests.layers.common import (
    BATCH,
    D_FF,
    D_MODEL,
    D_SOURCE,
    GROUP,
    HEAD_DIM,
    HEADS,
    LAYOUTS,
    LENGTH,
    OTHER,
    SOURCE,
    VOCAB,
    X,
    assert_tree_same,
)

HEIGHT, WIDTH, HIDDEN = dims(height=8, width=4, hidden=4)
IMAGE = data(BATCH, HEIGHT, WIDTH, D_MODEL, seed=2)
SMALL = data(BATCH, *dims(height=4, width=2), D_MODEL, seed=3)
TOKENS = integers(BATCH, LENGTH, below=VOCAB.size)
SEGMENTS = integers(BATCH, LENGTH, below=2)
SEEN = data(BATCH, SOURCE, seed=4) > -0.5
KERNEL = {"height": 3, "width": 3}
KEY = jax.random.key(0)


def attention(group=None, **how):
    return made(layers.Attention.init, KEY, D_MODEL, HEADS, HEAD_DIM, group, **how)


def decoder(layer, x):
    return layer(x, causal=True, rotary=layers.angles(md.iota(LENGTH), HEAD_DIM))


def documents(layer, x, segments):
    both = layers.Documents.of(segments)
    return layer(x, documents=both), layer(x, documents=both, causal=True)


def generated(layer, x):
    """What attention gives position by position; position 2 is the first without a prefill."""
    rotary = layers.angles(md.iota(LENGTH), HEAD_DIM)
    begun, cache = layer.prefill(x, rotary=rotary)
    position = md.broadcast(md.tensor(2, ()), (BATCH,))
    turn = layers.angles(position, HEAD_DIM)
    step, cache = layer.step(md.take(x, position, LENGTH), cache, position, turn)
    return begun, step, cache


# For each case a layer, what is done with it, and tensors for that.
CASES = {
    "of vectors": {
        "linear": (made(layers.Linear.init, KEY, D_MODEL, (HEADS, HEAD_DIM), bias=True), X),
        "linear, several": (made(layers.Linear.init, KEY, (LENGTH, D_MODEL), D_FF), X),
        "rms": (made(layers.RMSNorm.init, D_MODEL), X),
        "rms, several": (made(layers.RMSNorm.init, (LENGTH, D_MODEL)), X),
        "layer norm": (made(layers.LayerNorm.init, D_MODEL), X),
        "mlp": (made(layers.MLP.init, KEY, D_MODEL, D_FF, bias=True, activation=md.relu), X),
        "swiglu": (made(layers.SwiGLU.init, KEY, D_MODEL, D_FF), X),
        "dropout": (layers.Dropout(0.5), lambda layer, x: layer(x, KEY), X),
        "embedding": (made(layers.Embedding.init, KEY, VOCAB, D_MODEL), TOKENS),
        "logits": (
            made(layers.Embedding.init, KEY, VOCAB, D_MODEL),
            layers.Embedding.logits,
            X,
        ),
        "cross-entropy": (
            made(layers.Linear.init, KEY, D_MODEL, VOCAB),
            lambda layer, x, answers: layers.cross_entropy(layer(x), answers, VOCAB),
            X,
            TOKENS,
        ),
        "rotary": (
            made(layers.Linear.init, KEY, D_MODEL, (HEADS, HEAD_DIM)),
            lambda layer, x: layers.rotate(
                layer(x), layers.angles(md.iota(LENGTH), HEAD_DIM), HEAD_DIM
            ),
            X,
        ),
    },
    "attention": {
        "encoder": (attention(), X),
        "padded": (
            attention(GROUP),
            lambda layer, x, seen: layer(x, mask=md.rename(seen, LENGTH, "memory")),
            X,
            SEGMENTS > 0,
        ),
        "decoder": (attention(GROUP), decoder, X),
        "documents": (attention(), documents, X, SEGMENTS),
        "cross": (
            attention(GROUP, d_source=D_SOURCE),
            lambda layer, x, other, seen: layer(x, other, memory=SOURCE, mask=seen),
            X,
            OTHER,
            SEEN,
        ),
        "generated": (attention(GROUP), generated, X),
    },
    "of images": {
        "conv": (made(layers.Conv.init, KEY, KERNEL, D_MODEL, HIDDEN, bias=True, stride=2), IMAGE),
        "conv transpose": (
            made(layers.ConvTranspose.init, KEY, KERNEL, D_MODEL, HIDDEN, stride=2),
            SMALL,
            IMAGE,
        ),
        "group norm": (made(layers.GroupNorm.init, D_MODEL, 2, over=("height", "width")), IMAGE),
        "group norm of a pixel": (made(layers.GroupNorm.init, D_MODEL, 4), IMAGE),
    },
    "stack": {
        "of layers": (
            made(
                layers.Stack.init,
                KEY,
                lambda key: layers.MLP.init(key, D_MODEL, D_FF),
                md.Dim("layers", 3),
            ),
            X,
        ),
        "that attend to another tensor": (
            made(
                layers.Stack.init,
                KEY,
                lambda key: layers.Attention.init(key, D_MODEL, HEADS, HEAD_DIM, d_source=D_SOURCE),
                md.Dim("layers", 2),
            ),
            lambda layer, x, other: layer(x, other, memory="source"),
            X,
            OTHER,
        ),
    },
}


def parts(case):
    """The layer, what is done with it, and the tensors for that."""
    layer, *rest = case
    given = inspect.isfunction(rest[0])
    return layer, rest[0] if given else type(layer).__call__, rest[1:] if given else rest


# fsdp splits by the batch too, and a whole model has this attention under fsdp in models/.
# What it does under context, tests/ops/test_attention.py and the golden files hold.
QUICK = [("of vectors", "tensor"), ("attention", "tensor"), ("of images", "context")]
QUICK += [("stack", "fsdp")]
PAIRS = [*QUICK, ("of vectors", "fsdp"), ("of vectors", "context"), ("attention", "fsdp")]
PAIRS += [("of images", "tensor"), ("of images", "fsdp"), ("stack", "context")]


@pytest.mark.parametrize("group, name", only(QUICK, PAIRS))
def test_layers_are_the_same_under_every_layout(group, name):
    """All layers of a group in one program: that is compiled once."""
    cases = {key: parts(case) for key, case in CASES[group].items()}
    tree = {key: (layer, args) for key, (layer, _, args) in cases.items()}
    together = lambda tree: {
        key: cases[key][1](layer, *args) for key, (layer, args) in tree.items()
    }
    assert_tree_same(together, tree, layout=LAYOUTS[name])
