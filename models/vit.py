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
from meshdsl.fields import bounded
from meshdsl.layers.conv import Conv
from meshdsl.layers.dropout import Dropout
from meshdsl.layers.linear import Linear
from meshdsl.layers.loss import classification_loss
from meshdsl.layers.norm import LayerNorm
from meshdsl.layers.stack import Stack
from meshdsl.models.encoder import LARGE, EncoderConfig, new_blocks
from meshdsl.models.families.decoder import ATTENTION


@dataclass(frozen=True)
class Config(EncoderConfig):
    """Sizes of a vision transformer.

    Attributes:
      height: of the images, in pixels.
      width: of the images, in pixels.
      colors: channels of the images.
      patch: height and width of the patches that an image is cut into.
      classes: how many there are.
      query_bias: queries, keys and values have biases.
    """

    task: ClassVar[str] = "images"
    sizes: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "vit-base-16": {"patch": 16},
        "vit-base-32": {"patch": 32},
        "vit-large-16": LARGE,
        "vit-large-32": {**LARGE, "patch": 32},
        "vit-huge-14": {"layers": 32, "d_model": 1280, "heads": 16, "d_ff": 5120, "patch": 14},
    }

    height: int = bounded(224, least=1)
    width: int = bounded(224, least=1)
    colors: int = bounded(3, least=1)
    patch: int = bounded(16, least=1)
    classes: int = bounded(1000, least=1)
    query_bias: bool = True

    def __post_init__(self):
        super().__post_init__()
        if self.height % self.patch or self.width % self.patch:
            raise md.MeshDSLError(
                f"model: an image of height={self.height} and width={self.width} is not cut into "
                f"square patches of patch={self.patch}"
            )

    @property
    def dims(self) -> dict[str, md.Dim]:
        """Every dim of the model but `batch`, by name."""
        length = (self.height // self.patch) * (self.width // self.patch) + 1
        sizes = {"height": self.height, "width": self.width, "colors": self.colors}
        return self.dims_of(length, **sizes, classes=self.classes)

    def batch(self, rows: md.Dim) -> dict[str, md.Tensor]:
        """`image` (batch, height, width, colors) and `label` (batch)."""
        image = (rows, *(self.dims[name] for name in ("height", "width", "colors")))
        label = md.abstract((rows,), jnp.int32)
        return {"image": md.abstract(image, jnp.float32), "label": label}

    def init(self, key) -> ViT:
        return ViT.init(key, self)

    def loss(self, model: ViT, batch: dict[str, md.Tensor], key):
        return classification_loss(model(batch["image"], key=key), batch["label"], "classes")


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
            blocks=new_blocks(blocks, config, biases=ATTENTION if config.query_bias else ("out",)),
            norm=config.new_norm(),
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
        x = self.patches(md.cast(image, self.head.weight.dtype))
        rest = tuple(d for d in x.dims if d.name not in ("height", "width", "d_model"))
        x = md.reshape(x, (*rest, md.Dim("length", length.size - 1), x.dim("d_model")))
        x = md.pad(x, "length", before=1)
        begins = md.iota(length) == 0
        x = md.where(begins, md.cast(self.token, x.dtype), x)
        x = x + md.cast(md.rename(self.positions, "positions", length), x.dtype)
        x = self.blocks(Dropout(config.dropout)(x, first), config.dropout, key=later)
        return self.head(self.norm(x["length", 0]))
