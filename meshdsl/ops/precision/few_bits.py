"""A weight whose products are computed in few bits, in the place of the weight in a model.

So a model does not change: `md.dot(x, weight)` and an einsum of the weight with one other Tensor
are products of numbers in few bits, see `quantize`. Every other op takes the weight as it is.
"""

from __future__ import annotations

from collections.abc import Callable
from types import MappingProxyType
from typing import Any

import jax
import jax.numpy as jnp

from meshdsl.ops.component import cast
from meshdsl.ops.einsum import dot_dims, einsum_dims
from meshdsl.ops.precision.formats import Recipe
from meshdsl.ops.precision.quantize import product
from meshdsl.stand_in import StandIn
from meshdsl.tensor import Tensor


@jax.tree_util.register_pytree_with_keys_class
class FewBits(StandIn):
    """A weight, with the recipe by which it is multiplied.

    Attributes:
      weight: the weight.
      recipe: the formats.
      largest: the largest magnitude of `x` and of the weight; None: it is found each time.
    """

    def __init__(self, weight: Tensor, recipe: Recipe, largest: float | None = None):
        self.weight, self.recipe, self.largest = weight, recipe, largest

    def tree_flatten_with_keys(self) -> tuple:
        return ((jax.tree_util.GetAttrKey("weight"), self.weight),), (self.recipe, self.largest)

    @classmethod
    def tree_unflatten(cls, how: tuple, children: Any) -> FewBits:
        return cls(*children, *how)

    def of(self, weight: Any) -> FewBits:
        return FewBits(weight, self.recipe, self.largest)

    def as_tensor(self) -> Tensor:
        return self.weight

    def _dot(self, op: Callable, args: tuple, named: dict[str, Any]) -> Tensor | None:
        given = dict(zip(("x", "weight"), args, strict=False)) | named
        x = given.pop("x", None)
        if set(given) != {"weight"} or given["weight"] is not self or not _has_fractions(x):
            return None
        out = dot_dims("dot", x, self.weight)
        return product(x, cast(self.weight, x.dtype), out, self.recipe, self.largest)

    def _einsum(self, op: Callable, args: tuple, named: dict[str, Any]) -> Tensor | None:
        others = [x for x in args if x is not self]
        if (len(args), len(others)) != (2, 1) or not set(named) <= {"out", "contract"}:
            return None
        (x,) = others
        if not _has_fractions(x) or x.dtype != self.dtype:
            return None
        _, out = einsum_dims([self.weight if t is self else t for t in args], **named)
        return product(x, self.weight, out, self.recipe, self.largest)

    ways = MappingProxyType({**StandIn.ways, "dot": _dot, "einsum": _einsum})


def _has_fractions(x: Any) -> bool:
    return isinstance(x, Tensor) and jnp.issubdtype(x.dtype, jnp.floating)
