"""A weight whose products are computed in few bits, in the place of the weight in a model.

So a model does not change: `md.dot(x, weight)`, an einsum of the weight with one other Tensor, and
`groups.dot` of `md.routed` are products of numbers in few bits, see `quantize`. Every other op
takes the weight as it is.
"""

from __future__ import annotations

from collections.abc import Callable
from types import MappingProxyType
from typing import Any

import jax
import jax.numpy as jnp

from meshdsl.ops.component import cast
from meshdsl.ops.einsum import dot_dims, einsum_dims
from meshdsl.ops.precision import grouped
from meshdsl.ops.precision.formats import Recipe
from meshdsl.ops.precision.quantize import product
from meshdsl.stand_in import StandIn, as_tensor
from meshdsl.tensor import Tensor

_ROUTED = "fn", "x", "ids", "weights", "parameters", "experts"


@jax.tree_util.register_pytree_with_keys_class
class FewBits(StandIn):
    """A weight, with the recipe by which it is multiplied.

    Attributes:
      weight: the weight.
      recipe: the formats.
      largest: the largest magnitude of `x` and of the weight; None: it is found each time.
      key: a Tensor with a random key for each copy of the weight, with the dims that count copies.
        Gradients are rounded by it up or down at random; None: to the nearest.
    """

    def __init__(
        self,
        weight: Tensor,
        recipe: Recipe,
        largest: float | None = None,
        key: Tensor | None = None,
    ):
        self.weight, self.recipe, self.largest, self.key = weight, recipe, largest, key

    def tree_flatten_with_keys(self) -> tuple:
        attribute = jax.tree_util.GetAttrKey
        children = (attribute("weight"), self.weight), (attribute("key"), self.key)
        return children, (self.recipe, self.largest)

    @classmethod
    def tree_unflatten(cls, how: tuple, children: Any) -> FewBits:
        (weight, key), (recipe, largest) = children, how
        return cls(weight, recipe, largest, key)

    def of(self, weight: Any) -> FewBits:
        return FewBits(weight, self.recipe, self.largest, self.key)

    def as_tensor(self) -> Tensor:
        return self.weight

    def _cast(self, op: Callable, args: tuple, named: dict[str, Any]) -> FewBits | None:
        given = dict(zip(("x", "dtype"), args, strict=False)) | named
        return self.of(op(self.weight, given["dtype"])) if set(given) == {"x", "dtype"} else None

    def _dot(self, op: Callable, args: tuple, named: dict[str, Any]) -> Tensor | None:
        given = dict(zip(("x", "weight"), args, strict=False)) | named
        x = given.pop("x", None)
        if set(given) != {"weight"} or given["weight"] is not self or not _has_fractions(x):
            return None
        out = dot_dims("dot", x, self.weight)
        return product(x, cast(self.weight, x.dtype), out, self.recipe, self.largest, self.key)

    def _einsum(self, op: Callable, args: tuple, named: dict[str, Any]) -> Tensor | None:
        others = [x for x in args if x is not self]
        if (len(args), len(others)) != (2, 1) or not set(named) <= {"out", "contract"}:
            return None
        (x,) = others
        if not _has_fractions(x) or x.dtype != self.dtype:
            return None
        _, out = einsum_dims([self.weight if t is self else t for t in args], **named)
        return product(x, self.weight, out, self.recipe, self.largest, self.key)

    def _transpose(self, op: Callable, args: tuple, named: dict[str, Any]) -> FewBits | None:
        given = dict(zip(("x", "dims"), args, strict=False)) | named
        if set(given) != {"x", "dims"}:
            return None
        weight = as_tensor(self.weight)
        return self.of(op(weight, given["dims"]).replace(role=weight.role))

    def _routed(self, op: Callable, args: tuple, named: dict[str, Any]) -> Tensor | None:
        given = dict(zip(_ROUTED, args, strict=False)) | named
        found = [d for d in self.dims if given.get("experts") in (d, d.name)]
        if not found or not isinstance(given.get("parameters"), (list, tuple)):
            return None
        each = [
            grouped.in_few_bits(p.weight, found[0], p.recipe, p.largest)
            if isinstance(p, FewBits)
            else ((as_tensor(p),), None)
            for p in given["parameters"]
        ]
        tensors = tuple(t for some, _ in each for t in some)
        given = {name: as_tensor(x) for name, x in given.items() if name != "parameters"}
        given["fn"] = grouped.joined(given["fn"], each)
        return op(**given, parameters=tensors)

    ways = MappingProxyType(
        {
            "cast": _cast,
            "dot": _dot,
            "einsum": _einsum,
            "transpose": _transpose,
            "routed": _routed,
        }
    )


def _has_fractions(x: Any) -> bool:
    return isinstance(x, Tensor) and jnp.issubdtype(x.dtype, jnp.floating)
