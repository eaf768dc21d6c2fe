"""The elements of a dim that a loop runs over: stacked, taken one by one, stacked again."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from meshdsl import dims as dim_algebra
from meshdsl.dims import Dim
from meshdsl.errors import MeshDSLError
from meshdsl.lowering import collectives, resharding
from meshdsl.lowering.carried import carried, uncarried
from meshdsl.lowering.scope import copy_of, with_copy
from meshdsl.ops.bodies import each, leaves_of, lying_as
from meshdsl.tensor import Tensor, is_tensor


def dim_of(name: str, tree, dim: Dim | str) -> Dim:
    """`dim`, which may be given by the name that it has in the Tensors of a tree."""
    tensors = [x for x in leaves_of(tree) if is_tensor(x)]
    return dim_algebra.resolve_one(name, [d for t in tensors for d in t.dims], dim)


def first_of(xs, dim: Dim, name: str):
    """The first of the elements that a scan hands to its body."""
    xs = each(lambda x: stacked(x, dim, None, name), xs)
    firsts = uncarried(jax.tree.map(_at_first, carried(xs)))
    return each(lambda x: element(x, dim), firsts)


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
    found = dim_algebra.find(name, x.dims, dim)
    if op is not None:
        x = resharding.in_turn(x, (found,), op)
    return in_front(x, found, name)


def in_front(x: Tensor, dim: Dim, name: str) -> Tensor:
    """`x` with `dim` as the first of its dims."""
    dim_algebra.find(name, x.dims, dim)
    return lying_as(x, (dim, *dim_algebra.without(x.dims, (dim,))))


def element(x, dim: Dim):
    """One element of a stacked Tensor as `lax.scan` gives it: its array has no `dim` any more."""
    if not is_tensor(x):
        return x
    assert x.dims[0] == dim
    placement = x.placement and x.placement._replace(axes=x.placement.axes[1:])
    copy = copy_of(x)
    x = x.replace(dims=x.dims[1:], placement=placement)
    return x if copy is None else with_copy(x, element(copy, dim))


def restacked(x, dim: Dim, name: str):
    """The inverse of `_element` for all elements together, split by the law."""
    if not is_tensor(x):
        return x
    dims = dim_algebra.distinct((dim, *x.dims), name)
    if x.placement is None:
        return Tensor(x.array, dims, x.role)
    return resharding.take_sums(
        Tensor(x.array, dims, x.role, x.placement._replace(axes=((), *x.placement.axes)))
    )
