"""What a tick of a pipeline keeps for the backward pass, and what the backward pass recomputes."""

from __future__ import annotations

import jax
from jax import lax

from meshdsl.lowering.scope import Scope, copy_of
from meshdsl.tensor import is_tensor

CARRY = "pipeline carry"  # the name of the carries within a chunk, which are kept


def is_gathered(x, scope: Scope) -> bool:
    """Whether the ops that use a leaf of `xs` gather it, because it is split further at rest."""
    if not is_tensor(x) or x.placement is None or copy_of(x) is not None:
        return False
    by_rules = scope.split(x.dims[1:])
    return x.placement.level != "rules" and x.placement.axes[1:] != by_rules


def gathered_at(tick, x, scope: Scope):
    """A leaf of `xs` for one tick.

    If the leaf is gathered, it is made to depend on the number of the tick, as far as JAX can see.
    Otherwise JAX would take the gathers of all layers out of the loop of ticks, and hold their
    results until the last tick.
    """
    return x.replace(array=_at(tick, x.stored)) if is_gathered(x, scope) else x


@jax.custom_jvp
def _at(tick, array):
    return lax.optimization_barrier((tick, array))[1]


@_at.defjvp
def _at_jvp(primals, tangents):
    return _at(*primals), tangents[1]


# The operations by which a tick gets its parameters from those of the stage, and a layer its own.
_OF_A_TICK = frozenset(["dynamic_slice", "optimization_barrier", "pcast", "pvary"])
_OF_A_LAYER = frozenset(
    ["convert_element_type", "all_gather", "linear_call", "reshape", "transpose"]
)


def kept(inner: list):
    """The policy of a recomputed chunk: which values are kept for the backward pass of a tick.

    The parameters of the tick are not kept but taken from the stage's again: otherwise each tick
    would keep its own. Values that a policy of `md.checkpoint` inside of the chunk keeps are kept.

    Args:
      inner: the policies inside of the chunk, which are known after tracing.
    """

    def policy(primitive, *avals, **params):
        if primitive.name == "name" and params["name"] == CARRY:
            return True
        if primitive.name in _OF_A_TICK:
            return False
        if not inner:
            return primitive.name not in _OF_A_LAYER
        found = (one(primitive, *avals, **params) for one in inner if one is not None)
        return next((answer for answer in found if answer), False)

    return policy
