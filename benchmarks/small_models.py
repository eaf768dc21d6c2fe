"""Small models as users have them, with names, for what is measured over many kinds of code."""

import math
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from tests.from_jax.plain import LENGTH, VOCAB, WIDTH, cross_entropy, tokens_and_targets

HEADS = 4


def mlp():
    """Two layers in plain JAX."""
    one, two, three = jax.random.split(jax.random.key(0), 3)
    params = {
        "up": jax.random.normal(one, (WIDTH, 64)) / 4,
        "down": jax.random.normal(two, (64, 10)) / 8,
    }

    def loss(params, x, labels):
        return cross_entropy(jnp.tanh(x @ params["up"]) @ params["down"], labels)

    x = jax.random.normal(three, (8, WIDTH))
    return (
        loss,
        {"x": "batch d_model", "labels": "batch", "up": "_ d_ff"},
        (params, x, jnp.arange(8)),
    )


class CNN(nn.Module):
    """The network of flax' first example."""

    @nn.compact
    def __call__(self, x):
        for width in (8, 16):
            x = nn.avg_pool(nn.relu(nn.Conv(width, (3, 3))(x)), (2, 2), strides=(2, 2))
        x = x.reshape(x.shape[0], -1)
        return nn.Dense(10)(nn.relu(nn.Dense(64)(x)))


class ResNet(nn.Module):
    """Two residual blocks with batch norms, one of which has a stride."""

    @nn.compact
    def __call__(self, x):
        norm = lambda: nn.BatchNorm(use_running_average=False)
        for stride in (1, 2):
            y = nn.relu(norm()(nn.Conv(16, (3, 3), strides=stride, use_bias=False)(x)))
            y = norm()(nn.Conv(16, (3, 3), use_bias=False)(y))
            x = nn.Conv(16, (1, 1), strides=stride, use_bias=False)(x) if y.shape != x.shape else x
            x = nn.relu(x + y)
        return nn.Dense(10)(x.mean((1, 2)))


def of_images(model: nn.Module):
    """Classes of images, by a module of flax."""

    def made():
        images = jax.random.normal(jax.random.key(3), (8, 16, 16, 3))
        variables: Any = model.init(jax.random.key(0), images)
        rest = {k: v for k, v in variables.items() if k != "params"}

        def loss(params, images, labels):
            made = model.apply({"params": params, **rest}, images, mutable=list(rest))
            return cross_entropy(made[0], labels)

        names = {"images": "batch _ _ _", "labels": "batch"}
        return loss, names, (variables["params"], images, jnp.arange(8))

    return made


def t5():
    """An encoder and a decoder with relative biases, as T5 has them."""
    keys = iter(jax.random.split(jax.random.key(0), 40))
    normal = lambda *shape: jax.random.normal(next(keys), shape) * 0.2
    attention = lambda: {k: normal(WIDTH, WIDTH) for k in ("q", "k", "v", "o")}
    layer = lambda count: {
        "attend": [{"norm": jnp.ones(WIDTH), **attention()} for _ in range(count)],
        "norm": jnp.ones(WIDTH),
        "wi": normal(WIDTH, 4 * WIDTH),
        "wo": normal(4 * WIDTH, WIDTH),
    }
    params = {
        "shared": normal(VOCAB, WIDTH),
        "encoder": {"bias": normal(8, HEADS), "layers": [layer(1), layer(1)]},
        "decoder": {"bias": normal(8, HEADS), "layers": [layer(2), layer(2)]},
    }

    def rms(x, scale):
        return x * jax.lax.rsqrt(jnp.mean(jnp.square(x), -1, keepdims=True) + 1e-6) * scale

    def buckets(count, *, both):
        place = jnp.arange(count)[None] - jnp.arange(count)[:, None]
        start, number = 0, 8
        if both:
            number //= 2
            start = (place > 0) * number
            place = jnp.abs(place)
        else:
            place = -jnp.minimum(place, 0)
        exact = number // 2
        far = jnp.log(place / exact + 1e-6) / math.log(16 / exact) * (number - exact)
        large = jnp.minimum(exact + far.astype(jnp.int32), number - 1)
        return start + jnp.where(place < exact, place, large)

    def attend(x, memory, p, bias):
        heads = lambda a: a.reshape(*a.shape[:2], HEADS, -1)
        q, k, v = heads(x @ p["q"]), heads(memory @ p["k"]), heads(memory @ p["v"])
        scores = jnp.einsum("bqhd,bkhd->bhqk", q, k) + bias
        weights = jax.nn.softmax(scores.astype(jnp.float32), -1).astype(scores.dtype)
        return jnp.einsum("bhqk,bkhd->bqhd", weights, v).reshape(x.shape) @ p["o"]

    def stack(p, x, bias, memory=None):
        for layer in p["layers"]:
            for i, a in enumerate(layer["attend"]):
                h = rms(x, a["norm"])
                x = x + (attend(h, memory, a, 0.0) if i else attend(h, h, a, bias))
            x = x + jax.nn.relu(rms(x, layer["norm"]) @ layer["wi"]) @ layer["wo"]
        return x

    def loss(params, tokens, targets):
        of = lambda p, both: p["bias"][buckets(LENGTH, both=both)].transpose(2, 0, 1)[None]
        encoder, decoder = params["encoder"], params["decoder"]
        memory = stack(encoder, params["shared"][tokens], of(encoder, both=True))
        before = jnp.pad(targets[:, :-1], ((0, 0), (1, 0)))
        seen = jnp.tril(jnp.ones((LENGTH, LENGTH), bool))
        bias = of(decoder, both=False) + jnp.where(seen, 0, -1e9)
        x = stack(decoder, params["shared"][before], bias, memory)
        return cross_entropy(x @ params["shared"].T, targets)

    names = {
        "tokens|targets": "batch length",
        "shared": "vocab d_model",
        ".*q": "_ (heads head_dim)",
        ".*wi": "_ d_ff",
    }
    return loss, names, (params, *tokens_and_targets())


class LSTM(nn.Module):
    """A recurrent network of flax: a scan of a cell."""

    @nn.compact
    def __call__(self, tokens):
        x = nn.Embed(VOCAB, WIDTH, name="embed")(tokens)
        return nn.Dense(VOCAB)(nn.RNN(nn.OptimizedLSTMCell(WIDTH))(x))


def lstm():
    model = LSTM()
    tokens, targets = tokens_and_targets()
    loss = lambda params, tokens, targets: cross_entropy(model.apply(params, tokens), targets)
    names = {"tokens|targets": "batch length", "params/embed/embedding": "vocab d_model"}
    return loss, names, (model.init(jax.random.key(0), tokens), tokens, targets)


def gcn():
    """Two graph convolutions by sums over edges, divided by degrees."""
    one, two, three, four = jax.random.split(jax.random.key(0), 4)
    params = {
        "first": jax.random.normal(one, (8, WIDTH)),
        "second": jax.random.normal(two, (WIDTH, 4)),
    }
    x = jax.random.normal(three, (12, 8))
    edges = jax.random.randint(four, (2, 30), 0, 12)

    def loss(params, x, edges, labels):
        source, target = edges
        degree = jax.ops.segment_sum(jnp.ones(source.shape), target, len(x))
        scale = jax.lax.rsqrt(jnp.maximum(degree, 1))

        def convolved(x, w):
            x = (x @ w) * scale[:, None]
            return jax.ops.segment_sum(x[source], target, len(x)) * scale[:, None]

        return cross_entropy(
            convolved(jax.nn.relu(convolved(x, params["first"])), params["second"]), labels
        )

    names = {"x": "nodes _", "edges": "_ edges", "labels": "nodes", "first": "_ d_model"}
    return loss, names, (params, x, edges, jnp.arange(12) % 4)


def equinox_mlp():
    """An MLP of equinox, mapped over the batch."""
    import equinox as eqx

    params, rest = eqx.partition(eqx.nn.MLP(WIDTH, 10, 64, 2, key=jax.random.key(0)), eqx.is_array)
    loss = lambda params, x, labels: cross_entropy(jax.vmap(eqx.combine(params, rest))(x), labels)
    names = {"x": "batch d_model", "labels": "batch", "layers/0/weight": "d_ff _"}
    return loss, names, (params, jax.random.normal(jax.random.key(3), (8, WIDTH)), jnp.arange(8))


SMALL = {
    "mlp": mlp,
    "cnn": of_images(CNN()),
    "resnet": of_images(ResNet()),
    "t5": t5,
    "lstm": lstm,
    "gcn": gcn,
    "equinox-mlp": equinox_mlp,
}
