"""A decoder-only transformer of the published kinds: GPT-2, Llama, Qwen, Gemma and others.

`meshdsl.models.architecture` has a setting for each choice that a model makes; a style is a set of
defaults. `gpt2` has LayerNorm, learned positions, GELU, biases, and the embedding shared with the
output layer. `llama` has RMSNorm, rotary positions, SwiGLU, grouped-query attention, no biases, and
an output layer of its own. The other styles differ from `llama` as `STYLES` says.

Dims: batch, length, d_model, heads (or kv_heads and group in grouped-query attention), head_dim,
memory (the length, as keys see it), d_ff, vocab, layers and, with learned positions, positions.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from flax import struct
from flax.struct import PyTreeNode

import meshdsl as md
from meshdsl.fields import AUTO, bounded, chosen
from meshdsl.layers.attended import Cache, Documents
from meshdsl.layers.embedding import Embedding
from meshdsl.layers.experts import Load
from meshdsl.layers.linear import Linear
from meshdsl.layers.norm import Norm
from meshdsl.layers.stack import REMATS, Stack
from meshdsl.models.architecture import STYLES, Architecture
from meshdsl.models.block import Block, figures_of
from meshdsl.models.initial_layers import new_norm
from meshdsl.models.layer_kinds import Kinds
from meshdsl.models.sizes import SIZES
from meshdsl.tensor import is_tensor


@dataclass(frozen=True)
class Config(Architecture):
    """Sizes and choices of a transformer.

    Attributes:
      dropout: the rate of dropout after the embedding and each sublayer.
      z_loss: weight of the squared log-normaliser in the loss (Chowdhery et al., 2022).
      balance_loss: weight of the loss that balances experts, by sequence (Fedus et al., 2021).
      router_z_loss: weight of the squared log-normaliser of routers (Zoph et al., 2022).
      remat: what is kept of each block for the backward pass, which computes the rest again: its
        input alone (`full`); and what attention gives (`attention`); and queries, keys and values
        (`qkv`); and the products that the feed-forward layer begins with (`hidden`); and all other
        matrix products (`dots`); and all else but what was gathered from other devices
        (`gathers`); or everything (`none`). `auto`: what makes the fastest step that fits
        `memory`.
      loss_chunk: the most tokens of a device whose logits are in memory at a time, while the loss
        is computed; 0: those of all tokens. With a number, the backward pass computes the logits
        again. `auto`: what makes the fastest step that fits `memory`.

    The model computes in the dtype of its parameters as they are given; norms, softmax and loss are
    computed in float32.
    """

    # A size by name, and each style, which leaves everything else as it is. Published sizes compute
    # in bfloat16, as they were trained.
    sizes: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        **{name: {"precision.compute": "bfloat16", **size} for name, size in SIZES.items()},
        **{style: {"style": style} for style in STYLES},
    }

    dropout: float = bounded(0.0, least=0, below=1)
    z_loss: float = bounded(0.0, least=0)
    balance_loss: float = bounded(0.01, least=0)
    router_z_loss: float = bounded(0.0, least=0)
    remat: str = chosen(AUTO, REMATS)
    loss_chunk: int | str = bounded(AUTO, least=0, tries=(0, 4096, 2048))

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


class Transformer(PyTreeNode):
    """A language model.

    `model(tokens)` gives logits, and `model.loss(tokens, targets)` is what training makes smaller.

    Attributes:
      first: the blocks without experts that come before the others; None for none.
    """

    embedding: Embedding
    positions: Embedding | None
    first: Stack | None
    blocks: Stack
    norm: Norm
    head: Linear | None
    config: Config = struct.field(pytree_node=False)

    @classmethod
    def init(cls, key, config: Config):
        dims = config.dims
        embedding, positions, blocks, head = jax.random.split(key, 4)
        vocab, d_model = dims["vocab"], dims["d_model"]
        stack = lambda key, dim, dense: Stack.init(
            key, lambda k: Block.init(k, config, dense=dense), dims[dim], remat=config.remat
        )
        first, places = jax.random.fold_in(blocks, 0), dims.get("positions")
        return cls(
            embedding=Embedding.init(embedding, vocab, d_model),
            positions=None if places is None else Embedding.init(positions, places, d_model),
            first=stack(first, "first_layers", True) if config.dense_layers else None,
            blocks=stack(blocks, "layers", False),
            norm=new_norm(config, d_model),
            head=None if config.tables_tied else Linear.init(head, (d_model,), (vocab,)),
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
        reach=None,
    ) -> md.Tensor:
        """Logits over `vocab` for each of `tokens` (batch, length).

        Args:
          segments: which document of its sequence each token belongs to (batch, length; int32);
            documents do not see each other.
          positions: of each token in its document (batch, length; int32); by default in its
            sequence.
          key: a JAX PRNG key; with it, dropout is on.
          offload: names of values that are kept in the memory of the host until the backward pass,
            see `Stack.scan`.
          reach: how many tokens each text has (batch; int32), which `rotary_scaling=longrope` and
            `dynamic` go by; by default as many as there are of `tokens`.
        """
        hidden, _ = self._hidden(tokens, segments, positions, key, offload, reach=reach)
        return self._logits(hidden)

    def _hidden(
        self,
        tokens,
        segments,
        positions,
        key=None,
        offload=(),
        *,
        reach=None,
        with_load: bool = False,
    ) -> tuple[md.Tensor, Load | None]:
        """The result of the last block for each of `tokens`, and how experts were used.

        The `Load` has `layers` in front; it is None without experts, or without `with_load`.
        """
        length, count = self._fitting(tokens), self.config.layers + 1
        keys = [None] * count if key is None else jax.random.split(key, count)
        positions = md.iota(length) if positions is None else positions
        x = self._drop(self._embed(tokens, positions), keys[-1], 0)
        kinds = Kinds.of(self.config, positions, lambda: length.size if reach is None else reach)
        documents = None if segments is None else Documents.of(segments)

        def block(layer: Block, x, given):
            key, local = given
            x, _, load = layer(
                x,
                length,
                lambda y, place: self._drop(y, key, place),
                documents=documents,
                causal=self.config.causal,
                with_load=with_load,
                **kinds.options(some, local),
            )
            return x, load

        load = None
        for stack, some in self._stacks():
            given = None if key is None else keys[some], kinds.local(stack, some)
            x, load = stack.scan(block, x, given, offload=offload)
        return x, load

    def _stacks(self) -> list[tuple[Stack, slice]]:
        """The blocks in their order, and which of all layers each stack has."""
        count = self.config.dense_layers
        first = [] if self.first is None else [(self.first, slice(0, count))]
        return [*first, (self.blocks, slice(count, self.config.layers))]

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
        x, load = self._hidden(tokens, segments, positions, key, offload, with_load=True)
        nats, normaliser = self._nats(x, targets, output)
        trained = None if segments is None else targets >= 0
        mean = lambda x: md.mean(x if trained is None else md.where(trained, x, 0.0))
        loss = mean(nats)
        report = {"cross_entropy": loss}
        if self.config.z_loss:
            loss = loss + self.config.z_loss * mean(md.square(normaliser))
        if trained is not None:
            report["trained"] = md.mean(md.cast(trained, jnp.float32))
        if load is not None:
            loss = loss + self.config.balance_loss * md.mean(load.balance)
            if self.config.router_z_loss:
                loss = loss + self.config.router_z_loss * md.mean(load.z)
            if load.settling is not None:
                loss = loss + md.sum(load.settling)
            report |= figures_of(load)
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
        x, _ = self._hidden(tokens, segments, positions)
        return md.where(targets >= 0, self._nats(x, targets, output)[0], 0.0)

    def _nats(self, x: md.Tensor, targets: md.Tensor, output) -> tuple[md.Tensor, md.Tensor]:
        """The cross-entropy of each target, and the log-normaliser.

        Logits that are split over `vocab` stay so: only sums over it travel.

        Args:
          x: the result of the last block.
          output: the dtype to which the logits are rounded.
        """
        chunk = self.config.loss_chunk
        if isinstance(chunk, int) and chunk > 0:
            x, head = self.norm(x), self.head
            weight = md.cast(self.embedding.table, x.dtype) if head is None else head.weight
            narrower = min(x.dtype, jnp.dtype(output), key=lambda dtype: dtype.itemsize)
            cap = self.config.logit_softcap or None
            return md.cross_entropy(x, weight, targets, softcap=cap, chunk=chunk, dtype=narrower)
        logits = md.cast(md.cast(self._logits(x), output), jnp.float32)
        vocab = logits.dim("vocab")
        normaliser = md.logsumexp(logits, vocab)
        chosen = md.sum(md.where(md.one_hot(targets, vocab, bool), logits, 0.0), vocab)
        return normaliser - chosen, normaliser

    def prefill(
        self,
        tokens: md.Tensor,
        last: md.Tensor,
        memory: md.Dim,
        reach: md.Tensor | None = None,
    ) -> tuple[md.Tensor, tuple[Cache, ...]]:
        """Read whole sequences: the logits after the token at `last`, and a cache to go on with.

        Args:
          tokens: dims batch, length.
          last: the position of the last token of each sequence (batch).
          memory: the positions that the cache has room for.
          reach: as for a call; by default `last` and one more.

        Returns:
          The logits (batch, vocab) and the cache of the layers of each stack. Positions after
          `last` hold no meaning: a later step writes a position before any step reads it.
        """
        length = self._fitting(tokens)
        kinds = Kinds.of(self.config, md.iota(length), lambda: last + 1 if reach is None else reach)
        empty = memory.size - length.size

        def kept(t: md.Tensor) -> md.Tensor:
            # A step multiplies over the last two dims, and can read a cache in this order as it is.
            last = t.dim("memory"), t.dims[-1]
            order = (*(d for d in t.dims if d not in last), *last)
            return md.pad(md.transpose(t, order), "memory", after=empty)

        def block(layer: Block, x, local):
            x, cache, _ = layer(x, length, lambda y, place: y, **kinds.options(some, local))
            return x, jax.tree.map(kept, cache, is_leaf=is_tensor)

        x, caches = self._embed(tokens, md.iota(length)), []
        for stack, some in self._stacks():
            x, cache = stack.scan(block, x, kinds.local(stack, some))
            caches.append(cache)
        return self._logits(md.take(x, last, length)), tuple(caches)

    def step(
        self,
        tokens: md.Tensor,
        cache: tuple[Cache, ...],
        position: md.Tensor,
        reach: md.Tensor | None = None,
    ) -> tuple[md.Tensor, tuple[Cache, ...]]:
        """Read one token of each sequence, which stands at its `position` (both of dims batch).

        Args:
          reach: as for a call; by default `position` and one more.

        Returns:
          The logits (batch, vocab), and the cache with this position. A program that donates
          `cache`, or carries it in a loop, writes this position alone.
        """
        kinds = Kinds.of(self.config, position, lambda: position + 1 if reach is None else reach)

        def block(layer: Block, carry, given):
            (x, cache), (number, local) = carry, given
            options = kinds.options(some, local)
            return layer.step(x, cache, position, number, layers=stack.layers.name, **options), ()

        x, caches = self._embed(tokens, position), []
        for (stack, some), own in zip(self._stacks(), cache, strict=True):
            given = md.iota(stack.layers), kinds.local(stack, some)
            (x, own), _ = stack.scan(block, (x, own), given)
            caches.append(own)
        return self._logits(x), tuple(caches)

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
        if self.config.choice("embedding_scale") == "root":
            x = x * self.config.d_model**0.5
        return x if self.positions is None else x + self.positions(positions)

    def _logits(self, x) -> md.Tensor:
        x = self.norm(x)
        logits = self.embedding.logits(x) if self.head is None else self.head(x)
        if cap := self.config.logit_softcap:
            logits = md.tanh(logits / cap) * cap
        return logits

    def _drop(self, x, key, place: int) -> md.Tensor:
        """Dropout, with other random numbers at each `place` of a layer."""
        if key is None or not self.config.dropout:
            return x
        return md.dropout(x, self.config.dropout, jax.random.fold_in(key, place))
