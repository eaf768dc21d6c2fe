"""Ops that put the elements along a dim in order: sort and argsort.

They and those of `selection.py` order elements alike: -0 equals 0, a NaN is larger than any
number, and of equal elements the one with the lowest index comes first. So a result does not depend
on how the dim is split, and neither does a gradient.
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
from meshdsl.dims import Dim
from meshdsl.lowering.device_loop import DeviceLoop
from meshdsl.lowering.law import apply_op_many
from meshdsl.lowering.nest import Nest
from meshdsl.ops.comparison import bounds, last
from meshdsl.ops.declare import Case, Draw, op
from meshdsl.tensor import Tensor


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
    return sort_wanted("sort", x, dim, descending, (0,))[0]


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
    return sort_wanted("argsort", x, dim, descending, (1,))[0]


def sort_wanted(
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

    Indices travel only for a derivative, which has to tell equal elements apart.
    """
    if _rows_are_cheaper(loop, dim, a):
        return _by_rows(loop, dim, [a], lambda a: _arranged([a], descending))[0]
    return _merged(loop, dim, [a], descending)[0]


@_values.defjvp
def _values_jvp(loop, dim, descending, primals, tangents):
    return jax.jvp(lambda a: _sorted(loop, dim, descending, (0,), a)[0], primals, tangents)


def _sorted(loop: DeviceLoop, dim: Dim, descending: bool, wanted: tuple[int, ...], a):
    """`a` sorted along the last dimension (0), and the indices of its elements (1), as `wanted`.

    Of equal elements the one with the lowest index comes first.
    """
    a = a if 0 in wanted else lax.stop_gradient(a)
    # In descending order the indices of equal elements are still to ascend: they are inverted
    # before the sort and after it.
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

    They are compared by the first operand, and where that ties by the next one, and so on.
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
    """Tensors of the same dims, all sorted along `dim` by the first of them.

    Args:
      keys: by how many of the Tensors they are sorted: by a later one where those before it tie.
        Elements that tie in all of these keep their order.
    """
    dims, at = operands[0].dims, operands[0].dims.index(dim)

    def local(loop: DeviceLoop, *arrays):
        arrays = [jnp.moveaxis(a, at, -1) for a in arrays]
        # No two indices tie, so that operands after the indices are not compared.
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
    """The results of `fn` for rows that are split along `dim`; `fn` gets whole rows."""
    shape, parts = arrays[0].shape, loop.parts(dim)
    every = [a.reshape(-1, shape[-1]) for a in arrays]
    count = len(every[0])
    shared = [jnp.pad(rows, [(0, -count % parts), (0, 0)]) for rows in every]
    results = fn(*[loop.all_to_all(rows, dim, 0, 1) for rows in shared])
    return [loop.all_to_all(b, dim, 1, 0)[:count].reshape(shape) for b in results]


def _merged(loop: DeviceLoop, dim: Dim, operands, descending: bool):
    """The operands sorted as by `_arranged`; their last dimension is a device's part of `dim`."""
    operands = _arranged(operands, descending)
    size, parts = loop.size(dim), loop.parts(dim)
    part = loop.offset(dim) // size if parts > 1 else 0
    for partners in _merge_partners(parts):
        partner = jnp.asarray(partners)[part]
        starts = [p * size for p in partners]
        # Padding stays at the end of the dim: of two parts, the later one keeps later elements.
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

    A part without a partner has itself as its partner.
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
