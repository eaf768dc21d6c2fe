"""The sum of a gradient over devices, once per step, and its split as an optimizer gets it."""

from __future__ import annotations

import jax
from jax import lax

from meshdsl.lowering import lossy_moves, resharding
from meshdsl.tensor import Tensor


def gradient(grad: Tensor, axes, level: str = "optimizer") -> Tensor:
    """`grad`, of which each device along `axes` has a term, summed and split as `level` says.

    It is summed in the dtype of sums of its `Dtypes`, and comes out in its own dtype.
    """
    with jax.named_scope("gradient"):
        pending = _pending(grad, axes, level)
        settled = resharding.take_sums(pending, "gradient", wire=grad.placement.wire)
        return settled.replace(array=settled.stored.astype(grad.stored.dtype))


def _pending(grad: Tensor, axes, level: str) -> Tensor:
    """`grad` as a sum that is pending over `axes`, in the dtype of sums."""
    array, scope, dtypes = grad.stored, grad.placement.scope, grad.placement.dtypes
    if axes and dtypes:  # the barrier of `derivatives.to_sum`, also after an earlier cast
        array = lax.optimization_barrier(array.astype(dtypes.sums))
    rules = scope.layout.at("rules")
    named = lambda axis: dict.fromkeys(str(rule) for rule in rules if rule.axis == axis)
    reasons = tuple((axis, " or ".join(named(axis))) for axis in axes)
    placement = grad.placement._replace(
        pending=tuple(axes), level=level, dtypes=None, reasons=reasons, wire=()
    )
    return Tensor(array, grad.dims, grad.role, placement)


def gradient_of_rest(grad: Tensor, axes, dropped: Tensor) -> tuple[Tensor, Tensor]:
    """As `gradient`, of the gradient and what earlier sums in few bits have dropped.

    Args:
      dropped: a Tensor with a dim for the devices along the wired axes in front. Each device has
        what was dropped of its terms, in the split that the optimizer gets.

    Returns:
      The gradient, and what this sum has dropped.
    """
    wire, (senders, *_) = grad.placement.wire, dropped.placement.axes
    if not set(senders) <= set(axes):
        return gradient(grad, axes), dropped
    exact = tuple(a for a in axes if a not in senders)
    with jax.named_scope("gradient"):
        pending = _pending(grad, axes, "optimizer")
        reasons = dict(pending.placement.reasons)
        placement = pending.placement._replace(pending=exact)
        term = resharding.take_sums(pending.replace(placement=placement), "gradient")
        why = " or ".join(dict.fromkeys(reasons[a] for a in senders))
        array, left = lossy_moves.summed_of_rest(term, senders, dropped.stored[0], wire, why)
        total = term.replace(array=array.astype(grad.stored.dtype))
    return total, dropped.replace(array=left[None])
