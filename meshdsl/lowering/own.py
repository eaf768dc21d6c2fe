"""A device's own part of an array that is whole: free, and its transpose is one all_gather.

By itself a slice of a replica transposes to a full-size psum of mostly zeros. `linear_call` states the transpose, and so
works under jvp, vjp and their compositions.
"""

from __future__ import annotations

import math

import jax
from jax import lax
from jax.custom_derivatives import linear_call
from jax.extend.core import jaxpr_as_fun
from jax.interpreters import batching

from meshdsl.lowering.collectives import Axes, all_gather, position, varying


def own_part(x, axes: Axes, dim: int, sizes) -> jax.Array:
    """This device's part along `dim`, of equal parts over `axes`. The transpose is free where `x` varies over `axes`."""
    parts = math.prod(sizes[a] for a in axes)
    size = x.shape[dim] // parts
    cut = lambda _, x: lax.dynamic_slice_in_dim(x, position(axes) * size, size, dim)  # noqa: E731
    if not varying(x).isdisjoint(axes):
        return cut((), x)
    return linear_call(cut, lambda _, ct: all_gather(ct, axes, dim, varies=False), (), x)


def _batched(operands, batch_dims, *, callee, transpose_thunk, num_callee_consts, num_res):
    """What JAX lacks: `linear_call` under vmap. Ours has one operand, and neither constants nor residuals."""
    assert num_callee_consts == num_res == 0 and len(operands) == 1
    (x,), (at,) = operands, batch_dims
    over = lambda closed: jax.vmap(lambda x: jaxpr_as_fun(closed)(x)[0], in_axes=at, out_axes=at)  # noqa: E731
    return [linear_call(lambda _, x: over(callee)(x), lambda _, ct: over(transpose_thunk()[0])(ct), (), x)], [at]


(_LINEAR_CALL,) = {eqn.primitive for eqn in jax.make_jaxpr(lambda x: linear_call(lambda _, x: x, lambda _, x: x, (), x))(0.0).eqns}
batching.primitive_batchers[_LINEAR_CALL] = _batched
