"""Layers are their formulas, in plain JAX; what is wrong with their arguments is said in names."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import meshdsl as md
from meshdsl import layers
from tests.helpers import data, dims, distance, integers
from tests.layers.common import (
    BATCH,
    D_FF,
    D_MODEL,
    HEAD_DIM,
    HEADS,
    LENGTH,
    VOCAB,
    X,
)

KEY = jax.random.key(1)
HEIGHT, WIDTH, HIDDEN, COPIES = dims(height=7, width=6, hidden=4, layers=3)
IMAGE = data(BATCH, HEIGHT, WIDTH, D_MODEL, seed=2)


def filled(layer):
    """The layer with random numbers in every parameter, biases and scales too."""
    leaves, tree = jax.tree.flatten(layer)
    keys = jax.random.split(jax.random.key(7), len(leaves))
    drawn = [jax.random.normal(k, a.shape) for k, a in zip(keys, leaves, strict=True)]
    return jax.tree.unflatten(tree, drawn)


def test_linear():
    layer = filled(layers.Linear.init(KEY, (LENGTH, D_MODEL), (HEADS, HEAD_DIM), bias=True))
    found = layer(X)
    expected = jnp.einsum("bld,ldhe->bhe", X.array, layer.weight.array) + layer.bias.array
    assert found.dims == (BATCH, HEADS, HEAD_DIM) and distance(found.array, expected) < 1e-5


def test_weights_begin_as_those_of_jax():
    """What runs began with stays what they began with."""
    weight = layers.Linear.init(KEY, (D_MODEL,), (HEADS, HEAD_DIM)).weight
    expected = jax.random.normal(KEY, (8, 4, 4)) * 8**-0.5
    assert np.array_equal(weight.array, expected) and weight.role.ins == ("d_model",)
    table = layers.Embedding.init(KEY, VOCAB, D_MODEL).table
    assert np.array_equal(table.array, jax.random.normal(KEY, (16, 8)) * 0.02)
    kernel = layers.Conv.init(KEY, {"height": 3, "width": 3}, D_MODEL, HIDDEN).weight
    expected = jax.random.normal(KEY, (3, 3, 8, 4)) * (9**-0.5 * 8**-0.5)
    assert np.array_equal(kernel.array, expected)
    assert kernel.role.ins == ("kernel_height", "kernel_width", "d_model")


def test_a_norm_over_several_dims():
    for init, axes in ((layers.RMSNorm.init, None), (layers.LayerNorm.init, (1, 2))):
        layer = filled(init((LENGTH, D_MODEL), epsilon=0.1))
        centred = X.array - (X.array.mean(axes, keepdims=True) if axes else 0)
        power = jnp.square(centred).mean((1, 2), keepdims=True)
        expected = centred / jnp.sqrt(power + 0.1) * layer.scale.array
        expected = expected + (layer.bias.array if axes else 0)
        assert distance(layer(X).array, expected) < 1e-5


@pytest.mark.parametrize("over", ["height", ("height", "width"), ()], ids=str)
def test_group_norm(over):
    layer = filled(layers.GroupNorm.init(D_MODEL, 2, over=over, epsilon=0.1))
    x = np.asarray(IMAGE).reshape(4, 7, 6, 2, 4)
    axes = {"height": (1, 4), ("height", "width"): (1, 2, 4), (): (4,)}[over]
    normed = (x - x.mean(axes, keepdims=True)) / np.sqrt(x.var(axes, keepdims=True) + 0.1)
    expected = normed.reshape(IMAGE.shape) * layer.scale.array + layer.bias.array
    assert layer(IMAGE).dims == IMAGE.dims and distance(layer(IMAGE).array, expected) < 1e-5


def test_feed_forward_layers():
    for activation, formula in ((md.gelu, jax.nn.gelu), (md.relu, jax.nn.relu)):
        layer = layers.MLP.init(KEY, D_MODEL, D_FF, bias=True, activation=activation)
        layer = filled(layer)
        hidden = formula(X.array @ layer.up.weight.array + layer.up.bias.array)
        expected = hidden @ layer.down.weight.array + layer.down.bias.array
        assert distance(layer(X).array, expected) < 1e-5
    layer = layers.SwiGLU.init(KEY, D_MODEL, D_FF)
    hidden = jax.nn.silu(X.array @ layer.gate.weight.array) * (X.array @ layer.up.weight.array)
    assert distance(layer(X).array, hidden @ layer.down.weight.array) < 1e-5


def test_embedding():
    layer = layers.Embedding.init(KEY, VOCAB, D_MODEL)
    tokens = integers(BATCH, LENGTH, below=16)
    found = layer(tokens)
    assert found.dims == (BATCH, LENGTH, D_MODEL)
    assert np.array_equal(found.array, layer.table.array[tokens.array])
    logits = layer.logits(X)
    assert logits.dims == (BATCH, LENGTH, VOCAB)
    assert distance(logits.array, X.array @ layer.table.array.T) < 1e-5


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_cross_entropy(dtype):
    answers = integers(BATCH, LENGTH, below=10, seed=3) - 1
    logits = md.cast(X, dtype)
    found = layers.cross_entropy(logits, answers, D_MODEL)
    assert found.dims == (BATCH, LENGTH) and found.dtype == jnp.float32
    numbers, chosen = np.asarray(logits.array, np.float64), np.asarray(answers)
    known = (chosen >= 0) & (chosen < D_MODEL.size)
    at = np.take_along_axis(numbers, np.clip(chosen, 0, 7)[..., None], -1)[..., 0]
    expected = np.where(known, np.log(np.exp(numbers).sum(-1)) - at, 0)
    assert 0 < known.sum() < known.size
    np.testing.assert_allclose(found.array, expected, rtol=1e-5)
    assert np.array_equal(found.array, layers.cross_entropy(logits, answers, "d_model").array)


@pytest.mark.parametrize("stride", [1, 2])
def test_convolution_and_its_transpose(stride):
    layer = filled(
        layers.Conv.init(KEY, {"height": 3, "width": 2}, D_MODEL, HIDDEN, stride=stride, bias=True)
    )
    numbers = ("NHWC", "HWIO", "NHWC")
    expected = jax.lax.conv_general_dilated(
        IMAGE.array, layer.weight.array, (stride, stride), "SAME", dimension_numbers=numbers
    )
    found = layer(IMAGE)
    assert [d.name for d in found.dims] == ["batch", "height", "width", "hidden"]
    assert distance(found.array, expected + layer.bias.array) < 1e-5
    # The transpose is what the gradient of a convolution is.
    back = layers.ConvTranspose.init(KEY, {"height": 3, "width": 2}, HIDDEN, D_MODEL, stride=stride)
    kernel = jnp.swapaxes(back.weight.array, 2, 3)
    forward = lambda image: jax.lax.conv_general_dilated(
        image, kernel, (stride, stride), "SAME", dimension_numbers=numbers
    )
    (expected,) = jax.vjp(forward, IMAGE.array)[1](found.array)
    again = back(found, like=IMAGE)
    assert again.dims == IMAGE.dims and distance(again.array, expected) < 1e-5


def test_rotary_scores_depend_on_the_distance_alone():
    (head,) = dims(head_dim=8)
    vectors = data(md.Dim("which", 2), head, seed=4)
    turned = layers.rotate(
        md.broadcast(vectors, (LENGTH, *vectors.dims)), layers.angles(md.iota(LENGTH), head), head
    )
    query, key = turned.array[:, 0], turned.array[:, 1]
    scores = np.asarray(query @ key.T)
    for far in range(LENGTH.size):
        np.testing.assert_allclose(np.diag(scores, far), scores[0, far], atol=1e-5)
    np.testing.assert_allclose(np.linalg.norm(query, axis=1), np.linalg.norm(query[0]), rtol=1e-5)


def test_dropout():
    layer = layers.Dropout(0.25)
    assert layer(X, None) is X
    found = np.asarray(layer(X, KEY))
    assert 0.1 < (found == 0).mean() < 0.4
    np.testing.assert_allclose(found[found != 0], np.asarray(X)[found != 0] / 0.75, rtol=1e-6)
    assert not np.array_equal(found, layer(X, jax.random.fold_in(KEY, 1)).array)


class Dropped(layers.MLP):
    """A feed-forward layer that adds itself, with dropout."""

    def __call__(self, x, shift=None, key=None):
        y = x + layers.Dropout(0.5)(super().__call__(x), key)
        return y if shift is None else y + shift


@pytest.mark.parametrize("remat", ["none", "full"])
def test_a_stack_is_its_layers_one_after_another(remat):
    init = lambda key: Dropped.init(key, D_MODEL, D_FF)
    stack = layers.Stack.init(KEY, init, COPIES, remat=remat)
    alone = [init(key) for key in jax.random.split(KEY, COPIES.size)]
    assert stack.layer.up.weight.dims == (COPIES, D_MODEL, D_FF)
    assert stack.layer.up.weight.role == alone[0].up.weight.role
    keys = jax.random.split(jax.random.key(9), COPIES.size)
    x = y = z = X
    for layer, key in zip(alone, keys, strict=True):
        x, y, z = layer(x), layer(y, md.ones(D_MODEL)), layer(z, key=key)
    assert distance(stack(X).array, x.array) < 1e-5
    assert distance(stack(X, md.ones(D_MODEL)).array, y.array) < 1e-5
    assert distance(stack(X, key=jax.random.key(9)).array, z.array) < 1e-5
    states, between = stack.scan(lambda layer, x, _: (layer(x), x), X)
    assert distance(states.array, x.array) < 1e-5 and between.dims == (COPIES, *X.dims)


WRONG = {
    "a map of a dim into itself": (
        lambda: layers.Linear.init(KEY, D_MODEL, (HEADS, D_MODEL)),
        ["Linear: `d_model` is in `ins`", 'md.Dim("d_model_out", 8)', "md.rename"],
    ),
    "a convolution of channels into themselves": (
        lambda: layers.Conv.init(KEY, {"height": 3}, D_MODEL, D_MODEL),
        ["Conv: `d_model` is in `ins` [d_model=8] and in `outs`"],
    ),
    "a name for a dim": (
        lambda: layers.Linear.init(KEY, "d_model", D_FF),
        ["normal", "Dim('batch', 8), not 'd_model'"],
    ),
    "a norm of another dim": (
        lambda: layers.LayerNorm.init(D_FF)(X),
        ["mean", "no dim `d_ff` in [batch=4, length=8, d_model=8]"],
    ),
    "groups that do not divide": (
        lambda: layers.GroupNorm.init(D_MODEL, 3),
        ["GroupNorm: d_model=8 does not divide into 3 groups"],
    ),
    "group norm of another dim": (
        lambda: layers.GroupNorm.init(D_FF, 2)(X),
        ["no dim `d_ff`", "[batch=4, length=8, d_model=8]"],
    ),
    "group norm over a dim that is missing": (
        lambda: layers.GroupNorm.init(D_MODEL, 2, over="height")(X),
        ["no dim `height`"],
    ),
    "an embedding of fractions": (
        lambda: layers.Embedding.init(KEY, VOCAB, D_MODEL)(X),
        ["take", "[batch=4, length=8, d_model=8] are float32, not whole numbers"],
    ),
    "angles of an odd dim": (
        lambda: layers.angles(md.iota(LENGTH), md.Dim("head_dim", 3)),
        ["rotary positions turn pairs", "head_dim=3 is an odd number"],
    ),
    "the cross-entropy of other classes": (
        lambda: layers.cross_entropy(X, integers(BATCH, below=4), VOCAB),
        ["no dim `vocab` in [batch=4, length=8, d_model=8]"],
    ),
    "the cross-entropy of fractions": (
        lambda: layers.cross_entropy(X, md.mean(X, D_MODEL), D_MODEL),
        ["one_hot", "[batch=4, length=8] are float32, not whole numbers"],
    ),
    "offload of nothing": (
        lambda: layers.Stack.init(
            KEY, lambda key: layers.MLP.init(key, D_MODEL, D_FF), COPIES, remat="none"
        ).scan(lambda layer, x, _: (layer(x), ()), X, offload=["activations"]),
        ["offload of activations: needs layers that are recomputed"],
    ),
    "another policy": (
        lambda: layers.Stack.init(
            KEY, lambda key: layers.MLP.init(key, D_MODEL, D_FF), COPIES, remat="al"
        )(X),
        ["checkpoint", "no policy 'al'"],
    ),
    "a stack that changes its dims": (
        lambda: layers.Stack.init(KEY, lambda key: layers.Linear.init(key, D_MODEL, D_FF), COPIES)(
            X
        ),
        ["scan", "[batch=4, length=8, d_ff=16]"],
    ),
}


@pytest.mark.parametrize("wrong, said", WRONG.values(), ids=WRONG)
def test_what_is_wrong_is_said_in_names(wrong, said):
    with pytest.raises(md.MeshDSLError) as error:
        wrong()
    assert not [part for part in said if part not in str(error.value)], str(error.value)
