"""scan: a body run over the elements of a dim, one after another, with a carry."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext

import jax
import jax.numpy as jnp

from meshdsl import dims as dim_algebra
from meshdsl.dims import Dim
from meshdsl.errors import MeshDSLError, quote
from meshdsl.lowering import collectives, resharding, transformations
from meshdsl.lowering.carried import carried, carrying, uncarried
from meshdsl.lowering.copies import copy_of, with_copy
from meshdsl.ops.bodies import (
    arrays_in,
    each,
    fixed,
    leaves_of,
    lying_as,
    matching,
    scope_of,
    scope_within,
    value,
)
from meshdsl.ops.declare import along_a, op
from meshdsl.ops.functions import FUNCTIONS
from meshdsl.ops.reduce import sum
from meshdsl.tensor import Tensor, is_tensor


def _scan_example(scan: Callable, x: Tensor, a: Dim, b: Dim):
    body = lambda total, x: (FUNCTIONS["tanh"](total + x), total * x)
    return scan(body, sum(x, a), x, dim=a)


@op(
    computes="the body, for one element of the dim after another; the dim is whole",
    example=along_a(_scan_example),
)
def scan(fn: Callable, carry, xs=(), *, dim: Dim | str, reverse: bool = False, unroll: int = 1):
    """Run `fn` over the elements of `dim`, one after another: `carry, y = fn(carry, x)`.

    Args:
      carry: a pytree of Tensors (and arrays); each keeps its dims and dtype from turn to turn. A
        parameter in it is a value from then on.
      xs: a pytree of Tensors that have `dim`, and of arrays whose first dimension is it; `fn` gets
        them without it.
      dim: the dim, or the name that it has in `xs`; it is whole while the scan runs, whatever the
        layout says of it.
      reverse: begin with the last element.
      unroll: how many elements one turn of the compiled loop takes.

    Returns:
      The last carry, and the results `y` with `dim` in front.

    Raises:
      MeshDSLError: a Tensor in `xs` lacks `dim`, or a carry changes its dims or dtype.
    """
    return scan_as("scan", fn, carry, xs, dim, reverse=reverse, unroll=unroll)


def scan_as(
    name: str, fn: Callable, carry, xs, dim: Dim | str, *, reverse: bool = False, unroll: int = 1
):
    """`scan`, for the op that errors are to call `name`."""
    if unroll < 0:
        raise MeshDSLError(
            f"{name}: `unroll` is the number of steps that a turn makes, at least 0, not {unroll}"
        )
    arrays_in(name, "carry", carry)
    arrays_in(name, "input", xs)
    dim = dim_of(name, xs, dim)
    scope = scope_of(name, (carry, xs)) or scope_within(
        name, lambda: fn(carry, _first(xs, dim, name))
    )
    carry = each(lambda t: value(t, scope), carry)
    op = scope.recorder.begin("scan", (dim,), ((),)) if scope else None
    xs = each(lambda x: stacked(x, dim, op, name), xs)

    def body(carry, x):
        made = fn(carry, each(lambda t: _element(t, dim), x))
        if not isinstance(made, tuple) or len(made) != 2:
            raise MeshDSLError(
                f"{name}: the body returns the carry and a result, `(carry, y)`, not {quote(made)}"
            )
        after, y = arrays_in(name, "result of the body", made, scope)
        after = matching(name, each(lambda t: value(t, scope), after), carry)
        return after, each(lambda t: fixed(t, scope), y)

    with scope.recorder.repeated(dim.name, dim.size) if scope else nullcontext():
        how = {"length": dim.size, "reverse": reverse, "unroll": unroll}
        carry, ys = transformations.scan(carrying(body), carried(carry), carried(xs), **how)
    return uncarried(carry), each(lambda t: restacked(t, dim, name), uncarried(ys))


def dim_of(name: str, tree, dim: Dim | str) -> Dim:
    """`dim`, which may be given by the name that it has in the Tensors of a tree."""
    tensors = [x for x in leaves_of(tree) if is_tensor(x)]
    return dim_algebra.resolve_one(name, [d for t in tensors for d in t.dims], dim)


def _first(xs, dim: Dim, name: str):
    """The first of the elements that a scan hands to its body."""
    xs = each(lambda x: stacked(x, dim, None, name), xs)
    firsts = uncarried(jax.tree.map(_at_first, carried(xs)))
    return each(lambda x: _element(x, dim), firsts)


def _at_first(a):
    """The first element of an array, or one like it where there is none."""
    if a.shape[0]:
        return a[0]
    return collectives.vary(jnp.zeros(a.shape[1:], a.dtype), collectives.varying(a))


def stacked(x, dim: Dim, op, name: str):
    """`x` with `dim` whole and in front, as `lax.scan` wants it, each element split by the law."""
    if not is_tensor(x):
        if jnp.shape(x)[:1] != (dim.size,):
            raise MeshDSLError(
                f"{name}: an array of shape {jnp.shape(x)} does not have {dim} in front"
            )
        return x
    at = x.dims.index(dim_algebra.find(name, x.dims, dim))
    if op is not None:
        x = resharding.in_turn(x, (dim,), op)
    return lying_as(x, (x.dims[at], *x.dims[:at], *x.dims[at + 1 :]))


def _element(x, dim: Dim):
    """One element of a stacked Tensor as `lax.scan` gives it: its array has no `dim` any more."""
    if not is_tensor(x):
        return x
    assert x.dims[0] == dim
    placement = x.placement and x.placement._replace(axes=x.placement.axes[1:])
    copy = copy_of(x)
    x = x.replace(dims=x.dims[1:], placement=placement)
    return x if copy is None else with_copy(x, _element(copy, dim))


def restacked(x, dim: Dim, name: str):
    """The inverse of `_element` for all elements together, split by the law."""
    if not is_tensor(x):
        return x
    dims = dim_algebra.distinct((dim, *x.dims), name)
    if x.placement is None:
        return Tensor(x.array, dims, x.role)
    return resharding.settle(
        Tensor(x.array, dims, x.role, x.placement._replace(axes=((), *x.placement.axes)))
    )
