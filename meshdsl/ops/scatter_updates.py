"""How the updates of a scatter are combined: added up, the largest or smallest, or the last.

`Target` has the dims of a scatter, for `scatter.py`. Each device works on its part of the dims that
are scattered into, and gives updates whose index is in another part no effect.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from meshdsl import dims as dim_algebra
from meshdsl.dims import Dims
from meshdsl.errors import MeshDSLError
from meshdsl.lowering.device_loop import DeviceLoop
from meshdsl.lowering.law import apply_op
from meshdsl.ops import component
from meshdsl.ops.arrays import chosen, fitted, laid_along, within
from meshdsl.ops.checks import check_indices
from meshdsl.ops.comparison import bounds, computed_once, from_key, is_complex, parts, to_key
from meshdsl.tensor import Tensor


class Target(NamedTuple):
    """The dims of a scatter.

    For example, for `scatter(x [a, b], ids [b, c], updates [b, c], a)`, `shared` is (b), `dims` is
    (a), `rest` is empty and `picked` is (c).

    Attributes:
      name: the name of the op, for errors.
      shared: the dims that the indices and the result have.
      dims: the dims that are scattered into.
      rest: the other dims of the result.
      picked: the dims that only the indices have.
      indexed: for each of `dims` the dims of its indices, which are among `shared` and `picked`.
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
        """Indices along the dims `shared` and `dims`, and which of them are in this device's part.

        An index outside of the part is wrapped into it, and the caller has to see to it that its
        update has no effect. JAX would drop updates with an index outside. But XLA fuses a single
        update with a slice of `x` as if no index were ever outside.
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
        """Indices along the shared dims, to be used beside indices with `after` dimensions more."""
        ndim = len(self.shared) + after
        return [laid_along(jnp.arange(loop.size(d)), i, ndim) for i, d in enumerate(self.shared)]


def target_of(
    name: str, ids: Sequence[Tensor], updates: Tensor | None, out: Dims, dims: Dims
) -> Target:
    """The dims of a scatter into `dims` of a tensor with the dims `out`.

    Raises:
      MeshDSLError: indices or updates have dims that they must not have.
    """
    for t in ids:
        check_indices(name, t, dims)
    every = dim_algebra.union(name, [out, *(t.dims for t in ids)])
    own = {d for t in ids for d in t.dims}
    shared = tuple(d for d in out if d in own)
    picked = tuple(sorted(dim_algebra.without(every, out), key=lambda d: d.name))
    rest, indexed = dim_algebra.without(out, (*shared, *dims)), tuple(t.dims for t in ids)
    target = Target(name, shared, dims, rest, picked, indexed)
    legal = dim_algebra.without(target.loop, dims)
    if updates is not None and not set(updates.dims) <= set(legal):
        raise MeshDSLError(
            f"{name}: the updates have {dim_algebra.show(updates.dims)}; their dims are among "
            f"{dim_algebra.show(legal)}"
        )
    return target


def whole_numbers(ids: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """`ids` as int32. Their padding holds -1, which a uint8, say, cannot hold."""
    return tuple(component.cast(t, jnp.int32) for t in ids)


def added(
    target: Target, ids: tuple[Tensor, ...], updates: Tensor, like: Tensor | None = None
) -> Tensor:
    """The sums of the updates of each element of the result; zeros without updates."""

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

    return _scattered(target, local, ids, updates, like=like)


def _scattered(
    target: Target,
    local: Callable,
    ids: tuple[Tensor, ...],
    updates: Tensor,
    *,
    like: Tensor | None,
    sums: bool = True,
) -> Tensor:
    """An op that makes the result of a scatter by a local `local(loop, *ids, updates)`."""
    return apply_op(
        target.name,
        local,
        (*ids, updates),
        loop=target.loop,
        out=target.out,
        in_order=target.dims,
        fill=(*(-1 for _ in ids), 0),
        sums=sums,
        like=like,
    )


def _aligned(target: Target, updates, dims: Dims):
    """The updates, shaped to broadcast: dims of indices first, then those of the result alone."""
    return fitted(updates, dims, (*target.shared, *target.picked, *target.rest))


def _put(target: Target, loop: DeviceLoop, how: str, index, updates, start):
    """This device's part of the result: `start` everywhere, then `how` for each update."""
    array = jnp.full([loop.size(d) for d in target.out], start, updates.dtype)
    if not array.size:
        return array
    return getattr(array.at[index], how)(updates, mode="promise_in_bounds")


def _add(target: Target, x: Tensor, ids: tuple[Tensor, ...], updates: Tensor) -> Tensor:
    return x + added(target, ids, updates, x)


def _most(
    target: Target, x: Tensor, ids: tuple[Tensor, ...], updates: Tensor, *, sign: int
) -> Tensor:
    """The largest (with `sign` -1: the smallest) of each element of `x` and its updates."""

    def local(loop: DeviceLoop, *arrays):
        *ids, u = arrays
        return _largest(loop, target, sign, updates.dims, *target.indices(loop, ids), u)

    found = _scattered(target, local, ids, updates, like=x, sums=False)
    # Not `maximum`: an element without updates keeps its whole gradient, and a NaN on either side
    # stays.
    beyond = lambda a, b: (b > a if sign > 0 else b < a) | jnp.isnan(b)
    return component.map(lambda a, b: jnp.where(beyond(a, b), b, a), x, found, name=target.name)


@partial(jax.custom_jvp, nondiff_argnums=(0, 1, 2, 3))
def _largest(loop: DeviceLoop, target: Target, sign: int, dims: Dims, index, inside, updates):
    """The largest (or smallest) update of each element, of the updates on all devices."""
    updates = _aligned(target, updates, dims)
    if is_complex(updates.dtype):
        return _largest_complex(loop, target, sign, index, inside, updates)
    lowest = bounds(updates.dtype)[sign < 0]
    updates = jnp.where(inside, updates, jnp.asarray(lowest, updates.dtype))
    result = _put(target, loop, "max" if sign > 0 else "min", index, updates, lowest)
    if not loop.axes(target.picked):
        return result
    return from_key(loop.pmax(to_key(result, sign), target.picked), updates.dtype, sign)


def _largest_complex(loop: DeviceLoop, target: Target, sign: int, index, inside, updates):
    """As `_largest`: compared by real parts, and those that tie by their imaginary parts."""
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


def set_alone(target: Target, x: Tensor, ids: tuple[Tensor, ...], updates: Tensor) -> Tensor:
    """`x` with the updates written in place, of which each element has one at most.

    All dims up to the last one that is scattered into are indexed, and the dims after it form a
    window that is written at a time. If the window had a dim before it too, the compiler for TPUs
    would copy `x` to another layout.
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

    return apply_op(
        target.name,
        local,
        (x, *ids, updates),
        loop=x.dims,
        out=x.dims,
        in_order=target.dims,
        sums=False,
        fill=(None, *(-1 for _ in ids), None),
    )


def _set(target: Target, x: Tensor, ids: tuple[Tensor, ...], updates: Tensor) -> Tensor:
    """The last update of each element; for an element without updates, that of `x`.

    One op finds the number of the last update of each element, by a maximum over the devices.
    A second op picks these updates. Its result is a sum over devices: the device that has the
    update adds it, and the others add zero.
    """
    strides, stride = {}, 1
    for d in reversed(target.picked):
        strides[d], stride = stride, stride * d.size

    def last_rank(loop: DeviceLoop, *ids):
        """For each element the number of its last update; -1 without updates."""
        ranks = jnp.zeros((), jnp.int32)
        for j, d in enumerate(target.picked):
            ranks = ranks + laid_along(loop.indices(d) * strides[d], j, len(target.picked))
        index, inside = found.indices(loop, ids)
        return loop.pmax(
            _put(found, loop, "max", index, jnp.where(inside, ranks, -1), -1), target.picked
        )

    found = target._replace(rest=())
    last = apply_op(
        target.name,
        last_rank,
        ids,
        loop=found.loop,
        out=found.out,
        in_order=target.dims,
        fill=-1,
        sums=False,
        like=x,
    )

    def update(loop: DeviceLoop, last, u):
        """The last update of each element, if this device has it; else zero."""
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

    picked = apply_op(
        target.name,
        update,
        (last, updates),
        loop=target.loop,
        out=target.out,
        in_order=target.picked,
        fill=(-1, 0),
        like=x,
    )
    return component.map(lambda a, b, c: jnp.where(b >= 0, c, a), x, last, picked, name=target.name)


HOW = {"add": _add, "max": partial(_most, sign=1), "min": partial(_most, sign=-1), "set": _set}
