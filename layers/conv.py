"""Convolutions over spatial dims, and their transpose, with or without a bias."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import prod

from flax import struct
from flax.struct import PyTreeNode

import meshdsl as md
from meshdsl.dims import size
from meshdsl.layers.linear import apart


class _Convolution(PyTreeNode):
    """What a convolution and its transpose have in common: a kernel and a bias.

    Attributes:
      weight: a dim `kernel_height` for the spatial dim `height`, and so for each; then `ins` and
        `outs`.
      bias: dims `outs`; None without a bias.
      spatial: the names of the spatial dims.
      outs: the dims that come in the place of `ins`.
      stride: the same along each spatial dim.
    """

    weight: md.Tensor
    bias: md.Tensor | None
    spatial: tuple[str, ...] = struct.field(pytree_node=False)
    outs: tuple[md.Dim, ...] = struct.field(pytree_node=False)
    stride: int = struct.field(pytree_node=False)

    @classmethod
    def init(
        cls,
        key,
        sizes: Mapping[str, int],
        ins: md.Dim | Iterable[md.Dim],
        outs: md.Dim | Iterable[md.Dim],
        *,
        stride: int = 1,
        bias: bool = False,
        std: float | None = None,
    ):
        """Normal weights, and biases of zero.

        Args:
          sizes: for the name of each spatial dim the size of the kernel along it.
          ins: the dim, or dims, of `x` that are contracted.
          outs: the dim, or dims, that take their place.
          std: the standard deviation of the weights; by default such that the elements of the
            result are about as large as those of `x`.

        Raises:
          MeshDSLError: a dim is in `ins` and in `outs`.
        """
        ins, outs = apart(cls.__name__, ins, outs)
        kernel = tuple(md.Dim(f"kernel_{name}", n) for name, n in sizes.items())
        terms = cls.terms(prod(sizes.values()), stride ** len(sizes))
        deviation: float = terms**-0.5 * size(ins) ** -0.5 if std is None else std
        weight = md.normal(key, (*kernel, *ins, *outs), ins=(*kernel, *ins), std=deviation)
        return cls(weight, md.zeros(outs) if bias else None, tuple(sizes), outs, stride)

    @staticmethod
    def terms(taps: int, strides: int) -> float:
        """How many taps meet in one element of the result."""
        return taps

    def _over(self) -> dict[str, str]:
        return {name: f"kernel_{name}" for name in self.spatial}

    def _with_bias(self, y: md.Tensor) -> md.Tensor:
        return y if self.bias is None else y + md.cast(self.bias, y.dtype)


class Conv(_Convolution):
    """A convolution over the dims called `spatial`, from the dims `ins` into the dims `outs`.

    Padding is "SAME": with a stride, sizes are divided and rounded up.

        conv = Conv.init(key, {"height": 3, "width": 3}, channels, hidden)
        conv(image)   # [batch, height, width, channels] -> [batch, height, width, hidden]
    """

    def __call__(self, x: md.Tensor) -> md.Tensor:
        """The other dims of `x`, of which the spatial ones have their new sizes, then `outs`.

        Args:
          x: has the spatial dims, `ins`, and any others.
        """
        out, weight = (..., *self.outs), md.cast(self.weight, x.dtype)
        return self._with_bias(md.conv(x, weight, self._over(), out=out, stride=self.stride))


class ConvTranspose(_Convolution):
    """The transpose of a `Conv` with a stride: sizes are multiplied.

    It is what the gradient of a convolution is, with a kernel of its own.

        conv = ConvTranspose.init(key, {"height": 2}, hidden, channels, stride=2)
        conv(small, like=image)   # [batch, height/2, hidden] -> [batch, height, channels]
    """

    @staticmethod
    def terms(taps: int, strides: int) -> float:
        return max(taps / strides, 1.0)

    def __call__(self, x: md.Tensor, like: md.Tensor) -> md.Tensor:
        """`x` brought to the size of `like`: the other dims of `x`, and `outs`.

        Args:
          x: has the spatial dims, `ins`, and any others.
          like: has the spatial dims of the result; their sizes divided by the stride, rounded up,
            are those of `x`.
        """
        into = {name: like.dim(name) for name in self.spatial}
        out, weight = (..., *self.outs), md.cast(self.weight, x.dtype)
        return self._with_bias(
            md.conv_transpose(x, weight, self._over(), out=out, stride=self.stride, into=into)
        )
