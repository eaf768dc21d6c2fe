"""cumcount: how many elements with the same index come before each along a dim.

Elements with the same index are brought together by a sort, so neither time nor memory grow with
the number of indices: a table of elements by indices is never made.
"""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import lax

from meshdsl import dims as dim_algebra
from meshdsl.dims import Dim
from meshdsl.lowering.device_loop import DeviceLoop
from meshdsl.ops.checks import check_indices, check_new
from meshdsl.ops.component import apply_alike
from meshdsl.ops.declare import Case, Draw, op
from meshdsl.tensor import Tensor


def _cumcount_example(cumcount: Callable, draw: Draw) -> Case:
    a, b, v = draw.dims("a", "b", "v")
    ids = draw.integers(a, b, below=v.size + 2)
    return Case(lambda ids: cumcount(ids, a, v), (ids,), (a,))


@op(
    computes="its own counts, then how often each index occurs in the parts before",
    moves=("all_gather",),
    mesh_tensorflow="EinsumOperation of one-hots with a triangle of ones; of the size of both dims",
    example=_cumcount_example,
    result="same",
    gradients=False,
)
def cumcount(ids: Tensor, dim: Dim | str, bins: Dim) -> Tensor:
    """How many elements before each along `dim` have the same index in `bins` (int32).

        md.cumcount(chosen, choices, experts)   # of the indices 3, 1, 3, 3: 0, 0, 1, 2

    An element whose index is outside of `bins` has 0. Where `dim` is split, each device counts in
    its part, and how often each index occurs in each part is gathered.

    Raises:
      MeshDSLError: `ids` are not whole numbers, lack `dim`, or have `bins` themselves.
    """
    dim = dim_algebra.find("cumcount", ids.dims, dim)
    check_indices("cumcount", ids)
    check_new("cumcount", ids, bins)
    at = ids.dims.index(dim)

    def local(loop: DeviceLoop, ids):
        rows = jnp.moveaxis(ids.astype(jnp.int32), at, -1)
        # Those outside of the bins are sorted last.
        rows = jnp.where((rows >= 0) & (rows < bins.size), rows, bins.size)
        shape = rows.shape
        rows = rows.reshape(-1, shape[-1])
        if loop.padding(dim):
            rows = jnp.where(loop.indices(dim) < dim.size, rows, bins.size)
        counted = _before(rows)
        if loop.axes(dim) and bins.size:
            before = _of_parts_before(loop, dim, _histogram(rows, bins.size))
            found = jnp.take_along_axis(before, rows, axis=1, mode="clip")
            counted = counted + found
        counted = jnp.where(rows < bins.size, counted, 0)
        return jnp.moveaxis(counted.reshape(shape), -1, at)

    return apply_alike("cumcount", local, ids, in_order=(dim,), fill=0)


def _before(rows):
    """How many equal elements stand before each, in every row."""
    positions = lax.broadcasted_iota(jnp.int32, rows.shape, 1)
    in_order, came_from = lax.sort((rows, positions), dimension=1, num_keys=1, is_stable=True)
    first = jnp.concatenate(
        [jnp.ones_like(in_order[:, :1], bool), in_order[:, 1:] != in_order[:, :-1]], axis=1
    )
    start = lax.cummax(jnp.where(first, positions, 0), axis=1)
    _, counted = lax.sort((came_from, positions - start), dimension=1, num_keys=1)
    return counted


def _histogram(rows, bins: int):
    """How often each index occurs in every row."""
    in_order = lax.sort(rows, dimension=1)
    edges = jnp.arange(bins + 1, dtype=jnp.int32)
    ends = jax.vmap(lambda row: jnp.searchsorted(row, edges))(in_order)
    return jnp.diff(ends, axis=1).astype(jnp.int32)


def _of_parts_before(loop: DeviceLoop, dim: Dim, counts):
    """The sums of `counts` over the parts of `dim` that lie before this one."""
    every = loop.gather(counts, dim)
    part = loop.offset(dim) // max(loop.size(dim), 1)
    before = jnp.arange(len(every), dtype=jnp.int32) < part
    return jnp.sum(jnp.where(before[:, None, None], every, 0), axis=0, dtype=jnp.int32)
