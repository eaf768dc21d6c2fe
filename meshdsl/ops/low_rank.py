"""A weight with an adapter of low rank beside it (Hu et al., 2021, "LoRA").

It stands for the weight plus the product of two thin matrices `a` and `b`. Ops that
are linear in the weight do without that sum: `x` times the weight, and `x` times `a` times `b`, are
added. So no op computes anything of the size of the weight, and neither does the backward pass.
"""

from __future__ import annotations

from collections.abc import Callable
from types import MappingProxyType
from typing import Any

import jax

from meshdsl.dims import Dim
from meshdsl.ops.component import cast
from meshdsl.ops.einsum import einsum
from meshdsl.ops.index import take
from meshdsl.stand_in import StandIn, as_tensor
from meshdsl.tensor import Tensor


@jax.tree_util.register_pytree_with_keys_class
class LowRank(StandIn):
    """`weight + a b`, in the place of the weight in a model.

    Attributes:
      weight: the dims that it contracts and makes, and any others, which count copies of it.
      a: the dims that the weight contracts, its copies, and a dim of the rank.
      b: that dim, and the other dims of the weight.
    """

    def __init__(self, weight: Any, a: Tensor, b: Tensor):
        self.weight, self.a, self.b = weight, a, b

    def tree_flatten_with_keys(self) -> tuple:
        named = jax.tree_util.GetAttrKey
        each = ("weight", "a", "b")
        return tuple((named(name), getattr(self, name)) for name in each), None

    @classmethod
    def tree_unflatten(cls, _: None, children: Any) -> LowRank:
        return cls(*children)

    def of(self, weight: Any) -> LowRank:
        """This adapter beside another weight."""
        return LowRank(weight, self.a, self.b)

    def as_tensor(self) -> Tensor:
        product = einsum(self.a, self.b, out=self.dims)
        return self.weight + cast(product, self.dtype)

    def _dot(self, op: Callable, args: tuple, named: dict[str, Any]) -> Tensor | None:
        options = dict(zip(("x", "weight"), args, strict=False)) | named
        x = as_tensor(options.pop("x", None))
        if options.pop("weight", None) is not self or x is None:
            return None
        result = op(x, self.weight, **options)
        thin = cast(self.a, x.dtype), cast(self.b, x.dtype)
        return result + einsum(x, *thin, out=result.dims, **options)

    def _einsum(self, op: Callable, args: tuple, named: dict[str, Any]) -> Tensor:
        at = next(i for i, x in enumerate(args) if x is self)
        before, after = map(as_tensor, args[:at]), map(as_tensor, args[at + 1 :])
        before, after = tuple(before), tuple(after)
        result = op(*before, self.weight, *after, **named)
        named = {name: value for name, value in named.items() if name not in ("out", "contract")}
        by_adapter = einsum(*before, self.a, self.b, *after, out=result.dims, **named)
        return result + cast(by_adapter, result.dtype)

    def _take(self, op: Callable, args: tuple, named: dict[str, Any]) -> Tensor | None:
        if len(args) != 3 or args[0] is not self or named:
            return None
        _, ids, dim = args
        name = dim.name if isinstance(dim, Dim) else dim
        if name not in [d.name for d in self.a.dims] or name in [d.name for d in self.b.dims]:
            return None
        result = op(self.weight, ids, dim)
        of_ids = take(self.a, ids, self.a.dim(name))
        return result + cast(einsum(of_ids, self.b, out=result.dims), result.dtype)

    # The ops that are linear in a weight, which do without adding the adapter to the weight.
    ways = MappingProxyType({**StandIn.ways, "dot": _dot, "einsum": _einsum, "take": _take})
