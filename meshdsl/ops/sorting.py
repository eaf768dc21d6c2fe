"""Ops that order the elements along a dim: sort, top_k, nth_largest, searchsorted and the like.

All of them order elements alike: -0 equals 0, a NaN is larger than any number, and of equal
elements the one with the lowest index comes first. So a result does not depend on how the dim is
split, and neither does a gradient.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from meshdsl import dims as dim_algebra
from meshdsl.dims import Dim, Dims
from meshdsl.errors import MeshDSLError, quote
from meshdsl.lowering.device_loop import DeviceLoop
from meshdsl.lowering.law import apply_op, apply_op_many
from meshdsl.lowering.nest import Nest
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
from meshdsl.tensor import Tensor

_DIGIT = 4  # bits that one turn of `by_digits` finds


def _sort_example(sort: Callable, draw: Draw) -> Case:
    a, b = draw.dims("a", "b")
    descending = draw.pick(False, True)
    x = draw.tensor(*draw.pick((a, b), (a,)))
    return Case(lambda x: sort(x, a, descending=descending), (x,), (a,))


@op(
    computes="rows that it gets whole; a lone row: its part, merged with those of others in turn",
    moves=("all_to_all", "ppermute"),
    example=_sort_example,
    result="same",
)
def sort(x: Tensor, dim: Dim | str, *, descending: bool = False) -> Tensor:
    """`x` with its elements along `dim` in order.

    A NaN comes after every number, or before all of them where `descending`.

    A split dim is never gathered. There are two ways, and the one that moves less is taken. Where
    `x` has enough rows, an all_to_all gives each device whole rows to sort, and another brings
    them back; each moves the size of a part. Else the parts are sorted and then merged in pairs,
    by Batcher's network (Knuth, The Art of Computer Programming 3, 5.2.2, algorithm M): for up to
    2^m parts these are m(m + 1)/2 exchanges, each of the size of a part.
    """
    return _sort("sort", x, dim, descending, (0,))[0]


@op(
    computes="rows that it gets whole; a lone row: its part, merged with those of others in turn",
    moves=("all_to_all", "ppermute"),
    example=_sort_example,
    result="same",
    gradients=False,
)
def argsort(x: Tensor, dim: Dim | str, *, descending: bool = False) -> Tensor:
    """The indices (int32) that would put the elements of `x` along `dim` in order; see `sort`.

    Equal elements keep their order, also where `descending`.
    """
    return _sort("argsort", x, dim, descending, (1,))[0]


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
        values, indices = _sort("top_k", x, dim, True, (0, 1))
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
    """The `k` largest (or all that there are) along the last dimension, and their positions."""
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
    how = {"in_order": (dim,), "sums": False, "fill": bounds(x.dtype)[0]}
    return apply_op(name, local, (x,), loop=x.dims, out=out, **how)


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
    """The `n`th largest of integers along their last dimension, which is a part of `dim`.

    By radix selection: each turn finds some bits of the result, the highest first.
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
      zeros: of the shape and the dtype of the result.
      suffices: says of some candidates for each element, along one more dimension at the end,
        which of them suffice. Those do that are not larger than another that does.
    """
    found, dtype = zeros, zeros.dtype
    for shift in range(dtype.itemsize * 8 - _DIGIT, -1, -_DIGIT):
        candidates = found[..., None] | (jnp.arange(1, 2**_DIGIT, dtype=dtype) << shift)
        digit = jnp.sum(suffices(candidates), -1).astype(dtype)  # as many as suffice
        found = found | (digit << shift)
    return found


def _sort(
    name: str, x: Tensor, dim: Dim | str, descending: bool, wanted: tuple[int, ...]
) -> tuple[Tensor, ...]:
    """An op that sorts; `wanted` are its results: 0 the elements in order, 1 their indices."""
    dim = dim_algebra.find(name, x.dims, dim)
    at = x.dims.index(dim)

    def local(loop: DeviceLoop, a):
        a = jnp.moveaxis(a, at, -1)
        if wanted == (0,):
            result = [_values(loop, dim, descending, a)]
        else:
            result = _sorted(loop, dim, descending, wanted, a)
        return [jnp.moveaxis(b, -1, at) for b in result]

    nest = Nest(x.dims, (x.dims,) * len(wanted), in_order=(dim,))
    return apply_op_many(name, local, (x,), nest, fill=_end(x.dtype, descending))


@partial(jax.custom_jvp, nondiff_argnums=(0, 1, 2))
def _values(loop: DeviceLoop, dim: Dim, descending: bool, a):
    """`a` sorted along the last dimension.

    Indices travel only for a derivative, which asks which of equal elements came where.
    """
    if _rows_are_cheaper(loop, dim, a):
        return _by_rows(loop, dim, [a], lambda a: _arranged([a], descending))[0]
    return _merged(loop, dim, [a], descending)[0]


@_values.defjvp
def _values_jvp(loop, dim, descending, primals, tangents):
    return jax.jvp(lambda a: _sorted(loop, dim, descending, (0,), a)[0], primals, tangents)


def _sorted(loop: DeviceLoop, dim: Dim, descending: bool, wanted: tuple[int, ...], a):
    """The wanted ones of: `a` sorted along the last dimension, and the indices of its elements.

    Of equal elements the one with the lowest index comes first.
    """
    a = a if 0 in wanted else lax.stop_gradient(a)
    # Indices are inverted before and after a sort in descending order, so they come out ascending.
    turned = (lambda i: ~i) if descending else (lambda i: i)

    def whole(a):
        indices = jnp.broadcast_to(jnp.arange(a.shape[-1], dtype=jnp.int32), a.shape)
        values, indices = _arranged([a, turned(indices)], descending)
        return [(values, turned(indices))[i] for i in wanted]

    if _rows_are_cheaper(loop, dim, a):
        return _by_rows(loop, dim, [a], whole)
    indices = jnp.broadcast_to(loop.indices(dim), a.shape)
    values, indices = _merged(loop, dim, [a, turned(indices)], descending)
    return [(values, turned(indices))[i] for i in wanted]


def _arranged(operands, descending: bool):
    """The operands sorted together along their last dimension.

    The first one is compared first, the others where those before them tie.
    """
    result = lax.sort(operands, dimension=-1, num_keys=len(operands))
    return [jnp.flip(a, -1) for a in result] if descending else result


def _end(dtype, descending: bool) -> Any:
    """The value that is sorted after all others."""
    return bounds(dtype)[0] if descending else last(dtype)


def _rows_are_cheaper(loop: DeviceLoop, dim: Dim, a) -> bool:
    """Whether two all_to_alls of rows move less than the exchanges of a merge."""
    parts, rows = loop.parts(dim), math.prod(a.shape[:-1])
    return 2 * (parts - 1) * -(-rows // parts) < len(_merge_partners(parts)) * rows


def sort_together(operands: Sequence[Tensor], dim: Dim, keys: int) -> tuple[Tensor, ...]:
    """Tensors of the same dims, all in the order of the first ones.

    Args:
      keys: how many are compared, one after the other where those before are equal. Elements that
        are equal in all of them keep their order.
    """
    dims, at = operands[0].dims, operands[0].dims.index(dim)

    def local(loop: DeviceLoop, *arrays):
        arrays = [jnp.moveaxis(a, at, -1) for a in arrays]
        # Indices differ, so that nothing behind them is compared.
        indices = jnp.broadcast_to(loop.indices(dim), arrays[0].shape)
        every = [*arrays[:keys], indices, *arrays[keys:]]
        if _rows_are_cheaper(loop, dim, indices):
            result = _by_rows(loop, dim, every, lambda *every: _arranged(every, False))
        else:
            result = _merged(loop, dim, every, False)
        return [jnp.moveaxis(a, -1, at) for a in (*result[:keys], *result[keys + 1 :])]

    nest = Nest(dims, (dims,) * len(operands), in_order=(dim,), sums=False)
    fill = tuple(_end(x.dtype, False) for x in operands)
    return tuple(apply_op_many("sort", local, tuple(operands), nest, fill=fill))


def _by_rows(loop: DeviceLoop, dim: Dim, arrays: Sequence, fn: Callable):
    """The results of `fn`, which works on whole rows, for rows that are split along `dim`."""
    shape, parts = arrays[0].shape, loop.parts(dim)
    every = [a.reshape(-1, shape[-1]) for a in arrays]
    count = len(every[0])
    shared = [jnp.pad(rows, [(0, -count % parts), (0, 0)]) for rows in every]
    results = fn(*[loop.all_to_all(rows, dim, 0, 1) for rows in shared])
    return [loop.all_to_all(b, dim, 1, 0)[:count].reshape(shape) for b in results]


def _merged(loop: DeviceLoop, dim: Dim, operands, descending: bool):
    """The operands sorted as `_arranged` does, where their last dimension is a part of `dim`."""
    operands = _arranged(operands, descending)
    size, parts = loop.size(dim), loop.parts(dim)
    part = loop.offset(dim) // size if parts > 1 else 0
    for partners in _merge_partners(parts):
        partner = jnp.asarray(partners)[part]
        starts = [p * size for p in partners]
        # Padding stays where it is, at the end: every pair leaves the later elements in its later
        # part.
        theirs = [
            loop.fetch(a, a.ndim - 1, dim, starts, size, fill=_end(a.dtype, descending))
            for a in operands
        ]
        both = _arranged(
            [jnp.concatenate(pair, -1) for pair in zip(operands, theirs, strict=True)], descending
        )
        kept = [jnp.where(part < partner, a[..., :size], a[..., size:]) for a in both]
        operands = [jnp.where(part == partner, a, b) for a, b in zip(operands, kept, strict=True)]
    return operands


def _merge_partners(parts: int) -> list[list[int]]:
    """Batcher's merge exchange: for each exchange the partner of each part.

    A part that has no partner is its own.
    """
    exchanges = []
    spans = [1 << i for i in range((parts - 1).bit_length())]
    for span in spans:
        for gap in reversed([g for g in spans if g <= span]):
            partners = list(range(parts))
            for start in range(gap % span, parts - gap, 2 * gap):
                for i in range(start, min(start + gap, parts - gap)):
                    if i // (2 * span) == (i + gap) // (2 * span):
                        partners[i], partners[i + gap] = i + gap, i
            exchanges.append(partners)
    return exchanges


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
        table = jnp.transpose(table, _order(ordered.dims, (*shared, *rows, dim)))
        v = jnp.transpose(v, _order(values.dims, (*shared, *wanted)))
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


def _order(dims: Dims, target: Dims) -> tuple[int, ...]:
    """The positions that the dims of `target` have in `dims`."""
    return tuple(dims.index(d) for d in target)
