"""BERT (Devlin et al., 2019): an encoder of texts that sees both ways.

With `classes=0` it says which tokens are hidden by a mask, which is how it is trained on text; with
more, which class a text is of. Norms come after the sums.

Dims: batch, length, d_model, heads, head_dim, memory, queries, d_ff, vocab, layers, positions,
types and classes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from flax import struct
from flax.struct import PyTreeNode

import meshdsl as md
from meshdsl.fields import bounded
from meshdsl.layers.dropout import Dropout
from meshdsl.layers.embedding import Embedding
from meshdsl.layers.linear import Linear
from meshdsl.layers.loss import classification_loss
from meshdsl.layers.norm import LayerNorm
from meshdsl.layers.stack import Stack
from meshdsl.models.architecture import ACTIVATIONS
from meshdsl.models.encoder import LARGE, EncoderConfig, new_blocks
from meshdsl.models.families.decoder import ATTENTION

HIDDEN_PART = 0.15  # of the tokens that training asks for
FIXED = 0  # the seed of the mask that held-out texts have


@dataclass(frozen=True)
class Config(EncoderConfig):
    """Sizes of a BERT.

    Attributes:
      vocab: how many tokens there are; at least as many as the tokenizer has.
      length: tokens in the longest text.
      types: kinds of tokens, as those of the first and of the second of two texts.
      classes: of texts; 0: it finds hidden tokens.
      mask_token: what hides a token in training.
    """

    sizes: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "bert-base-uncased": {"layers": 12},
        "bert-base-cased": {"vocab": 28996},
        "bert-large-uncased": LARGE,
        "bert-large-cased": {**LARGE, "vocab": 28996},
    }

    vocab: int = bounded(30522, least=1)
    length: int = bounded(512, least=1)
    types: int = bounded(2, least=1)
    classes: int = bounded(0, least=0)
    mask_token: int = bounded(103, least=0)

    @property
    def task(self) -> str:  # pyright: ignore[reportIncompatibleVariableOverride]
        """What it is trained on: texts without labels, or examples with them."""
        return "examples" if self.classes else "text"

    @property
    def dims(self) -> dict[str, md.Dim]:
        """Every dim of the model but `batch`, by name."""
        classes = {"classes": self.classes} if self.classes else {}
        return self.dims_of(self.length, vocab=self.vocab, **classes)

    def batch(self, rows: md.Dim) -> dict[str, md.Tensor]:
        """`tokens`, and for classes `seen`, which is 1 where there is a token, and `label`."""
        tokens = md.abstract((rows, self.dims["length"]), jnp.int32)
        if not self.classes:
            return {"tokens": tokens}
        return {"tokens": tokens, "seen": tokens, "label": md.abstract((rows,), jnp.int32)}

    def init(self, key) -> Bert:
        return Bert.init(key, self)

    def loss(self, model: Bert, batch: dict[str, md.Tensor], key):
        """The mean cross-entropy of hidden tokens, or of classes."""
        tokens = batch["tokens"]
        if self.classes:
            logits = model(tokens, seen=batch["seen"] > 0, key=key)
            return classification_loss(logits, batch["label"], "classes")
        hide, inside = (None, None) if key is None else jax.random.split(key)
        given, targets = hidden(tokens, self, jax.random.key(FIXED) if hide is None else hide)
        return classification_loss(model(given, key=inside), targets, "vocab")


def hidden(tokens: md.Tensor, config: Config, key) -> tuple[md.Tensor, md.Tensor]:
    """Tokens of which some are hidden, and what they were; -1 for all others.

    Of those that are asked for, eight in ten become the mask, one another token, and one stays.
    """
    which, other = jax.random.split(key)
    drawn = md.random.uniform(which, tokens.dims, like=tokens)
    another = md.random.randint(other, tokens.dims, 0, config.vocab, like=tokens)
    given = md.where(drawn < 0.9 * HIDDEN_PART, another, tokens)
    given = md.where(drawn < 0.8 * HIDDEN_PART, config.mask_token, given)
    return given, md.where(drawn < HIDDEN_PART, tokens, -1)


class Predictions(PyTreeNode):
    """From features to the token that is hidden, by the table of the embedding."""

    dense: Linear
    norm: LayerNorm
    bias: md.Tensor

    @classmethod
    def init(cls, key, config: Config):
        d_model = config.dims["d_model"]
        return cls(
            dense=Linear.init(key, d_model, md.Dim("d_model_out", d_model.size), bias=True),
            norm=config.new_norm(),
            bias=md.zeros(config.dims["vocab"]),
        )

    def __call__(self, x: md.Tensor, table: Embedding, activation: str) -> md.Tensor:
        y = ACTIVATIONS[activation](md.rename(self.dense(x), "d_model_out", "d_model"))
        return table.logits(self.norm(y)) + md.cast(self.bias, y.dtype)


class Bert(PyTreeNode):
    """The encoder, and what reads tokens or classes from it."""

    embedding: Embedding
    positions: Embedding
    types: Embedding
    norm: LayerNorm
    blocks: Stack
    predictions: Predictions | None
    pooler: Linear | None
    head: Linear | None
    config: Config = struct.field(pytree_node=False)

    @classmethod
    def init(cls, key, config: Config):
        dims = config.dims
        embedding, positions, types, blocks, pooler, head = jax.random.split(key, 6)
        d_model, pooled = dims["d_model"], md.Dim("pooled", config.d_model)
        of_classes = bool(config.classes)
        return cls(
            embedding=Embedding.init(embedding, dims["vocab"], d_model),
            positions=Embedding.init(positions, dims["positions"], d_model),
            types=Embedding.init(types, md.Dim("types", config.types), d_model),
            norm=config.new_norm(),
            blocks=new_blocks(blocks, config, biases=ATTENTION, after=True),
            predictions=None if of_classes else Predictions.init(head, config),
            pooler=Linear.init(pooler, d_model, pooled, bias=True) if of_classes else None,
            head=Linear.init(head, pooled, dims["classes"], bias=True) if of_classes else None,
            config=config,
        )

    def __call__(
        self,
        tokens: md.Tensor,
        *,
        seen: md.Tensor | None = None,
        types: md.Tensor | None = None,
        key=None,
    ) -> md.Tensor:
        """Logits of the vocabulary for each of `tokens` (batch, length), or those of the classes.

        Args:
          seen: bools, False where there is no token (batch, length).
          types: the kind of each token (batch, length; int32); by default the first.
          key: for dropout; without one there is none.
        """
        length, config = tokens.dim("length"), self.config
        if length.size > config.length:
            raise md.MeshDSLError(
                f"model: tokens of {length} are longer than the model's length={config.length}"
            )
        first, later = (None, None) if key is None else jax.random.split(key)
        x = self.embedding(tokens) + self.positions(md.iota(length))
        x = x + self.types(tokens * 0 if types is None else types)
        x = Dropout(config.dropout)(self.norm(x), first)
        mask = None if seen is None else md.rename(seen, length, "memory")
        x = self.blocks(x, config.dropout, mask, key=later)
        if self.predictions is not None:
            return self.predictions(x, self.embedding, config.activation)
        assert self.pooler is not None and self.head is not None
        x = md.tanh(self.pooler(x["length", 0]))
        return self.head(x)
