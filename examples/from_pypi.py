"""A model from PyPI, as it is, as a family for the commands: a mixture of experts in flax.

    pip install nano-moe-jax
    meshdsl train --model examples/from_pypi.py:NanoMoE --data my_text/ --layout fsdp-tensor
    meshdsl explain --model examples/from_pypi.py:NanoMoE --layout fsdp-tensor --target v5e:2x4

See docs/from-jax.md.
"""

from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import nano_moe
import optax

import meshdsl as md


@dataclass(frozen=True)
class NanoMoE(md.JaxFamily):
    """The language model of nano-moe-jax.

    Attributes:
      length: tokens in a sequence.
      vocab: tokens that there are.
      d_model: features of a token.
      layers: how many blocks.
    """

    names = {
        "params/Embed_0/embedding": "vocab d_model",
        ".*MultiHeadAttention_0/Dense_0/kernel": "_ (qkv heads head_dim)",
        ".*expert_./Dense_0/kernel": "_ d_ff",
        "params/Dense_0/kernel": "_ vocab",
    }
    call = {"length_2": "memory"}

    length: int = 64
    vocab: int = 256
    d_model: int = 64
    layers: int = 2

    @property
    def module(self):
        sizes = dict(vocab_size=self.vocab, block_size=self.length, n_layers=self.layers)
        config = nano_moe.NanoMoEConfig(d_model=self.d_model, d_ff=4 * self.d_model, **sizes)
        return nano_moe.NanoMoE(config)

    def batch(self, rows):
        tokens = md.abstract((rows, md.Dim("length", self.length)), jnp.int32)
        return {"tokens": tokens, "targets": tokens}

    def plain_init(self, key):
        return self.module.init(key, jnp.zeros((1, self.length), jnp.int32))

    def plain_loss(self, params, batch, key):
        rngs = {} if key is None else {"dropout": key}
        made: Any = self.module.apply(params, batch["tokens"], key is None, rngs=rngs)
        logits, balance = made
        losses = optax.softmax_cross_entropy_with_integer_labels(logits, batch["targets"])
        return losses.mean() + 0.01 * balance, {"balance": balance}
