"""What BERT and ViT have in common: their sizes, and blocks that see both ways."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import jax
from flax import struct
from flax.struct import PyTreeNode

import meshdsl as md
from meshdsl.fields import AUTO, bounded, chosen
from meshdsl.layers.attention import Attention
from meshdsl.layers.dropout import Dropout
from meshdsl.layers.mlp import MLP
from meshdsl.layers.norm import LayerNorm
from meshdsl.layers.stack import REMATS, Stack
from meshdsl.models.architecture import ACTIVATIONS

LARGE = {"layers": 24, "d_model": 1024, "heads": 16, "d_ff": 4096}


@dataclass(frozen=True)
class EncoderConfig(md.Family):
    """Sizes of an encoder.

    Attributes:
      layers: how many blocks.
      d_model: features of each position.
      heads: of attention; they share d_model.
      d_ff: the size between the matrices of the feed-forward layer.
      activation: of the feed-forward layer.
      norm_epsilon: what norms add to the variance before they take its root.
      dropout: the rate of dropout after the embedding and each sublayer.
      remat: what is kept of each block for the backward pass, see `md.checkpoint`; `none` for all,
        and `auto` for the fastest that fits `memory`.
    """

    layers: int = bounded(12, least=1)
    d_model: int = bounded(768, least=1)
    heads: int = bounded(12, least=1)
    d_ff: int = bounded(3072, least=1)
    activation: str = chosen("gelu_exact", tuple(ACTIVATIONS))
    norm_epsilon: float = bounded(1e-12, above=0, below=1)
    dropout: float = bounded(0.0, least=0, below=1)
    remat: str = chosen(AUTO, REMATS)

    def __post_init__(self):
        super().__post_init__()
        if self.d_model % self.heads:
            raise md.MeshDSLError(
                f"model: d_model={self.d_model} does not divide into heads={self.heads}"
            )

    def dims_of(self, length: int, **others: int) -> dict[str, md.Dim]:
        """The dims of all blocks for sequences of that length, and `others`, by name."""
        sizes = {
            "layers": self.layers,
            "d_model": self.d_model,
            "heads": self.heads,
            "head_dim": self.d_model // self.heads,
            "d_ff": self.d_ff,
            **dict.fromkeys(("length", "memory", "queries", "positions"), length),
            **others,
        }
        return {name: md.Dim(name, size) for name, size in sizes.items()}

    def new_norm(self) -> LayerNorm:
        """A norm of the features as it is before training."""
        return LayerNorm.init(md.Dim("d_model", self.d_model), epsilon=self.norm_epsilon)


class Block(PyTreeNode):
    """Attention and a feed-forward layer, each with a norm.

    Attributes:
      after: the norms are of the sums that the sublayers are added to, and not of what sublayers
        are given.
    """

    attention_norm: LayerNorm
    attention: Attention
    mlp_norm: LayerNorm
    mlp: MLP
    after: bool = struct.field(pytree_node=False, default=False)

    @classmethod
    def init(
        cls, key, config: EncoderConfig, *, biases: tuple[str, ...], after: bool = False
    ) -> Block:
        """`biases`: the names of the linear layers of attention that have one."""
        attention, mlp = jax.random.split(key)
        dims, activation = config.dims_of(1), ACTIVATIONS[config.activation]
        d_model, heads, head_dim = dims["d_model"], dims["heads"], dims["head_dim"]
        return cls(
            attention_norm=config.new_norm(),
            attention=Attention.init(attention, d_model, heads, head_dim, bias=biases),
            mlp_norm=config.new_norm(),
            mlp=MLP.init(mlp, d_model, dims["d_ff"], bias=True, activation=activation),
            after=after,
        )

    def __call__(self, x: md.Tensor, rate: float, mask: md.Tensor | None = None, key=None):
        """The next `x`.

        Args:
          rate: of dropout, which there is with a `key`.
          mask: as for `Attention`.
        """
        first, second = (None, None) if key is None else jax.random.split(key)
        x = self._added(x, self.attention_norm, lambda h: self.attention(h, mask=mask), rate, first)
        return self._added(x, self.mlp_norm, self.mlp, rate, second)

    def _added(self, x, norm: LayerNorm, sublayer: Callable, rate: float, key) -> md.Tensor:
        given = x if self.after else norm(x)
        x = x + Dropout(rate)(sublayer(given), key)
        return norm(x) if self.after else x


def new_blocks(key, config: EncoderConfig, **how) -> Stack:
    """The blocks as they are before training; `how` is of `Block.init`."""
    layers = md.Dim("layers", config.layers)
    init = lambda key: Block.init(key, config, **how)
    return Stack.init(key, init, layers, remat=config.remat)
