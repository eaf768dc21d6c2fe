"""Scatter, the inverse of `take`: elements are put where an index says; and sums by segment.

Each device works on its part of the dim that is scattered into, and drops what falls elsewhere.
Where the updates are split, each device applies those that it has, and the results of the devices
are combined: by a sum that stays pending until it is needed, or by a maximum.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from meshdsl import dims as dim_algebra
from meshdsl.dims import Dim, Dims
from meshdsl.errors import MeshDSLError
from meshdsl.lowering.device_loop import DeviceLoop
from meshdsl.lowering.law import apply_op
from meshdsl.ops import component
from meshdsl.ops.arrays import chosen, fitted, laid_along, within
from meshdsl.ops.checks import check_indices, one_of
from meshdsl.ops.comparison import bounds, computed_once, from_key, is_complex, parts, to_key
from meshdsl.ops.declare import Case, Draw, Example, op
from meshdsl.ops.reduce import Which
from meshdsl.tensor import Tensor


def _scatter_example(*hows: str) -> Example:
    def example(scatter: Callable, draw: Draw) -> Case:
        a, b, c = draw.dims("a", "b", "c")
        how, picked = draw.pick(*hows), draw.pick((c,), (b, c))
        operands = (
            draw.tensor(a, b),
            draw.integers(*picked, below=a.size + 1),
            draw.tensor(b, c),
        )
        call = lambda x, ids, updates: scatter(x, ids, updates, a, how=how)
        return Case(call, operands, (a, c))

    return example


@op(
    computes="the updates that fall into its part: the last of them",
    moves=("pmax",),
    example=_scatter_example("set"),
    result="same",
)
@op(
    computes="the updates that fall into its part: the largest (smallest) of them",
    moves=("pmax",),
    example=_scatter_example("max", "min"),
    result="same",
)
@op(
    computes="the updates that fall into its part, added up",
    mesh_tensorflow="OneHotOperation and EinsumOperation; of the size of both dims",
    example=_scatter_example("add"),
    result="same",
)
def scatter(
    x: Tensor,
    ids: Tensor | tuple[Tensor, ...],
    updates: Tensor,
    dim: Which,
    *,
    how: str = "add",
) -> Tensor:
    """`x` with `updates` put into it at the indices `ids` along `dim`: the inverse of `take`.

        md.scatter(cache, position, key, "memory", how="set")                    # one in each row
        md.scatter(cache, (layer, position), key, ("layers", "memory"), how="set")

    Dims that `x` and `ids` share are taken together: element by element. An update whose index is
    outside of `dim` is dropped. With several dims, `ids` has indices along each of them, which
    together say where an update goes.

    "set" writes into `x` in place, where nothing else needs `x` and each element has one update at
    most, as it has where `ids` have no dims but those of `x`.

    Args:
      updates: its dims are among those that `take(x, ids, dim)` has; it is repeated along those
        that it lacks.
      how: what becomes of an element that has updates. "add": they are added to it. "max", "min":
        the largest (smallest) of it and them; where that equals `x`, the gradient is that of `x`,
        and updates that tie share it. "set": the last of them, by index; where the indices have
        several dims of their own, these count in the alphabetical order of their names.

    Raises:
      MeshDSLError: `ids` are not whole numbers, have `dim` themselves or are not as many as the
        dims, `updates` have another dim, or there is no such `how`.
    """
    dims = dim_algebra.find_all("scatter", x.dims, dim)
    ids = ids if isinstance(ids, tuple) else (ids,)
    if len(ids) != len(dims):
        raise MeshDSLError(
            f"scatter: {len(ids)} Tensors of indices for {dim_algebra.show(dims)}; each of these "
            "dims has its own"
        )
    one_of("scatter: how", how, _HOW)
    target = _target("scatter", ids, updates, x.dims, dims)
    if not dim_algebra.size(target.loop):  # no update, or no element to update
        return x
    if how == "set" and not target.picked:
        return _set_alone(target, x, _whole_numbers(ids), component.cast(updates, x.dtype))
    if x.dtype == bool:
        x, updates = (component.cast(t, jnp.int32) for t in (x, updates))
        return component.cast(scatter(x, ids, updates, dims, how=how), bool)
    return _HOW[how](target, x, _whole_numbers(ids), component.cast(updates, x.dtype))


def _segment_sum_example(segment_sum: Callable, draw: Draw) -> Case:
    a, b, v = draw.dims("a", "b", "v")
    ids = draw.integers(*draw.pick((a,), (b, a)), below=v.size + 1)
    return Case(lambda x, ids: segment_sum(x, ids, a, v), (draw.tensor(a, b), ids), (a,))


@op(
    computes="the updates that fall into its part, added up",
    mesh_tensorflow="OneHotOperation and EinsumOperation; of the size of both dims",
    example=_segment_sum_example,
)
def segment_sum(x: Tensor, ids: Tensor, dim: Which, segments: Dim) -> Tensor:
    """The sums of those elements of `x` along `dim` that have the same id.

    In the result `segments` takes the place of `dim`, of which there may be several.

    Args:
      ids: for each element its index in `segments`. The dims of `ids` are among those of `x`.
        Elements whose id is outside of `segments` are dropped.

    Raises:
      MeshDSLError: `ids` are not whole numbers, lack `dim` or have a dim that `x` lacks, or `x` has
        `segments` already.
    """
    summed = dim_algebra.find_all("segment_sum", ids.dims, dim)
    dim_algebra.find_all("segment_sum", x.dims, ids.dims)
    out = dim_algebra.distinct((*dim_algebra.without(x.dims, summed), segments), "segment_sum")
    target = _target("segment_sum", (ids,), x, out, (segments,))
    x = component.cast(x, jnp.int32) if x.dtype == bool else x
    return _added(target, _whole_numbers((ids,)), x)


def _bincount_example(bincount: Callable, draw: Draw) -> Case:
    a, b, v = draw.dims("a", "b", "v")
    operands = draw.integers(a, b, below=v.size + 1), draw.tensor(b, a)
    both = lambda ids, w: [bincount(ids, v), bincount(ids, v, weights=w)]
    return Case(both, operands, (a, b))


@op(
    computes="the updates that fall into its part, counted",
    mesh_tensorflow="OneHotOperation and EinsumOperation; of the size of both dims",
    example=_bincount_example,
)
def bincount(ids: Tensor, bins: Dim, *, weights: Tensor | None = None) -> Tensor:
    """How often each index of the dim `bins` occurs in `ids` (int32).

    Args:
      weights: instead of counting, add up the weights of the places where the index occurs.

    Raises:
      MeshDSLError: `ids` are not whole numbers, or have `bins` themselves; or `weights` lack a dim
        of `ids`.
    """
    if weights is not None:
        return segment_sum(weights, ids, ids.dims, bins)
    target = _target("bincount", (ids,), None, (bins,), (bins,))
    return _added(target, _whole_numbers((ids,)), Tensor(jnp.ones((), jnp.int32), ()))


class _Target(NamedTuple):
    """The dims of a scatter.

    Attributes:
      name: the op, for errors.
      shared: dims that the indices and the result have.
      dims: those that are scattered into.
      rest: the other dims of the result.
      picked: dims that the indices alone have.
      indexed: for each of `dims` those of its indices, which are among `shared` and `picked`.
    """

    name: str
    shared: Dims
    dims: Dims
    rest: Dims
    picked: Dims
    indexed: tuple[Dims, ...]

    @property
    def out(self) -> Dims:
        return (*self.shared, *self.dims, *self.rest)

    @property
    def loop(self) -> Dims:
        return (*self.out, *self.picked)

    def indices(self, loop: DeviceLoop, ids):
        """How `ids` index the dims `shared` and `dims`, and which are in this device's part.

        The others are wrapped into the part, and the caller makes their updates of no effect.
        Left outside they would be dropped too, but XLA fuses a single update with a slice of `x`
        as if an index were never outside.
        """
        order, wrapped = (*self.shared, *self.picked), []
        inside: Any = None
        for array, dims, dim in zip(ids, self.indexed, self.dims, strict=True):
            array, size = fitted(array, dims, order) - loop.offset(dim), loop.size(dim)
            here = within(array, size)
            inside = here if inside is None else inside & here
            rest = lax.rem(array, size)
            wrapped.append(lax.select(lax.lt(rest, 0), lax.add(rest, size), rest))
        inside = jnp.broadcast_to(inside, [loop.size(d) for d in order])
        return (*self.grid(loop, len(self.picked)), *wrapped), inside.reshape(
            *inside.shape, *(1,) * len(self.rest)
        )

    def grid(self, loop: DeviceLoop, after: int):
        """Indices of the shared dims, to go with indices that have `after` dimensions more."""
        ndim = len(self.shared) + after
        return [laid_along(jnp.arange(loop.size(d)), i, ndim) for i, d in enumerate(self.shared)]


def _target(
    name: str, ids: Sequence[Tensor], updates: Tensor | None, out: Dims, dims: Dims
) -> _Target:
    """The dims of a scatter into `dims` of a tensor that has `out`; an error if it is not legal."""
    for t in ids:
        check_indices(name, t, dims)
    every = dim_algebra.union(name, [out, *(t.dims for t in ids)])
    own = {d for t in ids for d in t.dims}
    shared = tuple(d for d in out if d in own)
    picked = tuple(sorted(dim_algebra.without(every, out), key=lambda d: d.name))
    rest, indexed = dim_algebra.without(out, (*shared, *dims)), tuple(t.dims for t in ids)
    target = _Target(name, shared, dims, rest, picked, indexed)
    legal = dim_algebra.without(target.loop, dims)
    if updates is not None and not set(updates.dims) <= set(legal):
        raise MeshDSLError(
            f"{name}: the updates have {dim_algebra.show(updates.dims)}; their dims are among "
            f"{dim_algebra.show(legal)}"
        )
    return target


def _whole_numbers(ids: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """`ids` as int32: a uint8 has no -1, which padding holds, and may not reach the dim's size."""
    return tuple(component.cast(t, jnp.int32) for t in ids)


def _added(
    target: _Target, ids: tuple[Tensor, ...], updates: Tensor, like: Tensor | None = None
) -> Tensor:
    """The sums of the updates of each element, zeros where there are none."""

    def local(loop: DeviceLoop, *arrays):
        *ids, u = arrays
        index, inside = target.indices(loop, ids)
        return _put(
            target,
            loop,
            "add",
            index,
            chosen(inside, _aligned(target, u, updates.dims), 0),
            0,
        )

    return apply_op(
        target.name,
        local,
        (*ids, updates),
        loop=target.loop,
        out=target.out,
        in_order=target.dims,
        fill=(*(-1 for _ in ids), 0),
        like=like,
    )


def _aligned(target: _Target, updates, dims: Dims):
    """The updates with the dims of indices first, then those of the result alone, to broadcast."""
    return fitted(updates, dims, (*target.shared, *target.picked, *target.rest))


def _put(target: _Target, loop: DeviceLoop, how: str, index, updates, start):
    """This device's part of the result: `start` everywhere, then `how` for each update."""
    array = jnp.full([loop.size(d) for d in target.out], start, updates.dtype)
    if not array.size:
        return array
    return getattr(array.at[index], how)(updates, mode="promise_in_bounds")


def _add(target: _Target, x: Tensor, ids: tuple[Tensor, ...], updates: Tensor) -> Tensor:
    return x + _added(target, ids, updates, x)


def _most(
    target: _Target, x: Tensor, ids: tuple[Tensor, ...], updates: Tensor, *, sign: int
) -> Tensor:
    """The largest (with `sign` -1: the smallest) of each element of `x` and its updates."""

    def local(loop: DeviceLoop, *arrays):
        *ids, u = arrays
        return _largest(loop, target, sign, updates.dims, *target.indices(loop, ids), u)

    found = apply_op(
        target.name,
        local,
        (*ids, updates),
        loop=target.loop,
        out=target.out,
        in_order=target.dims,
        fill=(*(-1 for _ in ids), 0),
        sums=False,
        like=x,
    )
    # Not `maximum`: an element without updates keeps its whole gradient, and a NaN on either side
    # stays.
    beyond = lambda a, b: (b > a if sign > 0 else b < a) | jnp.isnan(b)
    return component.map(lambda a, b: jnp.where(beyond(a, b), b, a), x, found, name=target.name)


@partial(jax.custom_jvp, nondiff_argnums=(0, 1, 2, 3))
def _largest(loop: DeviceLoop, target: _Target, sign: int, dims: Dims, index, inside, updates):
    """The largest (or smallest) of the updates of each element, on all devices together."""
    updates = _aligned(target, updates, dims)
    if is_complex(updates.dtype):
        return _largest_complex(loop, target, sign, index, inside, updates)
    lowest = bounds(updates.dtype)[sign < 0]
    updates = jnp.where(inside, updates, jnp.asarray(lowest, updates.dtype))
    result = _put(target, loop, "max" if sign > 0 else "min", index, updates, lowest)
    if not loop.axes(target.picked):
        return result
    return from_key(loop.pmax(to_key(result, sign), target.picked), updates.dtype, sign)


def _largest_complex(loop: DeviceLoop, target: _Target, sign: int, index, inside, updates):
    """By the real parts, and of those that tie by the imaginary parts."""
    found, tied = [], inside
    for part in parts(updates):
        key, lowest = to_key(part, sign), to_key(jnp.full_like(part, -jnp.inf, shape=()))
        key = jnp.where(tied, key, lowest)
        best = loop.pmax(_put(target, loop, "max", index, key, lowest), target.picked)
        tied = tied & (key == best[index])
        found.append(from_key(best, part.dtype, sign))
    return jax.lax.complex(*found)


@_largest.defjvp
def _largest_jvp(loop, target, sign, dims, primals, tangents):
    index, inside, updates = *primals[:2], computed_once(primals[2])
    found = _largest(loop, target, sign, dims, index, inside, updates)
    ties = ((_aligned(target, updates, dims) == found[index]) & inside).astype(updates.dtype)
    total = lambda u: loop.psum(_put(target, loop, "add", index, u, 0), target.picked)
    return found, total(_aligned(target, tangents[2], dims) * ties) / jnp.maximum(total(ties), 1)


def _set_alone(target: _Target, x: Tensor, ids: tuple[Tensor, ...], updates: Tensor) -> Tensor:
    """The update of each element, of which there is one at most, written in place.

    All dims up to the last one that is scattered into are indexed, and what follows them is written
    at a time. Were a dim before it part of that window, the TPU compiler would copy `x` to another
    layout.
    """
    last = max(x.dims.index(d) for d in (*target.dims, *target.shared))
    leading, window = x.dims[: last + 1], x.dims[last + 1 :]
    others = dim_algebra.without(leading, target.dims)
    whole = target._replace(shared=others, rest=window)

    def local(loop: DeviceLoop, array, *arrays):
        *ids, u = arrays
        index, inside = whole.indices(loop, ids)
        by_dim = dict(zip((*others, *target.dims), index, strict=True))
        index = tuple(by_dim[d] for d in leading)
        u = jnp.where(inside, _aligned(whole, u, updates.dims), array[index])
        return array.at[index].set(u, mode="promise_in_bounds", unique_indices=True)

    fill = (None, *(-1 for _ in ids), None)
    how = {"in_order": target.dims, "sums": False, "fill": fill}
    return apply_op(target.name, local, (x, *ids, updates), loop=x.dims, out=x.dims, **how)


def _set(target: _Target, x: Tensor, ids: tuple[Tensor, ...], updates: Tensor) -> Tensor:
    """The last update of each element, or the element of `x` where it has none.

    One op finds the number of the last update of each element, by a maximum over the devices.
    Another picks these updates, and is a sum of which all terms but one are zero.
    """
    strides, stride = {}, 1
    for d in reversed(target.picked):
        strides[d], stride = stride, stride * d.size

    def last_rank(loop: DeviceLoop, *ids):
        """For each element of the dims the number of its last update, -1 where it has none."""
        ranks = jnp.zeros((), jnp.int32)
        for j, d in enumerate(target.picked):
            ranks = ranks + laid_along(loop.indices(d) * strides[d], j, len(target.picked))
        index, inside = found.indices(loop, ids)
        return loop.pmax(
            _put(found, loop, "max", index, jnp.where(inside, ranks, -1), -1), target.picked
        )

    found = target._replace(rest=())
    how = {"in_order": target.dims, "fill": -1, "sums": False, "like": x}
    last = apply_op(target.name, last_rank, ids, loop=found.loop, out=found.out, **how)

    def picked(loop: DeviceLoop, last, u):
        """The last updates where this device has them, else zeros."""
        order = (*target.shared, *target.picked, *target.rest)
        u = jnp.broadcast_to(_aligned(target, u, updates.dims), [loop.size(d) for d in order])
        at = [last // strides[d] % d.size - loop.offset(d) for d in target.picked]
        here = last >= 0
        for i, d in zip(at, target.picked, strict=True):
            here = here & (i >= 0) & (i < loop.size(d))
        index = (*target.grid(loop, len(target.dims)), *[jnp.where(here, i, 0) for i in at])
        values = u[index]
        return jnp.where(
            here.reshape(*here.shape, *(1,) * len(target.rest)), values, jnp.zeros((), u.dtype)
        )

    how = {"in_order": target.picked, "fill": (-1, 0), "like": x}
    both = last, updates
    chosen = apply_op(target.name, picked, both, loop=target.loop, out=target.out, **how)
    return component.map(lambda a, b, c: jnp.where(b >= 0, c, a), x, last, chosen, name=target.name)


_HOW = {"add": _add, "max": partial(_most, sign=1), "min": partial(_most, sign=-1), "set": _set}
