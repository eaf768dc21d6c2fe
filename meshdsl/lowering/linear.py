"""A linear function of one array that states its own transpose, under jvp, vjp, vmap and their compositions."""

from __future__ import annotations

from collections.abc import Callable

import jax
from jax.custom_derivatives import linear_call
from jax.extend.core import jaxpr_as_fun
from jax.interpreters import batching


def linear(fn: Callable, transpose: Callable, x) -> jax.Array:
    """`fn(x)`, and `transpose` of a cotangent in the backward pass."""
    return linear_call(lambda _, x: fn(x), lambda _, ct: transpose(ct), (), x)


def _batched(operands, batch_dims, *, callee, transpose_thunk, num_callee_consts, num_res):
    """What JAX lacks: `linear_call` under vmap. Ours has one operand, and neither constants nor residuals."""
    assert num_callee_consts == num_res == 0 and len(operands) == 1
    (x,), (at,) = operands, batch_dims
    over = lambda closed: jax.vmap(lambda x: jaxpr_as_fun(closed)(x)[0], in_axes=at, out_axes=at)  # noqa: E731
    return [linear(over(callee), lambda ct: over(transpose_thunk()[0])(ct), x)], [at]


(_LINEAR_CALL,) = {eqn.primitive for eqn in jax.make_jaxpr(lambda x: linear(lambda x: x, lambda x: x, x))(0.0).eqns}
batching.primitive_batchers[_LINEAR_CALL] = _batched
