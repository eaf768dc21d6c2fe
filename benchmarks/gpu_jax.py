"""GPT-2 and Llama as a person would write them in plain JAX for one GPU, and their training step.

The attention is the kernel that meshdsl uses too, through `jax.nn.dot_product_attention`. Layers
are scanned over, with the same rematerialisation, optimizer and dtypes as in meshdsl's step:
parameters and optimizer state in float32, products in bfloat16, and norms, softmax and loss in
float32. Parameters are a dict of arrays, whose order is that of meshdsl's parameters.
"""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
import optax

from meshdsl.models import transformer
from meshdsl.train.config import Config
from meshdsl.train.optimizer import make_schedule, peak

# The parameters of a layer; all of them are stacked over the layers.
_LINEAR = ("query", "key", "value", "out")
LAYERS = {
    "gpt2": (
        *("attention_norm", "attention_norm_bias"),
        *(name for linear in _LINEAR for name in (linear, f"{linear}_bias")),
        *("mlp_norm", "mlp_norm_bias", "up", "up_bias", "down", "down_bias"),
    ),
    "llama": ("attention_norm", *_LINEAR, "mlp_norm", "gate", "up", "down"),
}
NAMES = {
    "gpt2": ("embedding", "positions", *LAYERS["gpt2"], "norm", "norm_bias"),
    "llama": ("embedding", *LAYERS["llama"], "norm", "head"),
}


def loss(parameters: dict, tokens, targets, config: Config, kernel: str) -> jax.Array:
    """The mean cross-entropy of `targets` (batch, length), in nats per token.

    Args:
      kernel: that of attention, "cudnn" or "xla".
    """
    model, dtype = model_of(config), jnp.dtype(config.precision.compute)
    w = {name: x.astype(dtype) for name, x in parameters.items()}
    x = w["embedding"][tokens]
    turn = None
    if model.style == "gpt2":
        x = x + w["positions"][: tokens.shape[1]]
    else:
        turn = _angles(tokens.shape[1], w["query"].shape[-1], model.rotary_base, dtype)

    def layer(x, w):
        return _layer(x, w, turn, model.norm_epsilon, kernel), None

    layer = layer if model.remat == "none" else jax.checkpoint(layer)
    x, _ = jax.lax.scan(layer, x, {name: w[name] for name in LAYERS[model.style]})
    x = _norm(x, w, "norm", model.norm_epsilon)
    head = w["head"] if "head" in w else w["embedding"].T
    logits = (x @ head).astype(jnp.float32)
    return optax.softmax_cross_entropy_with_integer_labels(logits, targets).mean()


def model_of(config: Config) -> transformer.Config:
    """The model of a configuration, which is a transformer."""
    assert isinstance(config.model, transformer.Config)
    return config.model


def _layer(x, w: dict, turn, epsilon: float, kernel: Any) -> jax.Array:
    h = _norm(x, w, "attention_norm", epsilon)
    query, key, value = (_linear(h, w, name) for name in _LINEAR[:3])
    if turn is not None:
        query, key = _rotate(query, turn), _rotate(key, turn)
    heads = math.prod(query.shape[2:-1])
    found = jax.nn.dot_product_attention(
        query.reshape(*query.shape[:2], heads, -1),
        key,
        value,
        is_causal=True,
        implementation=kernel,
    )
    x = x + _linear(found.reshape(query.shape), w, "out", contracted=query.ndim - 2)
    h = _norm(x, w, "mlp_norm", epsilon)
    if "gate" in w:
        hidden = jax.nn.silu(_linear(h, w, "gate")) * _linear(h, w, "up")
    else:
        hidden = jax.nn.gelu(_linear(h, w, "up"))
    return x + _linear(hidden, w, "down")


def _linear(x, w: dict, name: str, contracted: int = 1) -> jax.Array:
    y = jnp.tensordot(x, w[name], contracted)
    return y + w[f"{name}_bias"] if f"{name}_bias" in w else y


def _norm(x, w: dict, name: str, epsilon: float) -> jax.Array:
    """LayerNorm where there is a bias, else RMSNorm."""
    wide = x.astype(jnp.float32)
    if centred := f"{name}_bias" in w:
        wide = wide - wide.mean(-1, keepdims=True)
    y = wide * jax.lax.rsqrt(jnp.square(wide).mean(-1, keepdims=True) + epsilon) * w[name]
    return (y + w[f"{name}_bias"] if centred else y).astype(x.dtype)


def _angles(length: int, head_dim: int, base: float, dtype) -> tuple[jax.Array, jax.Array]:
    frequency = base ** (-jnp.arange(head_dim // 2, dtype=jnp.float32) / (head_dim // 2))
    angles = jnp.arange(length, dtype=jnp.float32)[:, None] * frequency
    return jnp.cos(angles).astype(dtype), jnp.sin(angles).astype(dtype)


def _rotate(x, turn) -> jax.Array:
    """`x` (batch, length, heads or kv_heads and group, head_dim)."""
    between = range(1, x.ndim - 2)
    cos, sin = (jnp.expand_dims(t, tuple(between)) for t in turn)
    first, second = jnp.split(x, 2, axis=-1)
    return jnp.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)


class PlainStep:
    """A compiled step of training.

    Attributes:
      compiled: the step, of a state and a batch to the next state and the loss.
    """

    def __init__(self, config: Config, kernel: str, tokens, targets):
        optimizer, style = config.optimizer, model_of(config).style
        matrices = {name: not name.endswith(("norm", "bias")) for name in NAMES[style]}
        rate = make_schedule(config.schedule, peak(optimizer), config.steps)
        self._tx = optax.chain(
            optax.clip_by_global_norm(optimizer.clip),
            optax.adamw(rate, b2=0.95, weight_decay=optimizer.weight_decay, mask=matrices),
        )

        def step(state, tokens, targets):
            parameters, opt_state = state
            value, gradients = jax.value_and_grad(loss)(parameters, tokens, targets, config, kernel)
            updates, opt_state = self._tx.update(gradients, opt_state, parameters)
            return (optax.apply_updates(parameters, updates), opt_state), value

        shapes = jax.eval_shape(lambda key: config.model.init(key), jax.random.key(0))
        parameters = dict(zip(NAMES[style], jax.tree.leaves(shapes), strict=True))
        state = parameters, jax.eval_shape(self._tx.init, parameters)
        self._style = style
        self.compiled = jax.jit(step, donate_argnums=0).lower(state, tokens, targets).compile()

    def first(self, model) -> tuple:
        """The state that begins with the parameters of a model of meshdsl."""
        parameters = dict(zip(NAMES[self._style], jax.tree.leaves(model), strict=True))
        return parameters, jax.jit(self._tx.init)(parameters)
