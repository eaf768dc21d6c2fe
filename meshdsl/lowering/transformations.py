"""Transformations of JAX, for bodies that take and return pytrees of arrays, or of types of arrays.

A body is the function that a transformation is given. Where types take the place of arrays
(`array_type`), it is called once, and the types of what the transformation would return follow from
the types that the body returned.
"""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import lax

from meshdsl.array_type import ArrayType, body_of_types, only_types
from meshdsl.lowering import repeats


def scan(body: Callable, carry, xs, *, length: int, **how):
    """`jax.lax.scan`."""
    if not only_types():
        return lax.scan(body, carry, xs, length=length, **how)
    with body_of_types():
        after, ys = body(_other_arrays(carry), jax.tree.map(_element, xs))
    return _other_arrays(after), jax.tree.map(lambda y: _stack(y, length), ys)


def checkpoint(fn: Callable, policy: Callable | None, *, in_scan: bool = False) -> Callable:
    """`jax.checkpoint` of `fn`; `in_scan` as for the op of this name."""
    if not only_types():
        body = _behind_barrier(fn) if in_scan else fn
        return jax.checkpoint(body, policy=policy, prevent_cse=not in_scan)

    def run(*args):
        with body_of_types():
            result = fn(*_other_arrays(args))
        return _other_arrays(result)

    return run


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

    `fn` returns a list of arrays. Of types the result returns the same ones at each call, whatever
    it is called with.
    """
    if not only_types():
        run = repeats.shared(jax.make_jaxpr(fn)(*args))
        return lambda *args: run(*jax.tree.leaves(args))
    with body_of_types():
        result = fn(*_other_arrays(args))
    return lambda *_: _other_arrays(result)


def value_and_grad(fn: Callable) -> Callable:
    """`jax.value_and_grad(fn, has_aux=True)`."""
    if not only_types():
        return jax.value_and_grad(fn, has_aux=True)

    def run(by, *args):
        return fn(by, *args), _other_arrays(by)

    return run


def mean_of_turns(fn: Callable, length: int, zeros: list):
    """Run `fn(i)`, which returns `(out, summed)`, for each number below `length`.

    Args:
      zeros: what the sum of `summed` begins with.

    Returns:
      The mean of `out`, and the sum of `summed`.
    """
    if only_types():
        out, _ = fn(0)
        return jax.tree.map(_mean, out), _other_arrays(zeros)

    def turn(total, index):
        out, summed = fn(index)
        return jax.tree.map(jnp.add, total, summed), out

    total, outs = lax.scan(turn, zeros, jnp.arange(length))
    return jax.tree.map(lambda a: jnp.mean(a, axis=0), outs), total


def element(x, index, at: int):
    """The element `index` of position `at`, without the position."""
    if isinstance(x, ArrayType):
        return x.like(shape=(*x.shape[:at], *x.shape[at + 1 :]))
    return lax.dynamic_index_in_dim(x, index, at, keepdims=False)


def _other_arrays(tree):
    """A tree with types of other arrays in the place of those of `tree`; arrays of JAX as they are.

    JAX hands a body arrays that are not those outside of it, and returns others than the body did.
    """
    return jax.tree.map(lambda x: x.like() if isinstance(x, ArrayType) else x, tree)


def _element(x):
    """The first element of position 0, as a body of `scan` gets it; zeros where there is none."""
    if isinstance(x, ArrayType) or x.shape[0]:
        return element(x, 0, 0)
    return jnp.zeros(x.shape[1:], x.dtype)


def _stack(x, length: int):
    """What `scan` makes of a result of its body: `length` of it, stacked at position 0."""
    if isinstance(x, ArrayType):
        return x.like(shape=(length, *x.shape))
    return jnp.broadcast_to(x, (length, *jnp.shape(x)))


def _mean(x):
    """The mean of equal arrays like `x`, which has the dtype that `jnp.mean` gives."""
    if isinstance(x, ArrayType):
        inexact = jnp.issubdtype(x.dtype, jnp.inexact)
        return x.like() if inexact else x.like(dtype=jnp.dtype(jnp.float32))
    return jnp.mean(x[None], axis=0)
