"""Models of other libraries, written as their own documentation does, or taken as they are.

Each imports its library when it is asked for, and skips the test where that is missing.
"""

from typing import Any

import jax
import jax.numpy as jnp
import optax
import pytest
from flax import nnx

from tests.from_jax.plain import LENGTH, VOCAB, WIDTH, cross_entropy, tokens_and_targets

TEXT = {"tokens|targets": "batch length"}


def equinox():
    """A transformer of equinox: modules of one row, mapped over the batch by `vmap`."""
    eqx: Any = pytest.importorskip("equinox")

    class Block(eqx.Module):
        attention: Any
        first: Any
        second: Any
        mlp: Any

        def __init__(self, key):
            one, two = jax.random.split(key)
            self.attention = eqx.nn.MultiheadAttention(4, WIDTH, key=one)
            self.first, self.second = eqx.nn.LayerNorm(WIDTH), eqx.nn.LayerNorm(WIDTH)
            self.mlp = eqx.nn.MLP(WIDTH, WIDTH, 4 * WIDTH, 1, jax.nn.gelu, key=two)

        def __call__(self, x):
            mask = jnp.tril(jnp.ones((x.shape[0], x.shape[0]), bool))
            h = jax.vmap(self.first)(x)
            x = x + self.attention(h, h, h, mask=mask)
            return x + jax.vmap(self.mlp)(jax.vmap(self.second)(x))

    class Model(eqx.Module):
        embed: Any
        blocks: list
        head: Any

        def __init__(self, key):
            one, two, three, four = jax.random.split(key, 4)
            self.embed = eqx.nn.Embedding(VOCAB, WIDTH, key=one)
            self.blocks = [Block(two), Block(three)]
            self.head = eqx.nn.Linear(WIDTH, VOCAB, key=four)

        def __call__(self, tokens):
            x = jax.vmap(self.embed)(tokens)
            for block in self.blocks:
                x = block(x)
            return jax.vmap(self.head)(x)

    params, static = eqx.partition(Model(jax.random.key(0)), eqx.is_inexact_array)

    def loss(params, tokens, targets):
        return cross_entropy(jax.vmap(eqx.combine(params, static))(tokens), targets)

    names = {
        **TEXT,
        "embed/weight": "vocab d_model",
        ".*query_proj/weight": "(heads head_dim) _",
        ".*mlp/layers/0/weight": "d_ff _",
    }
    return loss, names, (params, *tokens_and_targets())


def equinox_cnn():
    """The convolutional network of equinox' first example, on digits of 28 x 28 pixels."""
    eqx: Any = pytest.importorskip("equinox")

    class CNN(eqx.Module):
        layers: list

        def __init__(self, key):
            keys = jax.random.split(key, 4)
            self.layers = [
                eqx.nn.Conv2d(1, 3, kernel_size=4, key=keys[0]),
                eqx.nn.MaxPool2d(kernel_size=2),
                jax.nn.relu,
                jnp.ravel,
                eqx.nn.Linear(1728, 64, key=keys[1]),
                jax.nn.sigmoid,
                eqx.nn.Linear(64, 32, key=keys[2]),
                jax.nn.relu,
                eqx.nn.Linear(32, 10, key=keys[3]),
                jax.nn.log_softmax,
            ]

        def __call__(self, x):
            for layer in self.layers:
                x = layer(x)
            return x

    params, static = eqx.partition(CNN(jax.random.key(0)), eqx.is_array)

    def loss(params, images, labels):
        scores = jax.vmap(eqx.combine(params, static))(images)
        return -jnp.mean(jnp.take_along_axis(scores, jnp.expand_dims(labels, 1), axis=1))

    images = jax.random.normal(jax.random.key(1), (8, 1, 28, 28))
    names = {
        "images": "batch _ _ _",
        "labels": "batch",
        ".*layers/4/weight": "d_ff _",
        ".*layers/6/weight": "d_model _",
    }
    return loss, names, (params, images, jnp.arange(8))


def equinox_rnn():
    """The recurrent network of equinox' examples: a scan of a GRU cell."""
    eqx: Any = pytest.importorskip("equinox")

    class RNN(eqx.Module):
        cell: Any
        linear: Any
        bias: jax.Array

        def __init__(self, key):
            one, two = jax.random.split(key)
            self.cell = eqx.nn.GRUCell(2, WIDTH, key=one)
            self.linear = eqx.nn.Linear(WIDTH, 1, use_bias=False, key=two)
            self.bias = jnp.zeros(1)

        def __call__(self, x):
            def step(state, x):
                return self.cell(x, state), None

            out, _ = jax.lax.scan(step, jnp.zeros((WIDTH,)), x)
            return jax.nn.sigmoid(self.linear(out) + self.bias)

    params, static = eqx.partition(RNN(jax.random.key(0)), eqx.is_array)

    def loss(params, x, y):
        made = jax.vmap(eqx.combine(params, static))(x)[:, 0]
        return -jnp.mean(y * jnp.log(made) + (1 - y) * jnp.log(1 - made))

    x = jax.random.normal(jax.random.key(1), (8, 12, 2))
    names = {"x": "batch length _", "y": "batch", "cell/weight_hh": "_ d_model"}
    return loss, names, (params, x, jnp.arange(8) % 2.0)


def haiku():
    """A transformer of haiku, as its example has it."""
    hk: Any = pytest.importorskip("haiku")

    def forward(tokens):
        init = hk.initializers.VarianceScaling(1.0)
        x = hk.Embed(VOCAB, WIDTH, name="embed")(tokens)
        place = hk.get_parameter(
            "positions", [LENGTH, WIDTH], init=hk.initializers.TruncatedNormal()
        )
        x, mask = x + place, jnp.tril(jnp.ones((1, 1, LENGTH, LENGTH)))
        norm = lambda: hk.LayerNorm(axis=-1, create_scale=True, create_offset=True)
        for i in range(2):
            attention = hk.MultiHeadAttention(4, WIDTH // 4, w_init=init, model_size=WIDTH)
            h = norm()(x)
            x = x + attention(h, h, h, mask=mask)
            h = hk.Linear(4 * WIDTH, w_init=init, name=f"up_{i}")(norm()(x))
            x = x + hk.Linear(WIDTH, w_init=init)(jax.nn.gelu(h))
        return hk.Linear(VOCAB)(norm()(x))

    model = hk.without_apply_rng(hk.transform(forward))
    tokens, targets = tokens_and_targets()

    def loss(params, tokens, targets):
        return cross_entropy(model.apply(params, tokens), targets)

    names = {
        **TEXT,
        "embed/embeddings": "vocab d_model",
        ".*query/w": "_ (heads head_dim)",
        "up_./w": "_ d_ff",
    }
    return loss, names, (model.init(jax.random.key(0), tokens), tokens, targets)


def nano_moe():
    """The mixture of experts of nano-moe-jax, with its balancing loss."""
    nano_moe: Any = pytest.importorskip("nano_moe")

    config = nano_moe.NanoMoEConfig(
        VOCAB, n_layers=1, n_heads=4, d_model=WIDTH, d_ff=32, block_size=LENGTH
    )
    module = nano_moe.NanoMoE(config)
    tokens, targets = tokens_and_targets()

    def loss(params, tokens, targets):
        logits, balance = module.apply(params, tokens)
        found = optax.softmax_cross_entropy_with_integer_labels(logits, targets)
        return found.mean() + 0.01 * balance

    names = {
        **TEXT,
        "params/Embed_0/embedding": "vocab d_model",
        ".*MultiHeadAttention_0/Dense_0/kernel": "_ (qkv heads head_dim)",
        ".*expert_./Dense_0/kernel": "_ d_ff",
    }
    return loss, names, (module.init(jax.random.key(0), tokens), tokens, targets)


def mamba2():
    """The state space model of mamba2-jax: chunks, a scan between them, convolutions by channel."""
    mamba2_jax: Any = pytest.importorskip("mamba2_jax")

    tokens, targets = tokens_and_targets()
    config = mamba2_jax.Mamba2Config(
        vocab_size=VOCAB, hidden_size=WIDTH, state_size=4, head_dim=8, chunk_size=4,
        num_hidden_layers=1,
    )  # fmt: skip
    graph, state = nnx.split(mamba2_jax.Mamba2ForCausalLM(config, rngs=nnx.Rngs(0)))

    def loss(state, tokens, targets):
        made = nnx.merge(graph, state)(tokens)
        return cross_entropy(made["logits"], targets)

    return loss, {**TEXT, ".*embed.*/embedding.*": "vocab d_model"}, (state, tokens, targets)


LIBRARIES = {
    "equinox": equinox,
    "equinox-cnn": equinox_cnn,
    "equinox-rnn": equinox_rnn,
    "haiku": haiku,
    "nano-moe": nano_moe,
    "mamba2": mamba2,
}
