"""The part of a step of training that is lowered: the loss, its gradients and their norms."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

import meshdsl as md
from meshdsl.dims import Dim
from meshdsl.lowering.gradients import value_and_grad_of_rest
from meshdsl.lowering.parameter_copies import for_use
from meshdsl.ops.global_norm import global_norms
from meshdsl.tensor import is_tensor
from meshdsl.train.adapters import whole_model
from meshdsl.train.precision_settings import Precision
from meshdsl.train.trained import parameters_by_name

DROPPED = 3  # the position, among the arguments, of what sums in few bits have dropped


def _weights(tree: Any) -> Any:
    """`tree` without the parameters that are state: their gradients are no slopes of the loss."""
    leaves = jax.tree.leaves(tree, is_leaf=is_tensor)
    weights = [x for x in leaves if not (is_tensor(x) and x.role and x.role.signs)]
    return tree if len(weights) == len(leaves) else weights


def loss_and_gradients_of(
    loss: Callable, microbatches: Dim | None, precision: Precision
) -> Callable:
    """The function that is lowered: loss, gradients and their norms.

    It is called with the parameters that are trained, a batch, a key, what earlier sums in few bits
    have dropped and, where the loss is scaled, the scale; last, where there are some, with the
    parameters that are not trained.
    """
    how = {"accumulate": microbatches, "compute": precision.compute, "reduce": precision.reduce}
    how |= {"wire": precision.wire, "has_aux": True}
    is_scaled = precision.loss_scale != "none"

    def scaled(params, batch, key, scale, *frozen):
        value, aux = of_model(params, batch, key, *frozen)
        return md.cast(value, jnp.float32) * scale, aux

    def of_model(trained, batch, key, *frozen):
        return loss(whole_model(trained, *frozen), batch, key)

    def loss_and_gradients(params, batch, key, dropped, *rest):
        scale = [md.tensor(s, ()) for s in rest[:is_scaled]]
        frozen = [for_use(tree, precision.compute) for tree in rest[is_scaled:]]
        numbers = {name: i for i, name in enumerate(parameters_by_name(params))}
        for s in scale:
            dropped = {name: x * s for name, x in dropped.items()}
        left = {numbers[name]: x for name, x in dropped.items()}
        of = value_and_grad_of_rest(scaled if scale else of_model, **how)
        (value, aux), grads, left = of(params, left, batch, key, *scale, *frozen)
        dropped = {name: left[numbers[name]] for name in dropped}
        with jax.named_scope("gradient"):  # so the norms count as a part of the backward pass
            for s in scale:
                scaled_ones = value, grads, dropped
                value, grads, dropped = jax.tree.map(lambda x, s=s.array: x / s, scaled_ones)
            gradient, parameter = global_norms(_weights(grads), _weights(params))
        norms = {"gradient_norm": gradient, "parameter_norm": parameter}
        return value, aux, grads, norms, dropped

    return loss_and_gradients
