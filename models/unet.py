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

import jax
from flax.struct import PyTreeNode

import meshdsl as md
from meshdsl.layers.conv import Conv, ConvTranspose
from meshdsl.layers.linear import Linear
from meshdsl.layers.norm import EPSILON, NORMS, Norm

HALVING = {"height": 2, "width": 2}


@dataclass(frozen=True)
class Config:
    """Sizes of a U-Net.

    Attributes:
      levels: how often height and width are halved.
      channels: at full size; twice as many at each level.
      kernel: size of the windows, in height and width.
      colors, outputs: channels of the images that go in and come out.
      norm_epsilon: what norms add to the mean square or the variance before they take its root.
    """

    levels: int = 2
    channels: int = 16
    kernel: int = 3
    colors: int = 1
    outputs: int = 1
    norm: str = "rms"
    norm_epsilon: float = EPSILON

    def __post_init__(self):
        for name, least in (
            ("levels", 0),
            ("channels", 1),
            ("kernel", 1),
            ("colors", 1),
            ("outputs", 1),
        ):
            if getattr(self, name) < least:
                raise md.MeshDSLError(
                    f"model: {name} is at least {least}, not {getattr(self, name)}"
                )
        if not 0 < self.norm_epsilon < 1:
            legal = "more than 0 and less than 1"
            raise md.MeshDSLError(f"model: norm_epsilon is {legal}, not {self.norm_epsilon}")
        if self.norm not in NORMS:
            raise md.MeshDSLError(
                f"model: no norm {self.norm!r}; known: {', '.join(f'`{n}`' for n in NORMS)}"
            )

    def at(self, name: str, level: int) -> md.Dim:
        """The dim of the channels of `level`, as `name`."""
        return md.Dim(name, self.channels * 2**level)


class Block(PyTreeNode):
    """Two convolutions, each with a norm and a nonlinearity behind it."""

    first: Conv
    first_norm: Norm
    second: Conv
    second_norm: Norm

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
        )

    def __call__(self, x: md.Tensor) -> md.Tensor:
        x = md.silu(self.first_norm(self.first(x)))
        return md.silu(self.second_norm(self.second(x)))


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
        x, skips = images, []
        for level in self.levels:
            skips.append(level.before(x))
            x = level.down(skips[-1])
        x = self.bottom(x)
        for level, skip in zip(self.levels[::-1], skips[::-1], strict=True):
            x = level.join(x, skip)
        return self.head(x)
