"""A decoder-only transformer, as GPT-2 or as Llama.

`gpt2`: LayerNorm, learned positions, GELU, biases, the embedding shared with the output layer.
`llama`: RMSNorm, rotary positions, SwiGLU, grouped-query attention, no biases, an own output layer.

Dims: batch, length, d_model, heads (or kv_heads and group in grouped-query attention), head_dim,
memory (the length, as keys see it), d_ff, vocab, layers and, in `gpt2`, positions.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
from flax import struct
from flax.struct import PyTreeNode

import meshdsl as md
from meshdsl.fields import bounded, chosen
from meshdsl.layers.attention import Attention, Cache, Documents
from meshdsl.layers.embedding import Embedding
from meshdsl.layers.linear import Linear
from meshdsl.layers.mlp import MLP, MLPS, SwiGLU
from meshdsl.layers.norm import EPSILON, NORMS, Norm
from meshdsl.layers.rotary import angles
from meshdsl.layers.stack import REMATS, Stack
from meshdsl.models.sizes import SIZES
from meshdsl.tensor import is_tensor


class Style(NamedTuple):
    """What a family of models has in common.

    Attributes:
      norm: one of NORMS.
      mlp: one of MLPS.
      rotary: positions turn queries and keys; else they are learned and added to the embedding.
      bias: linear layers have biases.
      tied: the output layer shares the table of the embedding.
    """

    norm: str
    mlp: str
    rotary: bool
    bias: bool
    tied: bool


STYLES = {
    "gpt2": Style(norm="layer", mlp="gelu", rotary=False, bias=True, tied=True),
    "llama": Style(norm="rms", mlp="swiglu", rotary=True, bias=False, tied=False),
}


@dataclass(frozen=True)
class Config(md.Family):
    """Sizes and choices of a transformer.

    Attributes:
      style: the family of models that it is of.
      layers: how many blocks.
      d_model: the size of the residual stream.
      heads: heads of queries; it divides `d_model`, unless `head_dim` is set.
      kv_heads: heads of keys and values, which divide `heads`; 0: as many as `heads`.
      head_dim: the size of a head; 0: `d_model / heads`.
      d_ff: the size between the matrices of the feed-forward layer; 0: 4 times `d_model` in `gpt2`,
        and 8/3 of it, rounded up to a multiple of 64, in `llama`.
      vocab: how many tokens there are; at least as many as the tokenizer has.
      length: tokens in the longest sequence, which learned positions are made for.
      rotary_base: base of the wavelengths of rotary positions (Su et al., 2021), in `llama`.
      norm_epsilon: what norms add to the mean square or the variance before they take its root.
      dropout: the rate of dropout after the embedding and each sublayer.
      z_loss: weight of the squared log-normaliser in the loss (Chowdhery et al., 2022).
      loss_chunk: the most tokens of a device whose logits are in memory at a time, while the loss
        is computed; 0: those of all tokens. The backward pass then computes the logits again.
      remat: what is kept of each block for the backward pass, which computes the rest again: its
        input alone (`full`); and what attention gives (`attention`); and queries, keys and values
        (`qkv`); and the products that the feed-forward layer begins with (`hidden`); and all other
        matrix products (`dots`); and all else but what was gathered from other devices
        (`gathers`); or everything (`none`). `auto`: the fastest of these that fits `memory`.

    The model computes in the dtype of its parameters as they are given; norms, softmax and loss are
    computed in float32.
    """

    # A size by name, and each style, which leaves everything else as it is. Published sizes compute
    # in bfloat16, as they were trained.
    sizes: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        **{name: {"precision.compute": "bfloat16", **size} for name, size in SIZES.items()},
        **{style: {"style": style} for style in STYLES},
    }

    style: str = chosen("llama", tuple(STYLES))
    layers: int = bounded(4, least=1)
    d_model: int = bounded(128, least=1)
    heads: int = bounded(8, least=1)
    kv_heads: int = bounded(0, least=0)
    head_dim: int = bounded(0, least=0)
    d_ff: int = bounded(0, least=0)
    vocab: int = bounded(256, least=1)
    length: int = bounded(128, least=1)
    rotary_base: float = bounded(10_000.0, above=1)
    # The default stays as it is: a run's configuration without this key is of a model with 1e-5.
    norm_epsilon: float = bounded(EPSILON, above=0, below=1)
    dropout: float = bounded(0.0, least=0, below=1)
    z_loss: float = bounded(0.0, least=0)
    loss_chunk: int = bounded(0, least=0)
    remat: str = chosen("full", REMATS)

    def __post_init__(self):
        super().__post_init__()
        if not self.head_dim and self.d_model % self.heads:
            raise md.MeshDSLError(
                f"model: d_model={self.d_model} does not divide into heads={self.heads}; set "
                "head_dim"
            )
        if self.kv_heads and self.heads % self.kv_heads:
            raise md.MeshDSLError(
                f"model: heads={self.heads} is not a multiple of kv_heads={self.kv_heads}"
            )
        if STYLES[self.style].rotary and self.dims["head_dim"].size % 2:
            raise md.MeshDSLError(
                f"model: rotary positions need an even head_dim, not {self.dims['head_dim'].size}"
            )

    @property
    def dims(self) -> dict[str, md.Dim]:
        """Every dim of the model but `batch`, by name."""
        grouped = 0 < self.kv_heads < self.heads
        sizes = {
            "layers": self.layers,
            "d_model": self.d_model,
            **(
                {"kv_heads": self.kv_heads, "group": self.heads // self.kv_heads}
                if grouped
                else {"heads": self.heads}
            ),
            "head_dim": self.head_dim or self.d_model // self.heads,
            "d_ff": self.d_ff
            or (
                4 * self.d_model if self.style == "gpt2" else -(-8 * self.d_model // (3 * 64)) * 64
            ),
            "vocab": self.vocab,
            "length": self.length,
            "memory": self.length,
            "queries": self.length,
            **({} if STYLES[self.style].rotary else {"positions": self.length}),
        }
        return {name: md.Dim(name, size) for name, size in sizes.items()}

    def batch(self, rows: md.Dim) -> dict[str, md.Tensor]:
        """`tokens` and `targets` (batch, length; int32)."""
        field = md.abstract((rows, self.dims["length"]), jnp.int32)
        return {"tokens": field, "targets": field}

    def init(self, key) -> Transformer:
        return Transformer.init(key, self)

    def loss(
        self,
        model: Transformer,
        batch: dict[str, md.Tensor],
        key,
        *,
        output=jnp.float32,
        offload: Iterable[str] = (),
    ) -> tuple[md.Tensor, dict[str, md.Tensor]]:
        """See `Transformer.loss`. A batch may have `segments` and `positions` too."""
        return model.loss(**batch, key=key, output=output, offload=offload)

    def evaluate(
        self, model: Transformer, batch: dict[str, md.Tensor], *, output=jnp.float32
    ) -> md.Average:
        """The cross-entropy in nats per target, without the z-loss."""
        nats = model.nats(**batch, output=output)
        return md.Average(md.sum(nats), md.sum(md.cast(batch["targets"] >= 0, jnp.int32)))

    def step_flops(self, rows: int) -> tuple[float, float]:
        """FLOPs of a step: causal attention counted half, and in full.

        Six per token and parameter of a matrix (two forward, four backward), and as many for each
        pair of positions that meet in attention; what is recomputed does not count (Chowdhery et
        al., 2022, appendix B). Looking up an embedding is no product; an output layer that shares
        its table is one.
        """
        d, tokens = {name: dim.size for name, dim in self.dims.items()}, rows * self.length
        kv = (self.kv_heads or self.heads) * d["head_dim"]
        queries = self.heads * d["head_dim"]
        mlp = (2 if self.style == "gpt2" else 3) * d["d_model"] * d["d_ff"]
        layer = d["d_model"] * (2 * queries + 2 * kv) + mlp
        matrices = self.layers * layer + d["d_model"] * d["vocab"]
        attention = self.layers * 2 * queries * self.length
        return 6.0 * tokens * (matrices + attention / 2), 6.0 * tokens * (matrices + attention)


class Block(PyTreeNode):
    """Attention, then a feed-forward layer: each of a norm of `x`, and added to `x`."""

    attention_norm: Norm
    attention: Attention
    mlp_norm: Norm
    mlp: MLP | SwiGLU

    @classmethod
    def init(cls, key, config: Config):
        style, dims = STYLES[config.style], config.dims
        attention, mlp = jax.random.split(key)
        d_model, head_dim, d_ff = dims["d_model"], dims["head_dim"], dims["d_ff"]
        heads, group = dims.get("heads") or dims["kv_heads"], dims.get("group")
        # GPT-2: what is added to the residual stream starts smaller the more layers add to it.
        shrink = (2 * config.layers) ** -0.5
        query_size = head_dim.size * config.heads
        return cls(
            attention_norm=NORMS[style.norm].init(d_model, epsilon=config.norm_epsilon),
            attention=Attention.init(
                attention,
                d_model,
                heads,
                head_dim,
                group,
                bias=style.bias,
                out_std=shrink * query_size**-0.5,
            ),
            mlp_norm=NORMS[style.norm].init(d_model, epsilon=config.norm_epsilon),
            mlp=MLPS[style.mlp].init(
                mlp, d_model, d_ff, bias=style.bias, out_std=shrink * d_ff.size**-0.5
            ),
        )

    def __call__(
        self, x: md.Tensor, length: md.Dim, turn, dropout, documents: Documents | None = None
    ) -> tuple[md.Tensor, Cache]:
        how = {"length": length, "rotary": turn, "documents": documents}
        attended, cache = self.attention.prefill(self.attention_norm(x), **how)
        x = x + dropout(attended, 0)
        return x + dropout(self.mlp(self.mlp_norm(x)), 1), cache

    def step(
        self, x: md.Tensor, cache: Cache, position: md.Tensor, turn, layer: md.Tensor
    ) -> tuple[md.Tensor, Cache]:
        attended, cache = self.attention.step(self.attention_norm(x), cache, position, turn, layer)
        x = x + attended
        return x + self.mlp(self.mlp_norm(x)), cache


class Transformer(PyTreeNode):
    """A language model.

    `model(tokens)` gives logits, and `model.loss(tokens, targets)` is what training makes smaller.
    """

    embedding: Embedding
    positions: Embedding | None
    blocks: Stack
    norm: Norm
    head: Linear | None
    config: Config = struct.field(pytree_node=False)

    @classmethod
    def init(cls, key, config: Config):
        style, dims = STYLES[config.style], config.dims
        embedding, positions, blocks, head = jax.random.split(key, 4)
        vocab, d_model = dims["vocab"], dims["d_model"]
        return cls(
            embedding=Embedding.init(embedding, vocab, d_model),
            positions=None
            if style.rotary
            else Embedding.init(positions, dims["positions"], d_model),
            blocks=Stack.init(
                blocks, lambda k: Block.init(k, config), dims["layers"], remat=config.remat
            ),
            norm=NORMS[style.norm].init(d_model, epsilon=config.norm_epsilon),
            head=None if style.tied else Linear.init(head, (d_model,), (vocab,)),
            config=config,
        )

    def __call__(
        self,
        tokens: md.Tensor,
        *,
        segments=None,
        positions=None,
        key=None,
        offload: Iterable[str] = (),
    ) -> md.Tensor:
        """Logits over `vocab` for each of `tokens` (batch, length).

        Args:
          segments: which document of its sequence each token belongs to (batch, length; int32);
            documents do not see each other.
          positions: of each token in its document (batch, length; int32); by default in its
            sequence.
          key: a JAX PRNG key; with it, dropout is on.
          offload: what waits for the backward pass in the memory of the host, see `Stack.scan`.
        """
        return self._logits(self._hidden(tokens, segments, positions, key, offload))

    def _hidden(self, tokens, segments, positions, key=None, offload=()) -> md.Tensor:
        """What the last block gives for each of `tokens`; see `__call__`."""
        length, count = self._fitting(tokens), self.config.layers + 1
        keys = [None] * count if key is None else jax.random.split(key, count)
        positions = md.iota(length) if positions is None else positions
        x = self._drop(self._embed(tokens, positions), keys[-1], 0)
        turn = self._turn(positions)
        documents = None if segments is None else Documents.of(segments)

        def block(layer: Block, x, key):
            dropout = lambda y, place: self._drop(y, key, place)
            x, _ = layer(x, length, turn, dropout, documents)
            return x, ()

        x, _ = self.blocks.scan(block, x, None if key is None else keys[:-1], offload=offload)
        return x

    def loss(
        self,
        tokens: md.Tensor,
        targets: md.Tensor,
        *,
        segments=None,
        positions=None,
        key=None,
        output=jnp.float32,
        offload: Iterable[str] = (),
    ) -> tuple[md.Tensor, dict[str, md.Tensor]]:
        """The mean cross-entropy of `targets` in nats per token, plus the z-loss.

        With `segments`, a target of -1 counts nothing. Sums are still divided by the number of all
        tokens, so that means over microbatches are exact.

        Args:
          segments, positions, key, offload: as for `__call__`.
          output: dtype that the logits are rounded to. The loss is computed in float32.

        Returns:
          The loss, and a report: `cross_entropy` without the z-loss and, with `segments`,
          `trained`, the fraction of tokens that have a target. Per such token the cross-entropy is
          `cross_entropy / trained`.
        """
        x = self._hidden(tokens, segments, positions, key, offload)
        nats, normaliser = self._nats(x, targets, output)
        trained = None if segments is None else targets >= 0
        cross_entropy = md.mean(nats if trained is None else md.where(trained, nats, 0.0))
        loss, report = cross_entropy, {"cross_entropy": cross_entropy}
        if self.config.z_loss:
            square = md.square(normaliser)
            loss = loss + self.config.z_loss * md.mean(
                square if trained is None else md.where(trained, square, 0.0)
            )
        if trained is not None:
            report["trained"] = md.mean(md.cast(trained, jnp.float32))
        return loss, report

    def nats(
        self,
        tokens: md.Tensor,
        targets: md.Tensor,
        *,
        segments=None,
        positions=None,
        output=jnp.float32,
    ) -> md.Tensor:
        """The cross-entropy of each target in nats (batch, length), without dropout.

        A target of -1 has 0.
        """
        x = self._hidden(tokens, segments, positions)
        return md.where(targets >= 0, self._nats(x, targets, output)[0], 0.0)

    def _nats(self, x: md.Tensor, targets: md.Tensor, output) -> tuple[md.Tensor, md.Tensor]:
        """The cross-entropy of each target, and the log-normaliser.

        Logits that are split over `vocab` stay so: only sums over it travel.

        Args:
          x: what the last block gives.
          output: dtype that the logits are rounded to.
        """
        if self.config.loss_chunk:
            x, head = self.norm(x), self.head
            weight = md.cast(self.embedding.table, x.dtype) if head is None else head.weight
            narrower = min(x.dtype, jnp.dtype(output), key=lambda dtype: dtype.itemsize)
            chunk = self.config.loss_chunk
            return md.cross_entropy(x, weight, targets, chunk=chunk, dtype=narrower)
        logits = md.cast(md.cast(self._logits(x), output), jnp.float32)
        vocab = logits.dim("vocab")
        normaliser = md.logsumexp(logits, vocab)
        chosen = md.sum(md.where(md.one_hot(targets, vocab, bool), logits, 0.0), vocab)
        return normaliser - chosen, normaliser

    def prefill(
        self, tokens: md.Tensor, last: md.Tensor, memory: md.Dim
    ) -> tuple[md.Tensor, Cache]:
        """Read whole sequences: the logits after the token at `last`, and a cache to go on with.

        Args:
          tokens: dims batch, length.
          last: the position of the last token of each sequence (batch).
          memory: the positions that the cache has room for.

        Returns:
          The logits (batch, vocab) and every layer's cache. What the cache has beyond `last` means
          nothing; a later step writes a position before any reads it.
        """
        length = self._fitting(tokens)
        turn = self._turn(md.iota(length))
        empty = memory.size - length.size

        def kept(t: md.Tensor) -> md.Tensor:
            # A step multiplies over the last two dims: so it reads the cache as it lies.
            last = t.dim("memory"), t.dim("head_dim")
            order = (*(d for d in t.dims if d not in last), *last)
            return md.pad(md.transpose(t, order), "memory", after=empty)

        def block(layer: Block, x, _):
            x, cache = layer(x, length, turn, lambda y, place: y)
            return x, jax.tree.map(kept, cache, is_leaf=is_tensor)

        x, cache = self.blocks.scan(block, self._embed(tokens, md.iota(length)))
        return self._logits(md.take(x, last, length)), cache

    def step(self, tokens: md.Tensor, cache: Cache, position: md.Tensor) -> tuple[md.Tensor, Cache]:
        """Read one token of each sequence, which stands at its `position` (both of dims batch).

        Returns:
          The logits (batch, vocab), and the cache with this position. A program that donates
          `cache`, or carries it in a loop, writes this position alone.
        """
        turn = self._turn(position)

        def block(layer: Block, carry, number):
            x, cache = carry
            return layer.step(x, cache, position, turn, number), ()

        carry = self._embed(tokens, position), cache
        (x, cache), _ = self.blocks.scan(block, carry, md.iota(self.blocks.layers))
        return self._logits(x), cache

    def _fitting(self, tokens: md.Tensor) -> md.Dim:
        """The length dim of `tokens`, after checking that the model reaches that far."""
        length = tokens.dim("length")
        if length.size > self.config.length:
            raise md.MeshDSLError(
                f"model: tokens of {length} are longer than the model's length={self.config.length}"
            )
        return length

    def _embed(self, tokens, positions) -> md.Tensor:
        x = self.embedding(tokens)
        return x if self.positions is None else x + self.positions(positions)

    def _turn(self, positions):
        if not STYLES[self.config.style].rotary:
            return None
        return angles(positions, self.config.dims["head_dim"], self.config.rotary_base)

    def _logits(self, x) -> md.Tensor:
        x = self.norm(x)
        return self.embedding.logits(x) if self.head is None else self.head(x)

    def _drop(self, x, key, place: int) -> md.Tensor:
        """Dropout, with other random numbers at each `place` of a layer."""
        if key is None or not self.config.dropout:
            return x
        return md.dropout(x, self.config.dropout, jax.random.fold_in(key, place))
