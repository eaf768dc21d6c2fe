r"""A vision transformer (Dosovitskiy et al., 2021), as a family of models for the commands.

    meshdsl train --model examples/vit.py:ViT --layout fsdp --steps 300 \
      data.sources.digits.dataset=examples/digits.py:digits
    meshdsl explain --model examples/vit.py:ViT --layout tensor --target v5e:2x2 --batch 256
    meshdsl compile --model examples/vit.py:ViT/small --layout fsdp --target v5e:4x4 --batch 512
    meshdsl train --print-config --model examples/vit.py:ViT

The first takes less than a minute, and ends at 94% of the digits that it has not seen. The family
names dims and no devices, and its dims are called as in the shipped layouts, so those fit.
"""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
from flax.struct import PyTreeNode

import meshdsl as md
from meshdsl.fields import bounded, chosen
from meshdsl.layers import MLP, REMATS, Attention, Conv, Dropout, LayerNorm, Linear, Stack
from meshdsl.layers.loss import classification_loss


@dataclass(frozen=True)
class ViT(md.Family):
    """A vision transformer that says which class an image is of.

    Attributes:
      height: of the images, in pixels.
      width: of the images, in pixels.
      colors: channels of the images.
      classes: how many there are.
      patch: height and width of the patches that an image is cut into.
      layers: how many blocks.
      d_model: features of a patch.
      heads: of attention; they share d_model.
      d_ff: features inside of the feed-forward layers.
      dropout: the probability with which an element of what a layer adds is dropped.
      remat: what is kept of each block for the backward pass, see `md.checkpoint`; `none` for all,
        and `auto` for the fastest that fits `memory`.
    """

    task = "images"
    sizes = {
        "small": {
            **dict(d_model=384, heads=6, d_ff=1536, layers=12, patch=16),
            **dict(height=224, width=224, colors=3, classes=1000),
        }
    }

    height: int = bounded(8, least=1)
    width: int = bounded(8, least=1)
    colors: int = bounded(1, least=1)
    classes: int = bounded(10, least=2)
    patch: int = bounded(2, least=1)
    layers: int = bounded(4, least=1)
    d_model: int = bounded(64, least=1)
    heads: int = bounded(4, least=1)
    d_ff: int = bounded(128, least=1)
    dropout: float = bounded(0.1, least=0.0, below=1.0)
    remat: str = chosen("full", REMATS)

    def __post_init__(self):
        super().__post_init__()
        if self.height % self.patch or self.width % self.patch or self.d_model % self.heads:
            raise md.MeshDSLError("ViT: patch divides height and width, and heads d_model")

    def batch(self, rows):
        sizes = {"height": self.height, "width": self.width, "colors": self.colors}
        image = md.abstract((rows, *(md.Dim(*each) for each in sizes.items())), jnp.float32)
        return {"image": image, "label": md.abstract((rows,), jnp.int32)}

    def init(self, key):
        return Network.init(key, self)

    def loss(self, model, batch, key):
        return classification_loss(model(batch["image"], key), batch["label"], "classes")


class Block(PyTreeNode):
    """Attention and a feed-forward layer, each with a norm before it, and added to what came in."""

    attention_norm: LayerNorm
    attention: Attention
    mlp_norm: LayerNorm
    mlp: MLP
    dropout: Dropout

    @classmethod
    def init(cls, key, config: ViT):
        attention, mlp = jax.random.split(key)
        d_model, heads = md.Dim("d_model", config.d_model), md.Dim("heads", config.heads)
        head_dim = md.Dim("head_dim", config.d_model // config.heads)
        return cls(
            attention_norm=LayerNorm.init(d_model),
            attention=Attention.init(attention, d_model, heads, head_dim, bias=True),
            mlp_norm=LayerNorm.init(d_model),
            mlp=MLP.init(mlp, d_model, md.Dim("d_ff", config.d_ff), bias=True),
            dropout=Dropout(config.dropout),
        )

    def __call__(self, x, key=None):
        first, second = (None, None) if key is None else jax.random.split(key)
        x = x + self.dropout(self.attention(self.attention_norm(x)), first)
        return x + self.dropout(self.mlp(self.mlp_norm(x)), second)


class Network(PyTreeNode):
    """Patches, blocks, and the mean over patches, from which a matrix reads the class."""

    patches: Conv
    positions: md.Tensor
    blocks: Stack
    norm: LayerNorm
    head: Linear

    @classmethod
    def init(cls, key, config: ViT):
        patches, positions, blocks, head = jax.random.split(key, 4)
        d_model, size = md.Dim("d_model", config.d_model), config.patch
        length = md.Dim("length", (config.height // size) * (config.width // size))
        return cls(
            patches=Conv.init(
                patches,
                {"height": size, "width": size},
                md.Dim("colors", config.colors),
                d_model,
                stride=size,
                bias=True,
            ),
            positions=md.normal(positions, (length, d_model), std=0.02),
            blocks=Stack.init(
                blocks,
                lambda key: Block.init(key, config),
                md.Dim("layers", config.layers),
                remat=config.remat,
            ),
            norm=LayerNorm.init(d_model),
            head=Linear.init(head, d_model, md.Dim("classes", config.classes), bias=True),
        )

    def __call__(self, image, key=None):
        """Logits of the classes; `key` is for dropout, and without one there is none."""
        x = self.patches(image)
        x = md.reshape(x, (x.dims[0], self.positions.dims[0], x.dims[-1])) + self.positions
        x = self.blocks(x, key=key)
        return self.head(self.norm(md.mean(x, "length")))
