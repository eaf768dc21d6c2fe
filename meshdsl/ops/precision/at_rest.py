"""A weight that lies in memory in few bits, in the place of the weight in a model.

It is for a model that is used and not trained. Writing a text reads every weight once for each
token, and takes as long as that: with 8 bits half as long as in bfloat16.
"""

from __future__ import annotations

from collections.abc import Callable
from types import MappingProxyType
from typing import Any

import jax
import jax.numpy as jnp

from meshdsl.ops.component import cast
from meshdsl.ops.precision.formats import Recipe
from meshdsl.ops.precision.quantize import dequantize, quantized
from meshdsl.stand_in import StandIn
from meshdsl.tensor import Tensor


@jax.tree_util.register_pytree_with_keys_class
class AtRest(StandIn):
    """A weight as numbers in 8 bits. Whatever is computed with it gets what they stand for.

    Attributes:
      weight: the numbers, with the dims and the role of what they stand for.
      scale: of each number; it lacks the dims that the weight contracts.
    """

    def __init__(self, weight: Tensor, scale: Tensor, dtype: Any):
        self.weight, self.scale, self._dtype = weight, scale, jnp.dtype(dtype)

    @classmethod
    def of_weight(cls, weight: Tensor, recipe: Recipe) -> AtRest:
        """`weight`, rounded, with a scale for each index of what it does not contract."""
        assert weight.role is not None
        ins = tuple(d for d in weight.dims if d.name in weight.role.ins)
        values, scale = quantized(weight, ins, recipe)
        return cls(
            cast(values, recipe.forward.dtype).replace(role=weight.role), scale, weight.dtype
        )

    def tree_flatten_with_keys(self) -> tuple:
        named = jax.tree_util.GetAttrKey
        children = (named("weight"), self.weight), (named("scale"), self.scale)
        return children, self._dtype

    @classmethod
    def tree_unflatten(cls, dtype: Any, children: Any) -> AtRest:
        weight, scale = children
        return cls(weight, scale, dtype)

    @property
    def dtype(self) -> Any:
        return self._dtype

    def as_tensor(self) -> Tensor:
        full = dequantize(cast(self.weight, self._dtype), self.scale)
        return full.replace(role=self.weight.role)

    def _cast(self, op: Callable, args: tuple, named: dict[str, Any]) -> AtRest | None:
        given = dict(zip(("x", "dtype"), args, strict=False)) | named
        if set(given) != {"x", "dtype"}:
            return None
        return AtRest(self.weight, self.scale, given["dtype"])

    ways = MappingProxyType({**StandIn.ways, "cast": _cast})
