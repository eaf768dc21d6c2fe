"""More models as users have them: flax modules, grouped heads, images, recurrences, dropout."""

import math
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from flax import nnx

from tests.from_jax.plain import LENGTH, VOCAB, WIDTH, cross_entropy, tokens_and_targets

TEXT = {"tokens|targets": "batch length"}


class Block(nn.Module):
    dropout: float = 0.0

    @nn.compact
    def __call__(self, x, mask, *, train):
        h = nn.LayerNorm()(x)
        how = {"deterministic": not train, "dropout_rate": self.dropout}
        x = x + nn.MultiHeadDotProductAttention(num_heads=4, **how)(h, h, mask=mask)
        h = nn.gelu(nn.Dense(4 * WIDTH)(nn.LayerNorm()(x)))
        return x + nn.Dropout(self.dropout, deterministic=not train)(nn.Dense(WIDTH)(h))


class Linen(nn.Module):
    dropout: float = 0.0

    @nn.compact
    def __call__(self, tokens, *, train=False):
        mask = nn.make_causal_mask(tokens)
        shape = (1, LENGTH, WIDTH)
        positions = self.param("positions", nn.initializers.normal(0.02), shape)
        x = nn.Embed(VOCAB, WIDTH, name="embed")(tokens) + positions
        for _ in range(2):
            x = Block(self.dropout)(x, mask, train=train)
        return nn.Dense(VOCAB, name="logits")(nn.LayerNorm()(x))


def linen():
    tokens, targets = tokens_and_targets()
    model = Linen()
    loss = lambda params, tokens, targets: cross_entropy(model.apply(params, tokens), targets)
    return loss, _LINEN_NAMES, (model.init(jax.random.key(0), tokens), tokens, targets)


def dropout():
    tokens, targets = tokens_and_targets()
    model = Linen(0.2)

    def loss(params, tokens, targets, key):
        scores = model.apply(params, tokens, train=True, rngs={"dropout": key})
        return cross_entropy(scores, targets)

    params = model.init(jax.random.key(0), tokens)
    return loss, _LINEN_NAMES, (params, tokens, targets, jax.random.key(7))


_LINEN_NAMES = {
    **TEXT,
    "params/embed/embedding": "vocab d_model",
    ".*query/kernel": "_ heads head_dim",
    ".*Dense_0/kernel": "_ d_ff",
}


class NnxBlock(nnx.Module):
    def __init__(self, rngs):
        self.first, self.second = nnx.RMSNorm(WIDTH, rngs=rngs), nnx.RMSNorm(WIDTH, rngs=rngs)
        self.attention = nnx.MultiHeadAttention(4, WIDTH, decode=False, rngs=rngs)
        self.gate = nnx.Linear(WIDTH, 4 * WIDTH, rngs=rngs)
        self.up = nnx.Linear(WIDTH, 4 * WIDTH, rngs=rngs)
        self.down = nnx.Linear(4 * WIDTH, WIDTH, rngs=rngs)

    def __call__(self, x, mask):
        x = x + self.attention(self.first(x), mask=mask)
        h = self.second(x)
        return x + self.down(nnx.silu(self.gate(h)) * self.up(h))


class Nnx(nnx.Module):
    def __init__(self, rngs):
        self.embed = nnx.Embed(VOCAB, WIDTH, rngs=rngs)
        self.blocks = nnx.List([NnxBlock(rngs) for _ in range(2)])
        self.norm = nnx.RMSNorm(WIDTH, rngs=rngs)
        self.head = nnx.Linear(WIDTH, VOCAB, rngs=rngs)

    def __call__(self, tokens):
        mask, x = nnx.make_causal_mask(tokens), self.embed(tokens)
        for block in self.blocks:
            x = block(x, mask)
        return self.head(self.norm(x))


def of_nnx():
    graph, state = nnx.split(Nnx(nnx.Rngs(0)))

    def loss(state, tokens, targets):
        return cross_entropy(nnx.merge(graph, state)(tokens), targets)

    names = {
        **TEXT,
        "embed/embedding.*": "vocab d_model",
        ".*query/kernel.*": "_ heads head_dim",
        ".*up/kernel.*": "_ d_ff",
    }
    return loss, names, (state, *tokens_and_targets())


def rotated(x, positions):
    half = x.shape[-1] // 2
    angles = positions[:, None] / 10000 ** (jnp.arange(0, 2 * half, 2) / (2 * half))
    angles = jnp.concatenate([angles, angles], -1)[:, None]
    turned = jnp.concatenate([-x[..., half:], x[..., :half]], -1)
    return x * jnp.cos(angles) + turned * jnp.sin(angles)


def rms(x, scale):
    return x * jax.lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + 1e-6) * scale


def llama():
    """Grouped heads, rotary positions by halves, gate and up in one matrix."""
    heads, kv_heads, size = 8, 4, 4
    keys = iter(jax.random.split(jax.random.key(0), 20))
    normal = lambda *shape: jax.random.normal(next(keys), shape) * 0.2
    layer = lambda: {
        "n1": jnp.ones(WIDTH),
        "n2": jnp.ones(WIDTH),
        "wq": normal(WIDTH, heads * size),
        "wk": normal(WIDTH, kv_heads * size),
        "wv": normal(WIDTH, kv_heads * size),
        "wo": normal(heads * size, WIDTH),
        "wgu": normal(WIDTH, 2 * 48),
        "wd": normal(48, WIDTH),
    }
    params = {"embed": normal(VOCAB, WIDTH), "layers": [layer() for _ in range(2)]}

    def loss(params, tokens, targets):
        rows, length = tokens.shape
        x = jnp.take(params["embed"], tokens, axis=0)
        positions = jnp.arange(length)
        for p in params["layers"]:
            h = rms(x, p["n1"])
            q = rotated((h @ p["wq"]).reshape(rows, length, heads, size), positions)
            k = rotated((h @ p["wk"]).reshape(rows, length, kv_heads, size), positions)
            v = (h @ p["wv"]).reshape(rows, length, kv_heads, size)
            k, v = (jnp.repeat(a, heads // kv_heads, axis=2) for a in (k, v))
            scores = jnp.einsum("bthd,bshd->bhts", q, k) / math.sqrt(size)
            seen = jnp.tril(jnp.ones((length, length)))
            weights = jax.nn.softmax(jnp.where(seen == 0, -jnp.inf, scores), -1)
            mixed = jnp.einsum("bhts,bshd->bthd", weights, v)
            x = x + mixed.reshape(rows, length, -1) @ p["wo"]
            gate, up = jnp.split(rms(x, p["n2"]) @ p["wgu"], 2, -1)
            x = x + (jax.nn.silu(gate) * up) @ p["wd"]
        return cross_entropy(x @ params["embed"].T, targets)

    names = {
        **TEXT,
        "embed": "vocab d_model",
        ".*wo": "(kv_heads group head_dim) _",
        ".*wgu": "_ (two d_ff)",
    }
    return loss, names, (params, *tokens_and_targets())


class ViT(nn.Module):
    @nn.compact
    def __call__(self, images):
        x = nn.Conv(WIDTH, (4, 4), strides=(4, 4), padding="VALID", name="patches")(images)
        x = x.reshape(x.shape[0], -1, WIDTH)
        first = self.param("first", nn.initializers.normal(0.02), (1, 1, WIDTH))
        x = jnp.concatenate([jnp.broadcast_to(first, (x.shape[0], 1, WIDTH)), x], 1)
        for _ in range(2):
            h = nn.LayerNorm()(x)
            x = x + nn.MultiHeadDotProductAttention(num_heads=4)(h, h)
            x = x + nn.Dense(WIDTH)(nn.gelu(nn.Dense(4 * WIDTH)(nn.LayerNorm()(x))))
        return nn.Dense(10)(x[:, 0])


def vit():
    images = jax.random.normal(jax.random.key(3), (8, 16, 8, 3))
    labels = jnp.arange(8) % 10
    model = ViT()
    loss = lambda params, images, labels: cross_entropy(model.apply(params, images), labels)
    names = {
        "images": "batch _ _ _",
        "labels": "batch",
        "params/patches/kernel": "_ _ _ d_model",
        ".*query/kernel": "_ heads head_dim",
        "params/Dense_[02]/kernel": "_ d_ff",
    }
    return loss, names, (model.init(jax.random.key(0), images), images, labels)


class UNet(nn.Module):
    @nn.compact
    def __call__(self, x):
        first = nn.relu(nn.Conv(8, (3, 3))(x))
        x = nn.max_pool(first, (2, 2), strides=(2, 2))
        x = nn.relu(nn.GroupNorm(4)(nn.Conv(16, (3, 3))(x)))
        x = jax.image.resize(x, (x.shape[0], 16, 16, 16), "nearest")
        x = jnp.concatenate([first, x], -1)
        return nn.Conv(1, (1, 1))(x)


def unet():
    images = jax.random.normal(jax.random.key(3), (8, 16, 16, 3))
    model = UNet()

    def loss(params, images):
        made: Any = model.apply(params, images)
        return jnp.mean(jnp.square(made[..., 0] - images[..., 1]))

    names = {"images": "batch height width channels"}
    return loss, names, (model.init(jax.random.key(0), images), images)


def recurrence():
    """A gated scan over the length, as of state space models, beside one by `associative_scan`."""
    keys = iter(jax.random.split(jax.random.key(0), 6))
    normal = lambda *shape: jax.random.normal(next(keys), shape) * 0.3
    params = {
        "embed": normal(VOCAB, WIDTH),
        "into": normal(WIDTH, 2 * 32),
        "decay": normal(32, 4),
        "out": normal(32, WIDTH),
    }

    def loss(params, tokens, targets):
        x = params["embed"][tokens]
        gate, inner = jnp.split(x @ params["into"], 2, -1)
        decay = jax.nn.sigmoid(params["decay"])

        def step(state, now):
            state = state * decay + now[..., None]
            return state, state.sum(-1)

        start = jnp.zeros((x.shape[0], *decay.shape))
        _, made = jax.lax.scan(step, start, inner.swapaxes(0, 1))
        x = x + (made.swapaxes(0, 1) * jax.nn.silu(gate)) @ params["out"]
        return cross_entropy(x @ params["embed"].T, targets)

    names = {**TEXT, "embed": "vocab d_model", "into": "_ (two d_ff)"}
    return loss, names, (params, *tokens_and_targets())


def experts():
    """A mixture of experts: every token goes to the best of four, all of which compute."""
    keys = iter(jax.random.split(jax.random.key(0), 6))
    normal = lambda *shape: jax.random.normal(next(keys), shape) * 0.3
    params = {
        "embed": normal(VOCAB, WIDTH),
        "router": normal(WIDTH, 4),
        "up": normal(4, WIDTH, 32),
        "down": normal(4, 32, WIDTH),
    }

    def loss(params, tokens, targets):
        x = params["embed"][tokens]
        gates = jax.nn.softmax(x @ params["router"], -1)
        best, chosen = jax.lax.top_k(gates, 2)
        weights = (jax.nn.one_hot(chosen, 4) * best[..., None]).sum(-2)
        h = jax.nn.relu(jnp.einsum("btd,edf->btef", x, params["up"]))
        x = x + jnp.einsum("btef,efd,bte->btd", h, params["down"], weights)
        return cross_entropy(x @ params["embed"].T, targets)

    names = {**TEXT, "embed": "vocab d_model", "up": "experts _ d_ff"}
    return loss, names, (params, *tokens_and_targets())


SIZES = {"llama": {"kv_heads": 4, "group": 2, "two": 2}, "recurrence": {"two": 2}}
ZOO = {
    "linen": linen,
    "dropout": dropout,
    "nnx": of_nnx,
    "llama": llama,
    "vit": vit,
    "unet": unet,
    "recurrence": recurrence,
    "experts": experts,
}
