"""Ops that choose elements by their order: top_k, nth_largest, nth_smallest and searchsorted.

The order is that of `sorting.py`. A split dim is never gathered: each device finds candidates, or
counts, in its own part, and these are combined.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
from jax import lax

from meshdsl import dims as dim_algebra
from meshdsl.dims import Dim
from meshdsl.errors import MeshDSLError, quote
from meshdsl.lowering.device_loop import DeviceLoop
from meshdsl.lowering.law import apply_op, apply_op_many
from meshdsl.lowering.nest import Nest
from meshdsl.ops.arrays import in_order
from meshdsl.ops.comparison import (
    bounds,
    canonical,
    check_real,
    check_some,
    computed_once,
    from_key,
    last,
    share_ties,
    to_key,
)
from meshdsl.ops.declare import Case, Draw, along_a, op
from meshdsl.ops.sorting import sort, sort_wanted
from meshdsl.tensor import Tensor

_DIGIT = 4  # how many bits `by_digits` finds at a time


@op(
    computes="the k largest of its part; the k largest of those of all parts, which are gathered",
    moves=("all_gather",),
    mesh_tensorflow="TopKOperation; the new dim may not be split",
    example=along_a(
        lambda top_k, x, a, b, k: top_k(x, a, k),
        lambda draw, a: (Dim("v", draw.integer(0, a.size)),),
    ),
)
def top_k(x: Tensor, dim: Dim | str, k: int | Dim) -> tuple[Tensor, Tensor]:
    """The `k` largest elements of `x` along `dim`, largest first, and their indices (int32).

    Where `dim` is split, each device finds the `k` largest of its part, and only these are
    gathered.

    Args:
      k: how many; a Dim also names the results' dim.

    Raises:
      MeshDSLError: `dim` has fewer than `k` elements, or `x` is complex.
    """
    dim = dim_algebra.find("top_k", x.dims, dim)
    check_real("top_k", x)
    new = k if isinstance(k, Dim) else Dim(dim.name, k)
    if new.size > dim.size:
        raise MeshDSLError(
            f"top_k: {new.size} elements along {dim} of {dim_algebra.show(x.dims)}, which has "
            f"{dim.size}"
        )
    if new == dim:
        values, indices = sort_wanted("top_k", x, dim, True, (0, 1))
        return values, indices
    at = x.dims.index(dim)
    out = dim_algebra.distinct(dim_algebra.replace(x.dims, dim, (new,)), "top_k")

    def local(loop: DeviceLoop, a):
        a = jnp.moveaxis(a, at, -1)
        if new.size >= loop.size(dim):  # every element is a candidate, and known by its position
            values, indices = _top(_gathered(loop, a, dim), new.size)
        else:
            values, indices = _top(a, new.size)
            if loop.axes(dim):
                # Parts are gathered in the order of their indices, so ties stay in that order too.
                indices = _gathered(loop, indices + loop.offset(dim), dim)
                values, chosen = _top(_gathered(loop, values, dim), new.size)
                indices = jnp.take_along_axis(indices, chosen, -1)
        return jnp.moveaxis(values, -1, at), jnp.moveaxis(indices, -1, at)

    nest = Nest(x.dims, (out, out), in_order=(dim,), sums=False)
    values, indices = apply_op_many("top_k", local, (x,), nest, fill=bounds(x.dtype)[0])
    return values, indices


def _top(a, k: int):
    """The `k` largest along the last dimension, or all if there are fewer, and their positions."""
    _, chosen = lax.top_k(canonical(lax.stop_gradient(a)), min(k, a.shape[-1]))
    return jnp.take_along_axis(a, chosen, -1), chosen


def _gathered(loop: DeviceLoop, a, dim: Dim):
    """`a` of every device along which `dim` is split, one after the other in the last dimension."""
    parts = jnp.moveaxis(loop.gather(a, dim), 0, -2)
    return lax.collapse(parts, parts.ndim - 2)


_declare_nth = op(
    computes="the largest of its part; or, where those are many, how many elements of its part "
    "are above bounds, which close in",
    moves=("all_gather", "psum"),
    mesh_tensorflow="TopKOperation; gathers n elements of each part",
    example=along_a(
        lambda nth, x, a, b, n: nth(x, a, n),
        lambda draw, a: (draw.integer(1, max(1, a.size)),),
    ),
    result="removes",
)


@_declare_nth
def nth_largest(x: Tensor, dim: Dim | str, n: int) -> Tensor:
    """The `n`th largest element along `dim`; the first is the maximum.

    Elements equal to it share the gradient. Where `dim` is split, either the `n` largest elements
    of each part are gathered, or the result is found digit by digit: devices count how many
    elements are at least as large as each of a few candidates. Of the two, the one that moves
    less is taken.

    Raises:
      MeshDSLError: `dim` has fewer than `n` elements, or `x` is complex.
    """
    return _nth("nth_largest", x, dim, n, largest=True)


@_declare_nth
def nth_smallest(x: Tensor, dim: Dim | str, n: int) -> Tensor:
    """The `n`th smallest element along `dim`; otherwise as `nth_largest`."""
    return _nth("nth_smallest", x, dim, n, largest=False)


def _nth(name: str, x: Tensor, dim: Dim | str, n: int, *, largest: bool) -> Tensor:
    dim = dim_algebra.find(name, x.dims, dim)
    check_some(name, x, (dim,))
    if not hasattr(n, "__index__") or not 1 <= n <= dim.size:
        raise MeshDSLError(
            f"{name}: no element number {quote(n)} along {dim} of {dim_algebra.show(x.dims)}; they "
            f"count from 1 to {dim.size}"
        )
    check_real(name, x)
    n = n if largest else dim.size + 1 - n
    at = x.dims.index(dim)
    out = dim_algebra.without(x.dims, (dim,))
    local = lambda loop, a: _nth_of(loop, dim, n, jnp.moveaxis(a, at, -1))
    return apply_op(
        name,
        local,
        (x,),
        loop=x.dims,
        out=out,
        in_order=(dim,),
        sums=False,
        fill=bounds(x.dtype)[0],
    )


@partial(jax.custom_jvp, nondiff_argnums=(0, 1, 2))
def _nth_of(loop: DeviceLoop, dim: Dim, n: int, a):
    """The `n`th largest element along the last dimension, which is this device's part of `dim`."""
    if not loop.axes(dim):
        return lax.sort(a)[..., a.shape[-1] - n]
    key = to_key(a)
    gathered = min(n, loop.size(dim)) * loop.parts(dim)
    counted = (2**_DIGIT - 1) * key.dtype.itemsize * 8 // _DIGIT
    if gathered <= counted:
        return _top(_gathered(loop, _top(a, n)[0], dim), n)[0][..., -1]
    return from_key(_selected(loop, key, dim, n), a.dtype)


@_nth_of.defjvp
def _nth_of_jvp(loop, dim, n, primals, tangents):
    a = computed_once(primals[0])
    nth = _nth_of(loop, dim, n, a)
    return nth, share_ties(loop, (dim,), (a.ndim - 1,), a, nth, tangents[0])


def _selected(loop: DeviceLoop, key, dim: Dim, n: int):
    """The `n`th largest integer along the last dimension, which is this device's part of `dim`.

    It is found by radix selection: some bits of the result at a time, the highest first.
    """
    dtype = jnp.dtype(f"uint{key.dtype.itemsize * 8}")
    bits = dtype.itemsize * 8
    flip = (
        jnp.array(1 << (bits - 1), dtype)
        if jnp.issubdtype(key.dtype, jnp.signedinteger)
        else jnp.array(0, dtype)
    )
    unsigned = lax.bitcast_convert_type(key, dtype) ^ flip

    def suffices(candidates):
        above = jnp.sum(unsigned[..., None, :] >= candidates[..., None], -1, dtype=jnp.int32)
        return loop.psum(above, dim) >= n

    found = by_digits(jnp.zeros(key.shape[:-1], dtype), suffices)
    return lax.bitcast_convert_type(found ^ flip, key.dtype)


def by_digits(zeros, suffices: Callable) -> jax.Array:
    """The largest unsigned integers that suffice, found digit by digit, the highest first.

    Args:
      zeros: an array of the shape and the dtype of the result.
      suffices: called with several candidates for each element, along one more dimension at the
        end; says which of them suffice. If a number suffices, every smaller one does too.
    """
    found, dtype = zeros, zeros.dtype
    for shift in range(dtype.itemsize * 8 - _DIGIT, -1, -_DIGIT):
        candidates = found[..., None] | (jnp.arange(1, 2**_DIGIT, dtype=dtype) << shift)
        digit = jnp.sum(suffices(candidates), -1).astype(dtype)  # as many as suffice
        found = found | (digit << shift)
    return found


def _searchsorted_example(searchsorted: Callable, draw: Draw) -> Case:
    a, b, c = draw.dims("a", "b", "c")
    side = draw.pick("left", "right")
    ordered = sort(draw.tensor(a, b, low=0.0), a)  # as whole numbers of any dtype it is sorted too
    operands = ordered, draw.tensor(*draw.pick((b, c), (c,)))
    return Case(lambda x, values: searchsorted(x, values, a, side=side), operands, (a,))


@op(
    computes="how many elements of its part come before a value",
    example=_searchsorted_example,
    gradients=False,
)
def searchsorted(ordered: Tensor, values: Tensor, dim: Dim | str, *, side: str = "left") -> Tensor:
    """How many elements of `ordered`, which is sorted along `dim`, come before each of `values`.

    The counts are int32. Dims that the two share are taken together. Where `dim` is split, each
    device counts in its part, and the counts are summed.

    Args:
      side: "left" counts the elements below a value, "right" also those equal to it. A NaN is above
        every number.

    Raises:
      MeshDSLError: `values` have `dim` themselves, or `side` is neither.
    """
    dim = dim_algebra.find("searchsorted", ordered.dims, dim)
    if side not in ("left", "right"):
        raise MeshDSLError(f"searchsorted: side is 'left' or 'right', not {quote(side)}")
    if dim in values.dims:
        raise MeshDSLError(
            f"searchsorted: the values {dim_algebra.show(values.dims)} have the dim {dim} that is "
            "searched; rename it"
        )
    every = dim_algebra.union("searchsorted", [ordered.dims, values.dims])
    shared = tuple(d for d in values.dims if d in ordered.dims)
    rows = dim_algebra.without(ordered.dims, (*shared, dim))
    wanted = dim_algebra.without(values.dims, shared)

    def local(loop: DeviceLoop, table, v):
        table = in_order(table, ordered.dims, (*shared, *rows, dim))
        v = in_order(v, values.dims, (*shared, *wanted))
        real = jnp.clip(dim.size - loop.offset(dim), 0, loop.size(dim))  # elements, not padding

        def search(row, v):
            return jnp.minimum(jnp.searchsorted(row, v, side=side), real).astype(jnp.int32)

        for _ in rows:
            search = jax.vmap(search, (0, None))
        for _ in shared:
            search = jax.vmap(search)
        return search(table, v)

    fill = (last(ordered.dtype), None)
    return apply_op(
        "searchsorted",
        local,
        (ordered, values),
        loop=every,
        out=(*shared, *rows, *wanted),
        in_order=(dim,),
        fill=fill,
    )
