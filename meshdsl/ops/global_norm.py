"""The global norm of a tree of Tensors, and clipping gradients to it inside of a lowering.

Optax takes sums and norms of the arrays that it gets. Inside of a lowering these are one device's
parts, so its own `clip_by_global_norm` is refused there. What is here works on whole Tensors.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from meshdsl.dims import Dim
from meshdsl.errors import MeshDSLError, quote
from meshdsl.lowering import resharding
from meshdsl.ops import reduce, slicing
from meshdsl.ops.component import cast
from meshdsl.ops.functions import FUNCTIONS
from meshdsl.tensor import Tensor, is_tensor


def global_norm(tree: Any) -> Tensor:
    """The root of the sum of squares of all Tensors in `tree`, a Tensor without dims.

    Inside of a lowering it is that of whole Tensors; all their sums are one collective for each
    set of axes that they are split over. `global_norm(grads).array` is the same number on every
    device.

    Raises:
      MeshDSLError: a leaf of `tree` is no Tensor, or there is none.
    """
    return global_norms(tree)[0]


def global_norms(*trees: Any) -> list[Tensor]:
    """The global norm of each of `trees`: the root of the sum of squares of all its Tensors.

    Sums of squares that are pending over the same axes are stacked, and settled by one collective.
    """
    square, sqrt = FUNCTIONS["square"], FUNCTIONS["sqrt"]
    waiting: dict[tuple[str, ...], dict[int, Tensor]] = {}
    for i, tree in enumerate(trees):
        leaves = [x for x in jax.tree.leaves(tree, is_leaf=is_tensor) if jax.tree.leaves(x)]
        other = next((x for x in leaves if not is_tensor(x)), None if leaves else tree)
        if other is not None or not leaves:
            raise MeshDSLError(
                f"global_norm: it is that of a pytree of Tensors, not of a value {quote(other)}"
            )
        for t in leaves:
            wide = jnp.promote_types(t.dtype, jnp.float32)
            power = reduce.sum(square(cast(t, wide)))
            powers = waiting.setdefault(power.pending, {})
            powers[i] = powers[i] + power if i in powers else power
    totals: list[list[Tensor]] = [[] for _ in trees]
    for pending, powers in waiting.items():
        found = list(powers.values())
        if pending and len(found) > 1:
            dim = Dim("norms", len(found))
            found = list(slicing.unstack(resharding.take_sums(slicing.stack(found, dim)), dim))
        for i, power in zip(powers, found, strict=True):
            totals[i].append(power)
    return [sqrt(sum(rest, start=first)) for first, *rest in totals]


class Transformation(NamedTuple):
    """A transformation of gradients that `optax.chain` takes, as an `optax.GradientTransformation`.

    Attributes:
      init: gives the first state for parameters.
      update: takes updates, the state and maybe parameters; gives updates and the next state.
    """

    init: Callable
    update: Callable


def clip_by_global_norm(most: float) -> Transformation:
    """Scale gradients whose global norm is larger than `most` down to it, as optax's does.

    It works inside of a lowering, where optax's would take norms of parts, and outside of one:

        optimizer = optax.chain(md.clip_by_global_norm(1.0), optax.adamw(1e-3))

    Raises:
      MeshDSLError: `most` is not above 0.
    """
    if most <= 0:
        raise MeshDSLError(f"clip_by_global_norm: a norm above 0, not {most}")

    def update(updates: Any, state: Any, params: Any = None) -> tuple[Any, Any]:
        norm = global_norm(updates).array
        factor = jnp.where(norm > most, most / norm, 1.0)
        return jax.tree.map(lambda g: g * factor.astype(g.dtype), updates), state

    return Transformation(lambda params: (), update)
