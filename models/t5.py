"""T5 (Raffel et al., 2020): an encoder of one text, and a decoder that writes another one.

Positions are told by a bias of the scores alone, which all layers of a side share. Norms have no
mean, matrices no biases, and scores no scale.

Dims: batch, source (the first text), length (the second one), d_model, heads, head_dim, memory,
queries, d_ff, vocab, layers, decoder_layers and buckets.
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
from meshdsl.fields import AUTO, bounded, chosen
from meshdsl.layers.attention import Attention
from meshdsl.layers.dropout import Dropout
from meshdsl.layers.embedding import Embedding
from meshdsl.layers.linear import Linear
from meshdsl.layers.loss import cross_entropy
from meshdsl.layers.mlp import MLP, SwiGLU
from meshdsl.layers.norm import RMSNorm
from meshdsl.layers.relative import RelativeBias
from meshdsl.layers.stack import REMATS, Stack
from meshdsl.models.architecture import ACTIVATIONS
from meshdsl.models.generate import Sampling


def _sizes() -> dict[str, dict[str, Any]]:
    columns = "layers", "decoder_layers", "d_model", "heads", "head_dim", "d_ff"
    rows = {
        "t5-small": (6, 6, 512, 8, 64, 2048),
        "t5-base": (12, 12, 768, 12, 64, 3072),
        "t5-large": (24, 24, 1024, 16, 64, 4096),
        "t5-3b": (24, 24, 1024, 32, 128, 16384),
        "t5-11b": (24, 24, 1024, 128, 128, 65536),
        "flan-t5-small": (8, 8, 512, 6, 64, 1024),
        "flan-t5-base": (12, 12, 768, 12, 64, 2048),
        "flan-t5-large": (24, 24, 1024, 16, 64, 2816),
        "flan-t5-xl": (24, 24, 2048, 32, 64, 5120),
        "flan-t5-xxl": (24, 24, 4096, 64, 64, 10240),
    }
    later = {"gated": True, "activation": "gelu", "tied": False, "scaled_logits": False}
    return {
        name: {**dict(zip(columns, row, strict=True)), **(later if "flan" in name else {})}
        for name, row in rows.items()
    }


ANY = Sampling()  # any token, by its probability


@dataclass(frozen=True)
class Config(md.Family):
    """Sizes of a T5.

    Attributes:
      layers: blocks of the encoder.
      decoder_layers: blocks of the decoder.
      d_model: features of a token.
      heads: of attention.
      head_dim: the size of a head.
      d_ff: the size between the matrices of the feed-forward layer.
      vocab: how many tokens there are; at least as many as the tokenizer has.
      source: tokens of the first text.
      length: tokens of the second one.
      buckets: of distances, which positions are told apart by.
      reach: distances from here on are in one bucket.
      gated: the feed-forward layer has a gate, as in version 1.1.
      activation: of the feed-forward layer.
      tied: the output layer shares the table of the embedding.
      scaled_logits: what the output layer is given is divided by the root of d_model.
      start_token: what the decoder is given first.
      norm_epsilon: what norms add to the mean square before they take its root.
      dropout: the rate of dropout after each sublayer.
      remat: what is kept of each block for the backward pass, see `md.checkpoint`; `none` for all,
        and `auto` for the fastest that fits `memory`.
    """

    task: ClassVar[str] = "pairs"
    sizes: ClassVar[Mapping[str, Mapping[str, Any]]] = _sizes()

    layers: int = bounded(6, least=1)
    decoder_layers: int = bounded(6, least=1)
    d_model: int = bounded(512, least=1)
    heads: int = bounded(8, least=1)
    head_dim: int = bounded(64, least=1)
    d_ff: int = bounded(2048, least=1)
    vocab: int = bounded(32128, least=1)
    source: int = bounded(512, least=1)
    length: int = bounded(512, least=1)
    buckets: int = bounded(32, least=4)
    reach: int = bounded(128, least=2)
    gated: bool = False
    activation: str = chosen("relu", tuple(ACTIVATIONS))
    tied: bool = True
    scaled_logits: bool = True
    start_token: int = bounded(0, least=0)
    norm_epsilon: float = bounded(1e-6, above=0, below=1)
    dropout: float = bounded(0.0, least=0, below=1)
    remat: str = chosen(AUTO, REMATS)

    def __post_init__(self):
        super().__post_init__()
        if self.buckets % 2 or self.reach <= self.buckets // 2:
            raise md.MeshDSLError(
                f"model: buckets={self.buckets} is to be even, and reach={self.reach} more than "
                "half of it"
            )

    @property
    def dims(self) -> dict[str, md.Dim]:
        """Every dim of the model but `batch`, by name."""
        sizes = {
            "layers": self.layers,
            "decoder_layers": self.decoder_layers,
            "d_model": self.d_model,
            "heads": self.heads,
            "head_dim": self.head_dim,
            "d_ff": self.d_ff,
            "vocab": self.vocab,
            "source": self.source,
            **dict.fromkeys(("length", "memory", "queries"), self.length),
            "buckets": self.buckets,
        }
        return {name: md.Dim(name, size) for name, size in sizes.items()}

    def batch(self, rows: md.Dim) -> dict[str, md.Tensor]:
        """`source` and `source_length`, `tokens` and `targets`; int32."""
        source = md.abstract((rows, self.dims["source"]), jnp.int32)
        tokens = md.abstract((rows, self.dims["length"]), jnp.int32)
        size = md.abstract((rows,), jnp.int32)
        return {"source": source, "source_length": size, "tokens": tokens, "targets": tokens}

    def init(self, key) -> T5:
        return T5.init(key, self)

    def loss(self, model: T5, batch: dict[str, md.Tensor], key) -> md.Average:
        """The mean cross-entropy of the second text in nats per token."""
        source, tokens, targets = batch["source"], batch["tokens"], batch["targets"]
        place = md.broadcast(md.iota(source.dim("source")), source.dims)
        seen = place < batch["source_length"]
        tokens = md.where(md.iota(tokens.dim("length")) == 0, self.start_token, tokens)
        logits = model(source, tokens, seen=seen, key=key)
        count = md.sum(md.cast(targets >= 0, jnp.int32))
        return md.Average(md.sum(cross_entropy(logits, targets, "vocab")), count)


class Block(PyTreeNode):
    """Attention to the text itself, in a decoder to the source too, and a feed-forward layer.

    Each has a norm before it.
    """

    attention_norm: RMSNorm
    attention: Attention
    source_norm: RMSNorm | None
    source: Attention | None
    mlp_norm: RMSNorm
    mlp: MLP | SwiGLU

    @classmethod
    def init(cls, key, config: Config, decodes: bool):
        attention, source, mlp = jax.random.split(key, 3)
        dims = config.dims
        d_model, heads, head_dim = dims["d_model"], dims["heads"], dims["head_dim"]
        norm = lambda: RMSNorm.init(d_model, epsilon=config.norm_epsilon)
        attend = lambda key: Attention.init(key, d_model, heads, head_dim, scale=1.0)
        kind = SwiGLU if config.gated else MLP
        return cls(
            attention_norm=norm(),
            attention=attend(attention),
            source_norm=norm() if decodes else None,
            source=attend(source) if decodes else None,
            mlp_norm=norm(),
            mlp=kind.init(mlp, d_model, dims["d_ff"], activation=ACTIVATIONS[config.activation]),
        )

    def __call__(
        self, x: md.Tensor, length: md.Dim, bias: md.Tensor, encoded, seen, rate: float, key=None
    ) -> md.Tensor:
        keys = (None, None, None) if key is None else jax.random.split(key, 3)
        how: dict[str, Any] = {"causal": True} if self.source is not None else {"mask": seen}
        given, drop = self.attention_norm(x), Dropout(rate)
        x = x + drop(self.attention(given, length=length, score_bias=bias, **how), keys[0])
        if self.source is not None and self.source_norm is not None:
            given = self.source_norm(x)
            x = x + drop(self.source(given, encoded, memory="source", mask=seen), keys[1])
        return x + drop(self.mlp(self.mlp_norm(x)), keys[2])


class Side(PyTreeNode):
    """The encoder, or the decoder."""

    relative: RelativeBias
    blocks: Stack
    norm: RMSNorm
    config: Config = struct.field(pytree_node=False)

    @classmethod
    def init(cls, key, config: Config, layers: md.Dim, decodes: bool):
        relative, blocks = jax.random.split(key)
        how = {"buckets": config.buckets, "reach": config.reach, "both": not decodes}
        return cls(
            relative=RelativeBias.init(relative, config.dims["heads"], **how),
            blocks=Stack.init(
                blocks, lambda key: Block.init(key, config, decodes), layers, remat=config.remat
            ),
            norm=RMSNorm.init(config.dims["d_model"], epsilon=config.norm_epsilon),
            config=config,
        )

    def __call__(self, x: md.Tensor, length: md.Dim, encoded, seen, key=None) -> md.Tensor:
        rate = self.config.dropout
        queries, memory = md.Dim("queries", length.size), md.Dim("memory", length.size)
        bias = md.rename(self.relative(queries, memory), queries, length)
        x = self.blocks(x, length, bias, encoded, seen, rate, key=key)
        return self.norm(x)


class T5(PyTreeNode):
    """An encoder and a decoder, which share the table of the embedding."""

    embedding: Embedding
    encoder: Side
    decoder: Side
    head: Linear | None
    config: Config = struct.field(pytree_node=False)

    @classmethod
    def init(cls, key, config: Config):
        embedding, encoder, decoder, head = jax.random.split(key, 4)
        dims = config.dims
        d_model, vocab = dims["d_model"], dims["vocab"]
        return cls(
            embedding=Embedding.init(embedding, vocab, d_model, std=1.0),
            encoder=Side.init(encoder, config, dims["layers"], False),
            decoder=Side.init(decoder, config, dims["decoder_layers"], True),
            head=None if config.tied else Linear.init(head, d_model, vocab),
            config=config,
        )

    def __call__(
        self, source: md.Tensor, tokens: md.Tensor, *, seen: md.Tensor | None = None, key=None
    ) -> md.Tensor:
        """Logits of the token that follows each of `tokens` (batch, length).

        Args:
          source: the first text (batch, source; int32).
          seen: bools, False where the first text has no token (batch, source).
          key: for dropout; without one there is none.
        """
        first, second = (None, None) if key is None else jax.random.split(key)
        return self.decode(self.encode(source, seen=seen, key=first), tokens, seen, second)

    def encode(self, source: md.Tensor, *, seen: md.Tensor | None = None, key=None) -> md.Tensor:
        """The features of the first text (batch, source, d_model)."""
        mask = None if seen is None else md.rename(seen, "source", "memory")
        return self.encoder(self.embedding(source), source.dim("source"), None, mask, key)

    def decode(
        self, encoded: md.Tensor, tokens: md.Tensor, seen: md.Tensor | None = None, key=None
    ) -> md.Tensor:
        """Logits of what follows each of `tokens`, where the first text is encoded already."""
        x = self.decoder(self.embedding(tokens), tokens.dim("length"), encoded, seen, key)
        if self.config.scaled_logits:
            x = x * self.config.d_model**-0.5
        return self.embedding.logits(x) if self.head is None else self.head(x)

    def answer(
        self,
        source: md.Tensor,
        count: int,
        key,
        how: Sampling = ANY,
        seen: md.Tensor | None = None,
    ) -> md.Tensor:
        """The `count` tokens that the model writes after each first text, all in one program.

        The first text is read once; the second one, so far, for each of its tokens.

        Args:
          source: the first texts (batch, source; int32).
          key: a JAX PRNG key, the same for all tokens.
          how: which tokens are drawn, and which of them end a text.
          seen: bools, False where a first text has no token (batch, source).

        Returns:
          Tokens (batch, written), `written` of size `count`.

        Raises:
          MeshDSLError: more tokens are asked for than the second text can have.
        """
        if not 0 < count <= self.config.length:
            raise md.MeshDSLError(
                f"answer: {count} tokens of a model whose second texts have at most "
                f"length={self.config.length}"
            )
        batch, length = source.dim("batch"), md.Dim("length", count)
        encoded, place = self.encode(source, seen=seen), md.iota(length)

        def step(carry, number: md.Tensor):
            given, done = carry  # the start, and what is written so far
            logits = self.decode(encoded, given, seen)
            token = how.choose(md.take(logits, number, length), key, number.array)
            token = md.where(done, how.ends[0], token)
            given = md.where(place == number + 1, token, given)
            return (given, done | how.ended(token)), token

        start = md.tensor(jnp.full((batch.size, count), self.config.start_token), (batch, length))
        none = md.tensor(jnp.zeros(batch.size, bool), (batch,))
        _, tokens = md.scan(step, (start, none), md.iota(md.Dim("written", count)), dim="written")
        return md.transpose(tokens, (batch, "written"))
