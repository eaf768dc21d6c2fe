"""A 2-D U-Net (Ronneberger, Fischer and Brox, 2015): from images to images of the same size.

On the way down each level halves height and width and doubles the channels; on the way up a
transposed convolution undoes that, and the image that went down at this level joins it. Every
convolution is followed by RMSNorm over the channels and SiLU, so pixels only meet in windows: split
over height and width, the model exchanges halos and nothing else.

Dims: batch, height, width, colors, outputs; channels, and names for channels where they change:
hidden (inside a block), deeper and shallow (on the way to the next level, down and up), joined.
Their sizes, and those of height and width, differ from level to level. Kernels have kernel_height
and kernel_width.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import jax
import jax.numpy as jnp
from flax import struct
from flax.struct import PyTreeNode

import meshdsl as md
from meshdsl.fields import bounded, chosen
from meshdsl.layers.conv import Conv, ConvTranspose
from meshdsl.layers.linear import Linear
from meshdsl.layers.norm import EPSILON, NORMS, Norm
from meshdsl.layers.stack import REMATS, recomputed
from meshdsl.ops.checkpoint import HIDDEN

HALVING = {"height": 2, "width": 2}


@dataclass(frozen=True)
class Config(md.Family):
    """Sizes of a U-Net, which takes the noise off images.

    Attributes:
      levels: how often height and width are halved.
      channels: at full size; twice as many at each level.
      kernel: size of the windows, in height and width.
      colors: channels of the images that go in.
      outputs: channels of the images that come out; training needs as many as `colors`.
      norm: which norm stands behind each convolution.
      norm_epsilon: what norms add to the mean square or the variance before they take its root.
      height: of the images that it is trained on, in pixels.
      width: of the images that it is trained on, in pixels.
      noise: standard deviation of the noise that training adds to them.
      remat: what is kept of each pair of convolutions for the backward pass, which computes the
        rest again: what goes in (`full`, and `attention` and `qkv`, of which there are none); and
        what the convolutions give (`hidden`); and all matrix products (`dots`); and all else but
        what was gathered from other devices (`gathers`); or everything (`none`). `auto`: the
        fastest of these that fits `memory`.
    """

    task: ClassVar[str] = "images"

    levels: int = bounded(2, least=0)
    channels: int = bounded(16, least=1)
    kernel: int = bounded(3, least=1)
    colors: int = bounded(1, least=1)
    outputs: int = bounded(1, least=1)
    norm: str = chosen("rms", tuple(NORMS))
    norm_epsilon: float = bounded(EPSILON, above=0, below=1)
    height: int = bounded(8, least=1)
    width: int = bounded(8, least=1)
    noise: float = bounded(0.5, least=0)
    remat: str = chosen("none", REMATS)

    def at(self, name: str, level: int) -> md.Dim:
        """The dim of the channels of `level`, as `name`."""
        return md.Dim(name, self.channels * 2**level)

    def batch(self, rows: md.Dim) -> dict[str, md.Tensor]:
        """`image` (batch, height, width, colors; float32)."""
        sizes = {"height": self.height, "width": self.width, "colors": self.colors}
        dims = (rows, *(md.Dim(name, size) for name, size in sizes.items()))
        return {"image": md.abstract(dims, jnp.float32)}

    def init(self, key) -> UNet:
        return UNet.init(key, self)

    def loss(self, model: UNet, batch: dict[str, md.Tensor], key) -> md.Tensor:
        """Mean squared error of the images that the model sees in the noise.

        The noise is the same under every layout. Without a key it is that of one fixed key, so that
        what is measured on held-out images can be compared.
        """
        clean, key = batch["image"], jax.random.key(0) if key is None else key
        noise = self.noise * md.random.normal(key, clean.dims, like=clean)
        seen = md.rename(model(clean + noise), "outputs", "colors")
        return md.mean(md.square(seen - clean))


class Block(PyTreeNode):
    """Two convolutions, each with a norm and a nonlinearity behind it."""

    first: Conv
    first_norm: Norm
    second: Conv
    second_norm: Norm
    remat: str = struct.field(pytree_node=False, default="none")

    @classmethod
    def init(cls, key, config: Config, ins: md.Dim, level: int):
        first, second = jax.random.split(key)
        sizes = {"height": config.kernel, "width": config.kernel}
        hidden, channels = config.at("hidden", level), config.at("channels", level)
        return cls(
            first=Conv.init(first, sizes, (ins,), (hidden,)),
            first_norm=NORMS[config.norm].init(hidden, epsilon=config.norm_epsilon),
            second=Conv.init(second, sizes, (hidden,), (channels,)),
            second_norm=NORMS[config.norm].init(channels, epsilon=config.norm_epsilon),
            remat=config.remat,
        )

    def __call__(self, x: md.Tensor) -> md.Tensor:
        return recomputed(Block._convolved, self.remat)(self, x)

    def _convolved(self, x: md.Tensor) -> md.Tensor:
        for conv, norm in ((self.first, self.first_norm), (self.second, self.second_norm)):
            x = md.silu(norm(md.checkpoint_name(conv(x), HIDDEN)))
        return x


class Level(PyTreeNode):
    """One size of the image: `down` leads to the next, `up` back."""

    before: Block
    down: Conv
    up: ConvTranspose
    after: Block

    @classmethod
    def init(cls, key, config: Config, ins: md.Dim, level: int):
        before, down, up, after = jax.random.split(key, 4)
        channels, below = config.at("channels", level), config.at("channels", level + 1)
        shallow = config.at("shallow", level)
        return cls(
            before=Block.init(before, config, ins, level),
            down=Conv.init(down, HALVING, (channels,), (config.at("deeper", level + 1),), stride=2),
            up=ConvTranspose.init(up, HALVING, (below,), (shallow,), stride=2),
            after=Block.init(after, config, config.at("joined", level + 1), level),
        )

    def join(self, x: md.Tensor, skip: md.Tensor) -> md.Tensor:
        """The image of the way up at this level.

        `x`, of the level below, is brought to the size of `skip`, and convolved together with it.
        """
        above = md.rename(self.up(x, skip), "shallow", "joined")
        return self.after(md.concat([above, md.rename(skip, "channels", "joined")], "joined"))


class UNet(PyTreeNode):
    """`model(images)` gives for each pixel of the images a vector over `outputs`.

    Images have the dims batch, height, width, colors.
    """

    levels: tuple[Level, ...]
    bottom: Block
    head: Linear

    @classmethod
    def init(cls, key, config: Config):
        *keys, bottom, head = jax.random.split(key, config.levels + 2)
        ins = [
            md.Dim("colors", config.colors),
            *(config.at("deeper", level) for level in range(1, config.levels + 1)),
        ]
        return cls(
            levels=tuple(Level.init(k, config, ins[level], level) for level, k in enumerate(keys)),
            bottom=Block.init(bottom, config, ins[-1], config.levels),
            head=Linear.init(
                head, (config.at("channels", 0),), (md.Dim("outputs", config.outputs),), bias=True
            ),
        )

    def __call__(self, images: md.Tensor) -> md.Tensor:
        x, skips = md.cast(images, self.head.weight.dtype), []
        for level in self.levels:
            skips.append(level.before(x))
            x = level.down(skips[-1])
        x = self.bottom(x)
        for level, skip in zip(self.levels[::-1], skips[::-1], strict=True):
            x = level.join(x, skip)
        return self.head(x)
