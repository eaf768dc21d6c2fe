"""Models as users have them: plain JAX, without names."""

import math

import jax
import jax.numpy as jnp

VOCAB, LENGTH, WIDTH, LAYERS, HEADS = 16, 8, 16, 2, 4


def tokens_and_targets(batch: int = 8, length: int = LENGTH, vocab: int = VOCAB):
    one, two = jax.random.split(jax.random.key(1))
    shape = (batch, length)
    return tuple(jax.random.randint(k, shape, 0, vocab) for k in (one, two))


def gpt_init(key, layers: int = LAYERS):
    keys = iter(jax.random.split(key, 4 * layers + 2))
    normal = lambda *shape: jax.random.normal(next(keys), shape) * 0.2
    norm = lambda: {"g": jnp.ones(WIDTH), "b": jnp.zeros(WIDTH)}
    linear = lambda m, n: {"w": normal(m, n), "b": jnp.zeros(n)}
    return {
        "wte": normal(VOCAB, WIDTH),
        "wpe": normal(LENGTH, WIDTH),
        "ln_f": norm(),
        "h": [
            {
                "ln_1": norm(),
                "attn": {
                    "c_attn": linear(WIDTH, 3 * WIDTH),
                    "c_proj": linear(WIDTH, WIDTH),
                },
                "ln_2": norm(),
                "mlp": {"c_fc": linear(WIDTH, 4 * WIDTH), "c_proj": linear(4 * WIDTH, WIDTH)},
            }
            for _ in range(layers)
        ],
    }


GPT_NAMES = {
    "tokens|targets": "batch length",
    "wte": "vocab d_model",
    "h/.*c_attn/w": "_ (qkv heads head_dim)",
    "h/.*c_fc/w": "_ d_ff",
}


def layer_norm(x, g, b):
    mean = jnp.mean(x, -1, keepdims=True)
    return g * (x - mean) / jnp.sqrt(jnp.var(x, -1, keepdims=True) + 1e-5) + b


def linear(x, w, b):
    return x @ w + b


def attention(x, c_attn, c_proj):
    rows, length, width = x.shape
    q, k, v = jnp.split(linear(x, **c_attn), 3, axis=-1)
    shape = rows, length, HEADS, width // HEADS
    q, k, v = (a.reshape(shape).transpose(0, 2, 1, 3) for a in (q, k, v))
    scores = (q @ k.transpose(0, 1, 3, 2)) / math.sqrt(shape[-1])
    mask = jnp.tril(jnp.ones((length, length), bool))
    weights = jax.nn.softmax(jnp.where(mask, scores, -1e30), axis=-1)
    mixed = (weights @ v).transpose(0, 2, 1, 3).reshape(rows, length, width)
    return linear(mixed, **c_proj)


def block(x, p):
    x = x + attention(layer_norm(x, **p["ln_1"]), **p["attn"])
    h = jax.nn.gelu(linear(layer_norm(x, **p["ln_2"]), **p["mlp"]["c_fc"]))
    return x + linear(h, **p["mlp"]["c_proj"])


def embedded(params, tokens):
    return params["wte"][tokens] + params["wpe"][jnp.arange(tokens.shape[1])]


def cross_entropy(logits, targets):
    scores = jax.nn.log_softmax(logits, axis=-1)
    return -jnp.mean(jnp.take_along_axis(scores, targets[..., None], -1)[..., 0])


def gpt_loss(params, tokens, targets):
    x = embedded(params, tokens)
    for p in params["h"]:
        x = block(x, p)
    return cross_entropy(layer_norm(x, **params["ln_f"]) @ params["wte"].T, targets)


def scanned_loss(params, tokens, targets):
    """The layers stacked, run by one scan, and rematerialised."""
    x = embedded(params, tokens)
    body = jax.checkpoint(lambda x, p: (block(x, p), None))
    x, _ = jax.lax.scan(body, x, params["h"])
    return cross_entropy(layer_norm(x, **params["ln_f"]) @ params["wte"].T, targets)


def stacked(params):
    return {**params, "h": jax.tree.map(lambda *a: jnp.stack(a), *params["h"])}
