"""A vision transformer (Dosovitskiy et al., 2021): the class of an image from its patches.

Dims: batch, height, width, colors, kernel_height, kernel_width, length (patches and one token of
the class), positions, d_model, heads, head_dim, memory, queries, d_ff, layers and classes.
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
from meshdsl.fields import bounded, chosen
from meshdsl.layers.attention import Attention
from meshdsl.layers.conv import Conv
from meshdsl.layers.linear import Linear
from meshdsl.layers.loss import classification_loss
from meshdsl.layers.mlp import MLP
from meshdsl.layers.norm import LayerNorm
from meshdsl.layers.stack import REMATS, Stack
from meshdsl.models.architecture import ACTIVATIONS

_LARGE = {"layers": 24, "d_model": 1024, "heads": 16, "d_ff": 4096}


@dataclass(frozen=True)
class Config(md.Family):
    """Sizes of a vision transformer.

    Attributes:
      height: of the images, in pixels.
      width: of the images, in pixels.
      colors: channels of the images.
      patch: height and width of the patches that an image is cut into.
      classes: how many there are.
      layers: how many blocks.
      d_model: features of a patch.
      heads: of attention; they share d_model.
      d_ff: the size between the matrices of the feed-forward layer.
      activation: of the feed-forward layer.
      query_bias: queries, keys and values have biases.
      norm_epsilon: what norms add to the variance before they take its root.
      dropout: the rate of dropout after the embedding and each sublayer.
      remat: what is kept of each block for the backward pass, see `md.checkpoint`; `none` for all,
        and `auto` for the fastest that fits `memory`.
    """

    task: ClassVar[str] = "images"
    sizes: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "vit-base-16": {"patch": 16},
        "vit-base-32": {"patch": 32},
        "vit-large-16": _LARGE,
        "vit-large-32": {**_LARGE, "patch": 32},
        "vit-huge-14": {"layers": 32, "d_model": 1280, "heads": 16, "d_ff": 5120, "patch": 14},
    }

    height: int = bounded(224, least=1)
    width: int = bounded(224, least=1)
    colors: int = bounded(3, least=1)
    patch: int = bounded(16, least=1)
    classes: int = bounded(1000, least=1)
    layers: int = bounded(12, least=1)
    d_model: int = bounded(768, least=1)
    heads: int = bounded(12, least=1)
    d_ff: int = bounded(3072, least=1)
    activation: str = chosen("gelu_exact", tuple(ACTIVATIONS))
    query_bias: bool = True
    norm_epsilon: float = bounded(1e-12, above=0, below=1)
    dropout: float = bounded(0.0, least=0, below=1)
    remat: str = chosen("full", REMATS)

    def __post_init__(self):
        super().__post_init__()
        if self.d_model % self.heads:
            raise md.MeshDSLError(
                f"model: d_model={self.d_model} does not divide into heads={self.heads}"
            )
        if self.height % self.patch or self.width % self.patch:
            raise md.MeshDSLError(
                f"model: an image of height={self.height} and width={self.width} is not cut into "
                f"square patches of patch={self.patch}"
            )

    @property
    def dims(self) -> dict[str, md.Dim]:
        """Every dim of the model but `batch`, by name."""
        length = (self.height // self.patch) * (self.width // self.patch) + 1
        sizes = {
            "height": self.height,
            "width": self.width,
            "colors": self.colors,
            "layers": self.layers,
            "d_model": self.d_model,
            "heads": self.heads,
            "head_dim": self.d_model // self.heads,
            "d_ff": self.d_ff,
            **dict.fromkeys(("length", "memory", "queries", "positions"), length),
            "classes": self.classes,
        }
        return {name: md.Dim(name, size) for name, size in sizes.items()}

    def batch(self, rows: md.Dim) -> dict[str, md.Tensor]:
        """`image` (batch, height, width, colors) and `label` (batch)."""
        image = (rows, *(self.dims[name] for name in ("height", "width", "colors")))
        label = md.abstract((rows,), jnp.int32)
        return {"image": md.abstract(image, jnp.float32), "label": label}

    def init(self, key) -> ViT:
        return ViT.init(key, self)

    def loss(self, model: ViT, batch: dict[str, md.Tensor], key):
        return classification_loss(model(batch["image"], key=key), batch["label"], "classes")


class Block(PyTreeNode):
    """Attention and a feed-forward layer, each with a norm before it."""

    attention_norm: LayerNorm
    attention: Attention
    mlp_norm: LayerNorm
    mlp: MLP

    @classmethod
    def init(cls, key, config: Config):
        attention, mlp = jax.random.split(key)
        dims, epsilon = config.dims, config.norm_epsilon
        d_model, heads, head_dim = dims["d_model"], dims["heads"], dims["head_dim"]
        biased = ("query", "key", "value", "out") if config.query_bias else ("out",)
        return cls(
            attention_norm=LayerNorm.init(d_model, epsilon=epsilon),
            attention=Attention.init(attention, d_model, heads, head_dim, bias=biased),
            mlp_norm=LayerNorm.init(d_model, epsilon=epsilon),
            mlp=MLP.init(
                mlp, d_model, dims["d_ff"], bias=True, activation=ACTIVATIONS[config.activation]
            ),
        )

    def __call__(self, x: md.Tensor, rate: float, key=None) -> md.Tensor:
        first, second = (None, None) if key is None else jax.random.split(key)
        x = x + _dropped(self.attention(self.attention_norm(x)), rate, first)
        return x + _dropped(self.mlp(self.mlp_norm(x)), rate, second)


class ViT(PyTreeNode):
    """Patches behind a token of the class, blocks, and a matrix that reads that token."""

    patches: Conv
    token: md.Tensor
    positions: md.Tensor
    blocks: Stack
    norm: LayerNorm
    head: Linear
    config: Config = struct.field(pytree_node=False)

    @classmethod
    def init(cls, key, config: Config):
        dims, sides = config.dims, ("height", "width")
        patches, token, positions, blocks, head = jax.random.split(key, 5)
        d_model = dims["d_model"]
        kernel = dims["colors"], *(md.Dim(f"kernel_{side}", config.patch) for side in sides)
        return cls(
            patches=Conv(
                weight=md.normal(patches, (*kernel, d_model), ins=kernel),
                bias=md.zeros(d_model),
                spatial=sides,
                outs=(d_model,),
                stride=config.patch,
            ),
            token=md.normal(token, d_model, std=0.02),
            positions=md.normal(positions, (dims["positions"], d_model), std=0.02),
            blocks=Stack.init(
                blocks, lambda key: Block.init(key, config), dims["layers"], remat=config.remat
            ),
            norm=LayerNorm.init(d_model, epsilon=config.norm_epsilon),
            head=Linear.init(head, d_model, dims["classes"], bias=True),
            config=config,
        )

    def __call__(self, image: md.Tensor, *, key=None) -> md.Tensor:
        """Logits of the classes of an `image` (batch, height, width, colors).

        Args:
          key: for dropout; without one there is none.
        """
        config, length = self.config, self.config.dims["length"]
        first, later = (None, None) if key is None else jax.random.split(key)
        x = self.patches(image)
        rest = tuple(d for d in x.dims if d.name not in ("height", "width", "d_model"))
        x = md.reshape(x, (*rest, md.Dim("length", length.size - 1), x.dim("d_model")))
        x = md.pad(x, "length", before=1)
        begins = md.iota(length) == 0
        x = md.where(begins, md.cast(self.token, x.dtype), x)
        x = x + md.cast(md.rename(self.positions, "positions", length), x.dtype)
        x = self.blocks(_dropped(x, config.dropout, first), config.dropout, key=later)
        return self.head(self.norm(x["length", 0]))


def _dropped(x: md.Tensor, rate: float, key) -> md.Tensor:
    return x if key is None or not rate else md.dropout(x, rate, key)
