"""Running sums, products, extrema, logsumexps and counts along a dim.

Each device scans the elements that it has. Where the dim is split, it then combines its results
with a prefix: what the parts before its own come to. For that, one all_gather brings the total of
every part, one number each, to all devices; the dim itself never travels. Less could travel, one
number to each device, but in as many exchanges, one after another, as the number of parts has
binary digits.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from meshdsl import dims as dim_algebra
from meshdsl.dims import Dim
from meshdsl.lowering.device_loop import DeviceLoop
from meshdsl.ops import component
from meshdsl.ops.checks import check_indices, check_new
from meshdsl.ops.comparison import bounds
from meshdsl.ops.declare import Case, Draw, along_a, op
from meshdsl.tensor import Tensor


class Scan(NamedTuple):
    """An associative operation on arrays, or on trees of arrays.

    Attributes:
      running: the results so far, of a tree, a position in an array's shape, and `reverse`.
      combine: the operation, of two trees.
      identity: what changes nothing when it is combined; a number for each leaf of the tree.
    """

    running: Callable
    combine: Callable
    identity: Any


class Along(NamedTuple):
    """Which dim a scan runs along, at which position of the array, and how."""

    loop: DeviceLoop
    dim: Dim
    at: int
    reverse: bool
    exclusive: bool


def _scanned(scan: Scan, along: Along, tree):
    """This device's part of the scan along a dim. Padding of the dim holds the identity."""
    loop, dim, at, reverse, exclusive = along
    running = scan.running(tree, at, reverse=reverse)
    own = _exclusive(scan, running, at, reverse) if exclusive else running
    if not loop.axes(dim):
        return own
    last = 0 if reverse else loop.size(dim) - 1
    totals = jax.tree.map(
        lambda a: loop.gather(lax.index_in_dim(a, last, at, keepdims=False), dim, varies=True),
        running,
    )
    before = _exclusive(scan, scan.running(totals, 0, reverse=reverse), 0, reverse)
    part = loop.offset(dim) // loop.size(dim)
    prefix = jax.tree.map(
        lambda a: jnp.expand_dims(lax.dynamic_index_in_dim(a, part, 0, keepdims=False), at), before
    )
    return scan.combine(own, prefix)


def _exclusive(scan: Scan, running, at: int, reverse: bool):
    """Results up to the element before: moved by one, with the identity in front."""

    def moved(a, identity):
        widths = [
            ((-1, 1, 0) if reverse else (1, -1, 0)) if i == at else (0, 0, 0) for i in range(a.ndim)
        ]
        return lax.pad(a, jnp.asarray(identity, a.dtype), widths)

    return jax.tree.map(moved, running, scan.identity)


@jax.custom_jvp
def _logaddexp(x, y):
    return jnp.logaddexp(x, y)


@_logaddexp.defjvp
def _logaddexp_jvp(primals, tangents):
    """As that of JAX, but the derivative is 0, and not NaN, where both operands are -infinity."""
    total = _logaddexp(*primals)

    def share(x):
        same = x == total  # infinities too
        ratio = jnp.exp(jnp.where(same, 0, x - jnp.where(same, 0, total)))
        return jnp.where(jnp.isneginf(x.real), 0, ratio)

    result: Any = sum(share(x) * t for x, t in zip(primals, tangents, strict=True))
    return total, result


def _associative(combine: Callable) -> Callable:
    """The results so far of an operation for which JAX has no function."""
    return lambda tree, at, reverse: lax.associative_scan(combine, tree, axis=at, reverse=reverse)


@partial(jax.custom_jvp, nondiff_argnums=(0, 1))
def _extremum(scan: Scan, along: Along, a):
    return _scanned(scan, along, a)


@_extremum.defjvp
def _extremum_jvp(scan, along, primals, tangents):
    """Elements that tie for the extremum share the derivative, on any device, as in `max`."""

    def tied(x, y):
        best = scan.combine(x[0], y[0])
        best_of = lambda i: jnp.where(x[0] == best, x[i], 0) + jnp.where(y[0] == best, y[i], 0)
        return best, best_of(1), best_of(2)

    (a,), (tangent,) = primals, tangents
    ties = Scan(_associative(tied), tied, (scan.identity, 0, 0))
    extremum, total, count = _scanned(ties, along, (a, tangent, jnp.ones_like(tangent)))
    return extremum, total / jnp.maximum(count, 1)


# For each op its scan, the operation that it repeats, and the identity of that.
SCANS = {
    "cumsum": (lax.cumsum, lax.add, lambda dtype: 0),
    "cumprod": (lax.cumprod, lax.mul, lambda dtype: 1),
    "cummax": (lax.cummax, lax.max, lambda dtype: bounds(dtype)[0]),
    "cummin": (lax.cummin, lax.min, lambda dtype: bounds(dtype)[1]),
    "cumlogsumexp": (_associative(_logaddexp), _logaddexp, lambda dtype: -jnp.inf),
}


def _cumulative(name: str, x: Tensor, dim: Dim | str, reverse: bool, exclusive: bool) -> Tensor:
    dim = dim_algebra.find(name, x.dims, dim)
    if name == "cumlogsumexp" and not jnp.issubdtype(x.dtype, jnp.inexact):
        x = component.cast(x, jnp.float32)
    if x.dtype == bool:
        x = component.cast(x, jnp.int32)
    if dim.size == 0:
        return x
    running, combine, identity = SCANS[name]
    scan = Scan(running, lambda x, y: combine(*jnp.broadcast_arrays(x, y)), identity(x.dtype))
    has_ties = name in ("cummax", "cummin") and jnp.issubdtype(x.dtype, jnp.inexact)
    fn, at = _extremum if has_ties else _scanned, x.dims.index(dim)
    local = lambda loop, a: fn(scan, Along(loop, dim, at, reverse, exclusive), a)
    return component.apply_alike(name, local, x, in_order=(dim,), fill=scan.identity)


_running = along_a(
    lambda fn, x, a, b, reverse, exclusive: fn(x, a, reverse=reverse, exclusive=exclusive),
    lambda draw, _: (draw.pick(False, True), draw.pick(False, True)),
)


@op(
    computes="its own scan, then the prefix of one total for each part",
    moves=("all_gather",),
    mesh_tensorflow="EinsumOperation with a triangle of ones (`cumsum`); forwards only",
    example=_running,
    result="same",
)
def cumsum(x: Tensor, dim: Dim | str, *, reverse: bool = False, exclusive: bool = False) -> Tensor:
    """The running sum along `dim`: each element is the sum of those up to it.

    Args:
      reverse: sum from the end of the dim.
      exclusive: leave out the element itself; the first result is then 0.
    """
    return _cumulative("cumsum", x, dim, reverse, exclusive)


_declare_running = op(
    computes="its own scan, then the prefix of one total for each part",
    moves=("all_gather",),
    example=_running,
    result="same",
)


@_declare_running
def cumprod(x: Tensor, dim: Dim | str, *, reverse: bool = False, exclusive: bool = False) -> Tensor:
    """The running product along `dim`; `reverse` and `exclusive` as in `cumsum`."""
    return _cumulative("cumprod", x, dim, reverse, exclusive)


@_declare_running
def cummax(x: Tensor, dim: Dim | str, *, reverse: bool = False, exclusive: bool = False) -> Tensor:
    """The largest element so far along `dim`; `reverse` and `exclusive` as in `cumsum`.

    Elements that tie share the gradient.
    """
    return _cumulative("cummax", x, dim, reverse, exclusive)


@_declare_running
def cummin(x: Tensor, dim: Dim | str, *, reverse: bool = False, exclusive: bool = False) -> Tensor:
    """The smallest element so far along `dim`; otherwise as `cummax`."""
    return _cumulative("cummin", x, dim, reverse, exclusive)


@_declare_running
def cumlogsumexp(
    x: Tensor, dim: Dim | str, *, reverse: bool = False, exclusive: bool = False
) -> Tensor:
    """`log(cumsum(exp(x)))` along `dim`, without overflow.

    `reverse` and `exclusive` are as in `cumsum`.
    """
    return _cumulative("cumlogsumexp", x, dim, reverse, exclusive)


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

    Elements with the same index are brought together by a sort: a table of elements by indices is
    never made. An element whose index is outside of `bins` has 0. Where `dim` is split, each device
    counts in its part, and how often each index occurs in each part is gathered.

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
        counted = _counted_before(rows)
        if loop.axes(dim) and bins.size:
            before = _of_parts_before(loop, dim, _histogram(rows, bins.size))
            found = jnp.take_along_axis(before, rows, axis=1, mode="clip")
            counted = counted + found
        counted = jnp.where(rows < bins.size, counted, 0)
        return jnp.moveaxis(counted.reshape(shape), -1, at)

    return component.apply_alike("cumcount", local, ids, in_order=(dim,), fill=0)


def _counted_before(rows):
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
