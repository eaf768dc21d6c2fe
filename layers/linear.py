"""Linear: a matrix between named dims, with or without a bias."""

from __future__ import annotations

from collections.abc import Iterable

from flax.struct import PyTreeNode

import meshdsl as md
from meshdsl.dims import listed


class Linear(PyTreeNode):
    """`x` contracted over the dims `ins` into the dims `outs`.

        head = Linear.init(key, d_model, vocab)
        head(x)   # [batch, length, d_model] -> [batch, length, vocab]

    Attributes:
      weight: dims `ins`, then `outs`.
      bias: dims `outs`; None without a bias.
    """

    weight: md.Tensor
    bias: md.Tensor | None

    @classmethod
    def init(
        cls,
        key,
        ins: md.Dim | Iterable[md.Dim],
        outs: md.Dim | Iterable[md.Dim],
        *,
        bias: bool = False,
        std: float | None = None,
    ):
        """Normal weights, and biases of zero.

        Args:
          ins: the dim, or dims, of `x` that are contracted.
          outs: the dim, or dims, that take their place.
          std: the standard deviation of the weights; by default that of `md.normal`.

        Raises:
          MeshDSLError: a dim is in `ins` and in `outs`.
        """
        ins, outs = apart("Linear", ins, outs)
        weight = md.normal(key, (*ins, *outs), ins=ins, std=std)
        return cls(weight, md.zeros(outs) if bias else None)

    def __call__(self, x: md.Tensor) -> md.Tensor:
        """The other dims of `x`, then `outs`, in the dtype of `x`.

        Args:
          x: has the dims `ins`, and any others.
        """
        y = md.dot(x, self.weight)
        return y if self.bias is None else y + md.cast(self.bias, y.dtype)


def apart(
    where: str, ins: md.Dim | Iterable[md.Dim], outs: md.Dim | Iterable[md.Dim]
) -> tuple[tuple[md.Dim, ...], tuple[md.Dim, ...]]:
    """`ins` and `outs` of a weight as tuples, after checking that they share no name."""
    ins, outs = listed(ins), listed(outs)
    names = [d.name for d in outs if isinstance(d, md.Dim)]
    for d in ins:
        if isinstance(d, md.Dim) and d.name in names:
            raise md.MeshDSLError(
                f"{where}: `{d.name}` is in `ins` {list(ins)} and in `outs` {list(outs)}; names "
                "are unique in a tensor, so what comes out is called otherwise, such as "
                f'md.Dim("{d.name}_out", {d.size}), and md.rename gives it the name back'
            )
    return ins, outs
