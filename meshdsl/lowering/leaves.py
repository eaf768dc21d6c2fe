"""Tensors of a lowering as leaves of pytrees: what `jax.tree.map` and optax get of them.

A leaf is what one device has of a Tensor, so it must be the same for all Tensors with the same
dims: nothing is pending in it, and its split follows from its dims alone.
"""

from __future__ import annotations

import jax

from meshdsl.lowering import collectives
from meshdsl.lowering.resharding import plain, take_sums
from meshdsl.tensor import Tensor


def leaf(x: Tensor) -> Tensor:
    """`x` as a leaf of a pytree, whose array may meet those of other Tensors with the same dims.

    Its split is the law's for its dims: for a parameter, and for all that follows from parameters,
    that of optimizer state. So `jax.tree.map` of parameters, gradients and the state of an
    optimizer gets parts that belong together, and ZeRO-1 computes each update once.
    """
    if not isinstance(x.stored, jax.Array):
        return x  # JAX moves structures around that hold no arrays
    scope, placement = x.placement.scope, x.placement
    scope.note_use(placement.origin, ())
    level = "rules" if placement.level == "rules" else "optimizer"
    x = plain(take_sums(x, "tree_leaf", split=scope.split(x.dims, level), level=level))
    return x.replace(placement=x.placement._replace(origin=frozenset()))


def unleaf(x: Tensor) -> Tensor:
    """`x`, put together from a leaf, with a type that varies over the axes that split it."""
    if not isinstance(x.stored, jax.Array):
        return x
    axes = x.placement.scope.of_mesh(a for axes in x.placement.axes for a in axes)
    if collectives.varying(x.stored).issuperset(axes):
        return x
    return x.replace(array=collectives.vary(x.stored, axes))
