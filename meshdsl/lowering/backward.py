"""What a move of a parameter is to JAX, where its gradient shall not simply take the way back in the dtype that it comes in."""

from __future__ import annotations

from collections.abc import Callable

import jax
from jax import lax

from meshdsl.lowering.linear import linear
from meshdsl.tensor import Dtypes


def cast_and_moved(x, move: Callable, again: Callable, dtypes: Dtypes) -> jax.Array:
    """`move` of `x` cast to the dtype of use.

    By itself JAX would sum the gradient over devices in that dtype, and round the sum to it. Cast and move are one linear
    function instead: its transpose casts to the dtype of sums, moves back, and casts to the dtype of `x`.

    Args:
      move, again: the same linear function, run in the forward pass (once) and transposed in the backward pass.
    """
    like = jax.typeof(x).update(dtype=dtypes.sums)

    def transpose(ct):
        (made,) = jax.linear_transpose(again, like)(to_sum(ct, dtypes.sums))
        return made.astype(x.dtype)

    return linear(lambda x: move(x.astype(dtypes.use)), transpose, x)


def to_sum(x, dtype) -> jax.Array:
    """`x` in the dtype in which it is to be summed; a TPU's compiler would sum what was cast up just before in the dtype that it had."""
    return x if x.dtype == dtype else lax.optimization_barrier(x.astype(dtype))


def with_derivative_of(value, fn: Callable, x) -> jax.Array:
    """`value`, which is `fn(x)` come by at less cost, with the derivative by `x` that `fn` has.

    `fn` runs in forward mode only; in reverse mode only its transpose does.
    """

    @jax.custom_jvp
    def same(value, x):
        return value

    same.defjvp(lambda primals, tangents: (primals[0], fn(tangents[1])))
    return same(value, x)
