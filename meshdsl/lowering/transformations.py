"""Transformations of JAX, for bodies that take and return pytrees of arrays."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import lax

from meshdsl.lowering import repeats


def checkpoint(fn: Callable, policy: Callable | None, *, in_scan: bool = False) -> Callable:
    """`jax.checkpoint` of `fn`; `in_scan` as for the op of this name."""
    body = _behind_barrier(fn) if in_scan else fn
    return jax.checkpoint(body, policy=policy, prevent_cse=not in_scan)


def _behind_barrier(fn: Callable) -> Callable:
    """`fn`, with a barrier in the backward pass before its first argument is used there.

    In the body of a scan that argument is the carry of one turn. The barrier makes the compiler
    write it to an array of its own. TPU compilers may otherwise bring the carries of all turns into
    another order in memory, in each turn, where a product needs one of them in that order.
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


def traced_once(fn: Callable, *args) -> Callable:
    """What `fn` computes, as JAX traces it on `args`: `fn` itself runs here, and never again.

    `fn` returns a list of arrays.
    """
    run = repeats.shared(jax.make_jaxpr(fn)(*args))
    return lambda *args: run(*jax.tree.leaves(args))


def mean_of_turns(fn: Callable, length: int, zeros: list):
    """Run `fn(i)`, which returns `(out, summed)`, for each number below `length`.

    Args:
      zeros: what the sum of `summed` begins with.

    Returns:
      The mean of `out`, and the sum of `summed`.
    """

    def turn(total, index):
        out, summed = fn(index)
        return jax.tree.map(jnp.add, total, summed), out

    total, outs = lax.scan(turn, zeros, jnp.arange(length))
    return jax.tree.map(lambda a: jnp.mean(a, axis=0), outs), total
