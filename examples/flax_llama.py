"""A Llama written in flax, with nothing of meshdsl in it, as a family for the commands.

    meshdsl explain --model examples/flax_llama.py:FlaxLlama --layout fsdp-sequence \\
        --target v5p:4x4x4 --mesh data=16,model=4 --batch 64 precision.compute=bfloat16
    meshdsl search --model examples/flax_llama.py:FlaxLlama --target v5p:4x4x4 --batch 64 \\
        precision.compute=bfloat16

The sizes of its settings are those of Llama 3 8B. Layers are stacked by `nn.scan`, and
rematerialised. See docs/from-jax.md.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax

import meshdsl as md


def rotate(x, base):
    """Rotary positions of (batch, length, heads, head_dim), whose halves of head_dim are pairs."""
    half = x.shape[-1] // 2
    frequencies = base ** (-jnp.arange(half, dtype=jnp.float32) / half)
    angles = jnp.arange(x.shape[1], dtype=jnp.float32)[:, None, None] * frequencies
    cos, sin = jnp.cos(angles).astype(x.dtype), jnp.sin(angles).astype(x.dtype)
    first, second = jnp.split(x, 2, axis=-1)
    return jnp.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)


class Block(nn.Module):
    """One layer.

    Attributes:
      attend: causal attention of queries (batch, length, heads, head_dim) to keys and values.
      note: is given every intermediate by its name, and returns it, as `jit` is told how to split.
    """

    heads: int
    kv_heads: int
    head_dim: int
    d_ff: int
    rotary_base: float
    attend: Callable
    note: Callable

    @nn.compact
    def __call__(self, x, _):
        dense = partial(nn.DenseGeneral, use_bias=False)
        h = self.note("normed", nn.RMSNorm(epsilon=1e-5, name="attention_norm")(x))
        q = self.note("queries", dense((self.heads, self.head_dim), name="q")(h))
        k = self.note("keys", dense((self.kv_heads, self.head_dim), name="k")(h))
        v = self.note("keys", dense((self.kv_heads, self.head_dim), name="v")(h))
        q, k = rotate(q, self.rotary_base), rotate(k, self.rotary_base)
        mixed = self.note("queries", self.attend(q, k, v))
        out = dense(x.shape[-1], axis=(-2, -1), name="o")(mixed)
        x = self.note("residual", x + self.note("projected", out))
        h = self.note("normed", nn.RMSNorm(epsilon=1e-5, name="mlp_norm")(x))
        gate = self.note("hidden", dense(self.d_ff, name="gate")(h))
        up = self.note("hidden", dense(self.d_ff, name="up")(h))
        down = dense(x.shape[-1], name="down")(self.note("hidden", nn.silu(gate) * up))
        return self.note("residual", x + self.note("projected", down)), None


class Llama(nn.Module):
    """Scores of the next token."""

    vocab: int
    d_model: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    d_ff: int
    rotary_base: float = 500_000.0
    attend: Callable = partial(jax.nn.dot_product_attention, is_causal=True)
    note: Callable = lambda _, x: x

    @nn.compact
    def __call__(self, tokens):
        x = self.note("residual", nn.Embed(self.vocab, self.d_model, name="embedding")(tokens))
        stack = nn.scan(
            nn.remat(Block, prevent_cse=False),
            variable_axes={"params": 0},
            split_rngs={"params": True},
            length=self.layers,
        )
        sizes = self.heads, self.kv_heads, self.head_dim, self.d_ff, self.rotary_base
        x, _ = stack(*sizes, self.attend, self.note, name="layers")(x, None)
        x = self.note("normed", nn.RMSNorm(epsilon=1e-5, name="norm")(x))
        scores = nn.Dense(self.vocab, use_bias=False, name="head")(x)
        return self.note("logits", scores).astype(jnp.float32)


@dataclass(frozen=True)
class FlaxLlama(md.JaxFamily):
    """The language model above, and names for its dims."""

    names = {
        "params/embedding/embedding": "vocab d_model",
        ".*/q/kernel": "layers _ (kv_heads group) head_dim",
        ".*/k/kernel": "layers _ kv_heads head_dim",
        ".*/up/kernel": "layers _ d_ff",
        "params/head/kernel": "_ vocab",
    }
    call = {"length_2": "memory"}

    length: int = 8192
    vocab: int = 128_256
    d_model: int = 4096
    layers: int = 32
    heads: int = 32
    kv_heads: int = 8
    head_dim: int = 128
    d_ff: int = 14_336

    @property  # which depends on the sizes, so it is no constant of the class
    def factors(self):  # pyright: ignore[reportIncompatibleVariableOverride]
        return {"kv_heads": self.kv_heads, "group": self.heads // self.kv_heads}

    def module(self, **how) -> Llama:
        sizes: dict[str, Any] = {"d_model": self.d_model, "layers": self.layers}
        sizes |= {"heads": self.heads, "kv_heads": self.kv_heads, "head_dim": self.head_dim}
        return Llama(self.vocab, d_ff=self.d_ff, **sizes, **how)

    def batch(self, rows):
        tokens = md.abstract((rows, md.Dim("length", self.length)), jnp.int32)
        return {"tokens": tokens, "targets": tokens}

    def plain_init(self, key):
        return self.module().init(key, jnp.zeros((1, self.length), jnp.int32))

    def plain_loss(self, params, batch, key):
        scores: Any = self.module().apply(params, batch["tokens"])
        losses = optax.softmax_cross_entropy_with_integer_labels(scores, batch["targets"])
        return losses.mean()
