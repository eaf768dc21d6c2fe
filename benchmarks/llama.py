"""A whole Llama and its optimizer as plain JAX: operation by operation what meshdsl computes.

Parameters are a dict of arrays; those of the blocks are stacked over the layers. Everything whose
split a partitioner might be told passes through `note(name, x)`: weights as they are used
(`use/q`), and every intermediate. Norms, softmax and loss run in float32, products in the dtype
that is asked for.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
import optax

from meshdsl.models.transformer import Config
from meshdsl.train.config import Optimizer, Schedule
from meshdsl.train.optimizer import make_schedule, peak

from .model import rms_norm

# Dims of each parameter; those of a block also have `layers` in front. The order is that of
# meshdsl's parameters.
BLOCK = {
    "attention_norm": ("d_model",),
    "q": ("d_model", "kv_heads", "group", "head_dim"),
    "k": ("d_model", "kv_heads", "head_dim"),
    "v": ("d_model", "kv_heads", "head_dim"),
    "o": ("kv_heads", "group", "head_dim", "d_model"),
    "mlp_norm": ("d_model",),
    "gate": ("d_model", "d_ff"),
    "up": ("d_model", "d_ff"),
    "down": ("d_ff", "d_model"),
}
DIMS = (
    {"embedding": ("vocab", "d_model")}
    | {name: ("layers", *dims) for name, dims in BLOCK.items()}
    | {"norm": ("d_model",), "head": ("d_model", "vocab")}
)
MATRICES = {name: not name.endswith("norm") for name in DIMS}

Note = Callable[[str, jax.Array], jax.Array]


def parameter_shapes(config: Config) -> dict[str, jax.ShapeDtypeStruct]:
    sizes = {name: dim.size for name, dim in config.dims.items()}
    return {
        name: jax.ShapeDtypeStruct([sizes[d] for d in dims], jnp.float32)
        for name, dims in DIMS.items()
    }


def angles(config: Config, dtype: str) -> tuple[jax.Array, jax.Array]:
    """Cosine and sine of every position's angles: (length, 1, 1, head_dim / 2)."""
    half = config.dims["head_dim"].size // 2
    frequency = jnp.exp(
        jnp.arange(half, dtype=jnp.float32) * (-math.log(config.rotary_base) / half)
    )
    turn = (jnp.arange(config.length, dtype=jnp.float32)[:, None] * frequency)[:, None, None, :]
    return jnp.cos(turn).astype(dtype), jnp.sin(turn).astype(dtype)


def rotate(x, turn):
    """Rotates (batch, length, kv_heads, group, head_dim); the halves of head_dim are the pairs."""
    cos, sin = turn
    first, second = jnp.split(x, 2, axis=-1)
    return jnp.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)


def block(w: dict, x, turn, epsilon: float, note: Note, attend: Callable):
    """One layer, (batch, length, d_model) to the same; `w` are its parameters at rest."""

    def use(name):
        return note(f"use/{name}", w[name].astype(x.dtype))

    h = note("normed", rms_norm(x, use("attention_norm"), epsilon))
    q = note("queries", jnp.einsum("btd,dkgh->btkgh", h, use("q")))
    k, v = (note("keys", jnp.einsum("btd,dkh->btkh", h, use(name))) for name in "kv")
    q, k = (
        note("queries", rotate(q, turn)),
        note("keys", rotate(k[:, :, :, None], turn)[:, :, :, 0]),
    )
    attended = note("queries", attend(q, k, v))
    x = note("residual", x + note("projected", jnp.einsum("btkgh,kghd->btd", attended, use("o"))))
    h = note("normed", rms_norm(x, use("mlp_norm"), epsilon))
    gate, up = (note("hidden", jnp.einsum("btd,df->btf", h, use(name))) for name in ("gate", "up"))
    hidden = note("hidden", jax.nn.silu(gate) * up)
    return note("residual", x + note("projected", jnp.einsum("btf,fd->btd", hidden, use("down"))))


def loss(
    parameters: dict, tokens, targets, config: Config, note: Note, attend: Callable, dtype: str
):
    """Mean cross-entropy of `targets` (batch, length), in nats per token.

    Args:
      attend: causal attention, of queries (batch, length, kv_heads, group, head_dim) to keys and
        values without `group`.
      dtype: of activations, and of parameters where they are used.
    """
    turn = angles(config, dtype)
    x = note(
        "residual",
        jnp.take(note("use/embedding", parameters["embedding"].astype(dtype)), tokens, axis=0),
    )

    def body(x, w):
        return block(w, x, turn, config.norm_epsilon, note, attend), None

    body = body if config.remat == "none" else jax.checkpoint(body)
    x, _ = jax.lax.scan(body, x, {name: parameters[name] for name in BLOCK})
    scale = note("use/norm", parameters["norm"].astype(dtype))
    x = note("normed", rms_norm(x, scale, config.norm_epsilon))
    logits = note(
        "logits", jnp.einsum("btd,dv->btv", x, note("use/head", parameters["head"].astype(dtype)))
    ).astype(jnp.float32)
    chosen = jnp.sum(
        jnp.where(jax.nn.one_hot(targets, config.vocab, dtype=bool), logits, 0.0), axis=-1
    )
    return jnp.mean(jax.nn.logsumexp(logits, axis=-1) - chosen)


def make_tx(settings: Optimizer, schedule: Schedule, steps: int) -> optax.GradientTransformation:
    """The adamw of `meshdsl.train.optimizer`, behind its clipping by the global norm."""
    rate = make_schedule(schedule, peak(settings), steps)
    return optax.chain(
        optax.clip_by_global_norm(settings.clip),
        optax.adamw(rate, b2=0.95, weight_decay=settings.weight_decay, mask=MATRICES),
    )
