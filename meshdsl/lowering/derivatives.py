"""Derivatives of functions of local arrays, where JAX's own would move or keep too much.

- `linear` states a transpose: `moves.gather` states that of a slice of copies so.
- `cast_and_moved` sums the gradient of a parameter in another dtype than that of its use.
- `together` keeps a compiler from putting off one of several gradients.
- `checkpoint` computes values again in the backward pass, instead of keeping them.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.custom_derivatives import SymbolicZero, linear_call
from jax.extend.core import jaxpr_as_fun
from jax.interpreters import batching

from meshdsl.tensor import Dtypes


def linear(fn: Callable, transpose: Callable, x) -> Any:
    """`fn(x)`, whose backward pass is `transpose` of the cotangent. Both are of pytrees of arrays.

    Args:
      fn: a linear function.
    """
    return linear_call(lambda _, x: fn(x), lambda _, ct: transpose(ct), (), x)


def _batched(operands, batch_dims, *, callee, transpose_thunk, num_callee_consts, num_res):
    """`linear_call` under vmap, which JAX lacks, without constants or residuals."""
    assert num_callee_consts == num_res == 0
    (size,) = {x.shape[at] for x, at in zip(operands, batch_dims, strict=True) if at is not None}
    front = lambda x, at: jnp.moveaxis(x, at, 0)
    many = lambda x: jnp.broadcast_to(x, (size, *x.shape))
    operands = [
        many(x) if at is None else front(x, at) for x, at in zip(operands, batch_dims, strict=True)
    ]
    over = lambda closed: jax.vmap(lambda xs: jaxpr_as_fun(closed)(*xs))
    result = linear(over(callee), lambda cts: over(transpose_thunk()[0])(cts), operands)
    return result, [0] * len(result)


(_LINEAR_CALL,) = {
    eqn.primitive for eqn in jax.make_jaxpr(lambda x: linear(lambda x: x, lambda x: x, x))(0.0).eqns
}
batching.primitive_batchers[_LINEAR_CALL] = _batched


@jax.custom_jvp
def together(arrays: list) -> list:
    """`arrays`, as they are. The backward pass computes the gradients of all before it uses any."""
    return arrays


@partial(together.defjvp, symbolic_zeros=True)
def _together_jvp(primals, tangents):
    (arrays,), (slopes,) = primals, tangents
    slopes = list(slopes)
    found = [i for i, x in enumerate(slopes) if not isinstance(x, SymbolicZero)]
    if len(found) > 1:
        together = lax.optimization_barrier([slopes[i] for i in found])
        for i, slope in zip(found, together, strict=True):
            slopes[i] = slope
    return arrays, slopes


def cast_and_moved(x, move: Callable, again: Callable, dtypes: Dtypes) -> jax.Array:
    """`move(x)`, with `x` cast to the dtype in which it travels, and then to that of use.

    By itself JAX would sum the gradient over devices in the dtype of use, and round the sum to it.
    So the cast and the move together are one linear function. Its transpose casts to the dtype of
    sums, moves back, and casts to the dtype of `x`. In forward mode a tangent moves in the dtype of
    use, because the dtype in which `x` travels may not have its values.

    Args:
      move: a linear function, which is run once, in the forward pass.
      again: the same function, which is transposed in the backward pass.
    """
    like = jax.typeof(x).update(dtype=dtypes.sums)

    def transpose(ct):
        (result,) = jax.linear_transpose(again, like)(to_sum(ct, dtypes.sums))
        return result.astype(x.dtype)

    def run(x, move: Callable):
        return linear(lambda x: move(x.astype(dtypes.use)), transpose, x)

    if dtypes.moves is None:
        return run(x, move)
    value = move(lax.stop_gradient(x).astype(dtypes.moves)).astype(dtypes.use)
    return with_derivative_of(value, partial(run, move=again), x)


def to_sum(x, dtype) -> jax.Array:
    """`x` cast to the dtype in which it is to be summed.

    Without the barrier, the compiler for TPUs would sum in the dtype before the cast.
    """
    return x if x.dtype == dtype else lax.optimization_barrier(x.astype(dtype))


def with_derivative_of(value, fn: Callable, x) -> Any:
    """`value`, with the derivative by `x` that `fn` has.

    The value is that of `fn(x)`, computed at less cost. In reverse mode only the transpose of `fn`
    runs, and `fn` itself does not.
    """

    @jax.custom_jvp
    def same(value, x):
        return value

    same.defjvp(lambda primals, tangents: (primals[0], fn(tangents[1])))
    return same(value, x)


def checkpoint(fn: Callable, policy: Callable | None, *, in_scan: bool = False) -> Callable:
    """`jax.checkpoint` of `fn`; `in_scan` is as in `md.checkpoint`."""
    body = _behind_barrier(fn) if in_scan else fn
    return jax.checkpoint(body, policy=policy, prevent_cse=not in_scan)


def _behind_barrier(fn: Callable) -> Callable:
    """`fn`, with a barrier in the backward pass before its first argument is used there.

    In the body of a scan this argument is the carry of one iteration. The barrier makes the
    compiler write the carry to an array of its own. Otherwise the compiler for TPUs may bring the
    carries of all iterations into another order in memory, in each iteration, because a product
    needs one of them in that order.
    """

    def apart(array):
        return _apart(array) if jnp.issubdtype(array.dtype, jnp.inexact) else array

    return lambda carry, *args: fn(jax.tree.map(apart, carry), *args)


@jax.custom_jvp
def _apart(array):
    return array


@_apart.defjvp
def _apart_jvp(primals, tangents):
    return lax.optimization_barrier(primals[0]), tangents[0]
