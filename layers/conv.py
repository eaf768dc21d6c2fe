"""Convolutions over spatial dims, and their transpose, with or without a bias."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

import jax
import jax.numpy as jnp
from flax import struct
from flax.struct import PyTreeNode

import meshdsl as md
from meshdsl.dims import size


class _Convolution(PyTreeNode):
    """What a convolution and its transpose have in common: a kernel and a bias."""

    weight: md.Tensor
    bias: md.Tensor | None
    spatial: tuple[str, ...] = struct.field(pytree_node=False)
    stride: int = struct.field(pytree_node=False)

    @classmethod
    def init(
        cls,
        key,
        sizes: Mapping[str, int],
        ins: tuple[md.Dim, ...],
        outs: tuple[md.Dim, ...],
        *,
        stride: int = 1,
        bias: bool = False,
        std: float | None = None,
    ):
        """Normal weights, and biases of zero.

        Args:
          sizes: for the name of each spatial dim the size of the kernel along it.
          std: the standard deviation of the weights; by default such that the elements of the
            result are about as large as those of `x`.
        """
        kernel = tuple(md.Dim(f"kernel_{name}", n) for name, n in sizes.items())
        terms = cls.terms(prod(sizes.values()), stride ** len(sizes))
        deviation: float = terms**-0.5 * size(ins) ** -0.5 if std is None else std
        dims = (*kernel, *ins, *outs)
        weight = jax.random.normal(key, [d.size for d in dims]) * deviation
        zeros = md.parameter(jnp.zeros([d.size for d in outs]), outs) if bias else None
        return cls(md.parameter(weight, dims, ins=(*kernel, *ins)), zeros, tuple(sizes), stride)

    @staticmethod
    def terms(taps: int, strides: int) -> float:
        """How many taps meet in one element of the result."""
        return taps

    def _over(self) -> dict[str, str]:
        return {name: f"kernel_{name}" for name in self.spatial}

    def _out(self):
        names = self.weight.role.outs
        return (..., *[d for d in self.weight.dims if d.name in names])

    def _with_bias(self, y: md.Tensor) -> md.Tensor:
        return y if self.bias is None else y + md.cast(self.bias, y.dtype)


class Conv(_Convolution):
    """A convolution over the dims called `spatial`, from the dims `ins` into the dims `outs`.

    The kernel's dim along `height` is called `kernel_height`. Padding is "SAME": with a stride,
    sizes are divided and rounded up.
    """

    def __call__(self, x: md.Tensor) -> md.Tensor:
        return self._with_bias(
            md.conv(
                x, md.cast(self.weight, x.dtype), self._over(), out=self._out(), stride=self.stride
            )
        )


class ConvTranspose(_Convolution):
    """The transpose of a `Conv` with a stride: sizes are multiplied."""

    @staticmethod
    def terms(taps: int, strides: int) -> float:
        return max(taps / strides, 1.0)

    def __call__(self, x: md.Tensor, like: md.Tensor) -> md.Tensor:
        """`x` brought to the size of `like`.

        Args:
          like: has the spatial dims of the result; their sizes divided by the stride are those of
            `x`.
        """
        into = {name: like.dim(name) for name in self.spatial}
        weight = md.cast(self.weight, x.dtype)
        return self._with_bias(
            md.conv_transpose(
                x, weight, self._over(), out=self._out(), stride=self.stride, into=into
            )
        )
