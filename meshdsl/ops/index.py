"""Ops that pick, place or number elements along a dim."""

from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp

from meshdsl import dims as dim_algebra
from meshdsl.dims import Dim, Dims
from meshdsl.errors import MeshDSLError
from meshdsl.lowering.loop import Loop, run, run_many
from meshdsl.ops import component
from meshdsl.tensor import Tensor


def take(x: Tensor, ids: Tensor, dim: Dim | str) -> Tensor:
    """Elements of `x` at the indices `ids` along `dim`: an embedding lookup, or a gather along shared dims.

    Dims that `x` and `ids` share go together; the other dims of `ids` take the place of `dim`. Where `dim` is split,
    each device looks up what it has and the results are summed. An index outside of `dim` gives zeros.

    Raises:
      MeshDSLError: `ids` are not whole numbers, or have `dim` themselves.
    """
    dim = dim_algebra.find("take", x.dims, dim)
    if not jnp.issubdtype(ids.dtype, jnp.integer):
        raise MeshDSLError(f"take: the indices {dim_algebra.show(ids.dims)} are {ids.dtype}, not whole numbers")
    if dim in ids.dims:
        raise MeshDSLError(f"take: the indices {dim_algebra.show(ids.dims)} have the dim {dim} that they index; rename it")
    loop = dim_algebra.union("take", [x.dims, ids.dims])
    shared = tuple(d for d in x.dims if d in ids.dims)
    picked = dim_algebra.without(ids.dims, shared)
    inner = dim_algebra.replace(dim_algebra.without(x.dims, shared), dim, picked)

    def local(at: Loop, table, indices):
        indices = indices.astype(jnp.int32) - at.offset(dim)  # a uint8 cannot be compared with a size of 256
        inside = (indices >= 0) & (indices < at.size(dim))
        return _take_shared(table, x.dims, indices, inside, ids.dims, shared, dim)

    return run("take", local, (x, ids), loop=loop, out=(*shared, *inner))


def _take_shared(table, dims: Dims, indices, inside, id_dims: Dims, shared: Dims, dim: Dim):
    if shared:
        first, rest = shared[0], shared[1:]
        i, j = dims.index(first), id_dims.index(first)
        inner = lambda t, k, m: _take_shared(  # noqa: E731
            t, dim_algebra.without(dims, (first,)), k, m, dim_algebra.without(id_dims, (first,)), rest, dim
        )
        return jax.vmap(inner, in_axes=(i, j, j))(table, indices, inside)
    at = dims.index(dim)
    found = jnp.take(table, indices, axis=at, mode="clip")
    inside = inside.reshape((1,) * at + inside.shape + (1,) * (table.ndim - at - 1))
    return jnp.where(inside, found, jnp.zeros((), found.dtype))


def one_hot(ids: Tensor, dim: Dim, dtype=jnp.float32) -> Tensor:
    """One where the index along the new dim `dim` equals `ids`, zero elsewhere; dims of `ids`, then `dim`."""
    if dim.name in [d.name for d in ids.dims]:
        raise MeshDSLError(f"one_hot: {dim_algebra.show(ids.dims)} has a dim `{dim.name}` already")
    if not jnp.issubdtype(ids.dtype, jnp.integer):
        raise MeshDSLError(f"one_hot: the indices {dim_algebra.show(ids.dims)} are {ids.dtype}, not whole numbers")
    out = (*ids.dims, dim)
    local = lambda at, a: (a.astype(jnp.int32)[..., None] == at.indices(dim)).astype(dtype)  # noqa: E731
    return run("one_hot", local, (ids,), loop=out, out=out)


def iota(dim: Dim, dtype=jnp.int32, *, like: Tensor | None = None) -> Tensor:
    """The index of each element of `dim`.

    Args:
      like: any tensor of the computation. With it each device makes its own part only; without it the whole is made
        and then cut where it meets a split tensor.
    """
    return run("iota", lambda at: at.indices(dim, dtype), (), loop=(dim,), out=(dim,), like=like)


def slice(x: Tensor, dim: Dim | str, start: int, size: int | Dim) -> Tensor:  # noqa: A001
    """`size` elements of `x` along `dim`, from the static index `start` on. A Dim as `size` also names the result's dim.

    Raises:
      MeshDSLError: the slice reaches beyond the dim.
    """
    dim = dim_algebra.find("slice", x.dims, dim)
    new = size if isinstance(size, Dim) else Dim(dim.name, size)
    if start < 0 or start + new.size > dim.size:
        raise MeshDSLError(f"slice: elements {start} to {start + new.size} reach beyond {dim} of {dim_algebra.show(x.dims)}")
    at = x.dims.index(dim)
    out = dim_algebra.distinct(dim_algebra.replace(x.dims, dim, (new,)), "slice")
    if new == dim:
        return x
    local = lambda _, a: jax.lax.slice_in_dim(a, start, start + new.size, axis=at)  # noqa: E731
    return run("slice", local, (x,), loop=x.dims, out=out, whole=(dim,), linear=True)


def split(x: Tensor, dim: Dim | str, sizes: int | Sequence[int | Dim]) -> tuple[Tensor, ...]:
    """`x` cut along `dim`, into `sizes` equal parts or into parts of the given sizes (or Dims)."""
    dim = dim_algebra.find("split", x.dims, dim)
    if isinstance(sizes, int):
        if sizes < 1 or dim.size % sizes:
            raise MeshDSLError(f"split: {dim} does not split into {sizes} equal parts")
        sizes = [dim.size // sizes] * sizes
    new = [s if isinstance(s, Dim) else Dim(dim.name, s) for s in sizes]
    if sum(d.size for d in new) != dim.size:
        raise MeshDSLError(f"split: the parts {dim_algebra.show(new)} do not add up to {dim}")
    at = x.dims.index(dim)
    outs = [dim_algebra.distinct(dim_algebra.replace(x.dims, dim, (d,)), "split") for d in new]

    local = lambda _, a: jax.lax.split(a, [d.size for d in new], axis=at)  # noqa: E731
    return run_many("split", local, (x,), loop=x.dims, outs=outs, whole=(dim,), linear=True, sums=False)


def concat(tensors: Sequence[Tensor], dim: Dim | str) -> Tensor:
    """The tensors put together along `dim`, which may have another size in each. A Dim states the size of the result.

    Raises:
      MeshDSLError: the other dims differ, or the sizes do not add up.
    """
    if not tensors or not all(isinstance(t, Tensor) for t in tensors):
        raise MeshDSLError(f"concat: needs one Tensor or more, not {[type(t).__name__ for t in tensors]}")
    name = getattr(dim, "name", dim)
    along = [dim_algebra.find("concat", t.dims, name) for t in tensors]
    total = Dim(name, sum(d.size for d in along))
    if isinstance(dim, Dim) and dim != total:
        raise MeshDSLError(f"concat: the parts {dim_algebra.show(along)} do not add up to {dim}; together they have {total.size}")
    out = dim_algebra.replace(tensors[0].dims, along[0], (total,))
    others = [dim_algebra.without(t.dims, (d,)) for t, d in zip(tensors, along, strict=True)]
    rest = dim_algebra.union("concat", others)
    if not all(set(dims) == set(rest) for dims in others):
        shown = " and ".join(dim_algebra.show(t.dims) for t in tensors)
        raise MeshDSLError(f"concat: {shown} differ in more than `{name}`")
    # Each operand has its own size of the dim, so inside the op each has its own name for it.
    parts = [Dim(f"{name}_part{i}", d.size) for i, d in enumerate(along)]
    renamed = [
        Tensor(t.array, dim_algebra.replace(t.dims, d, (p,)), t.role, t.place)
        for t, d, p in zip(tensors, along, parts, strict=True)
    ]
    at = out.index(total)

    def local(_, *arrays):
        orders = [[t.dims.index(p if d == total else d) for d in out] for t, p in zip(renamed, parts, strict=True)]
        return jnp.concatenate([jnp.transpose(a, o) for a, o in zip(arrays, orders, strict=True)], at)

    return run("concat", local, renamed, loop=(*rest, *parts), out=out, whole=tuple(parts), linear=True, sums=False)


def pad(x: Tensor, dim: Dim | str, before: int = 0, after: int = 0, value=0) -> Tensor:
    """`x` with `before` and `after` elements of `value` put around `dim`.

    Raises:
      MeshDSLError: a negative width; `slice` is what cuts.
    """
    dim = dim_algebra.find("pad", x.dims, dim)
    if before < 0 or after < 0:
        raise MeshDSLError(f"pad: {before} and {after} around {dim}; widths are at least 0, use `slice` to cut")
    new = Dim(dim.name, before + dim.size + after)
    widths = [(before, after) if d == dim else (0, 0) for d in x.dims]
    local = lambda _, a: jnp.pad(a, widths, constant_values=value)  # noqa: E731
    out = dim_algebra.replace(x.dims, dim, (new,))
    return run("pad", local, (x,), loop=x.dims, out=out, whole=(dim,), sums=False)


def cumsum(x: Tensor, dim: Dim | str, *, reverse: bool = False) -> Tensor:
    """The running sum along `dim`. Where `dim` is split, only the totals of the parts travel."""
    dim = dim_algebra.find("cumsum", x.dims, dim)
    at = x.dims.index(dim)
    if x.dtype == bool:
        x = component.cast(x, jnp.int32)

    def local(loop: Loop, a):
        running = jax.lax.cumsum(a, at, reverse=reverse)
        if loop.parts(dim) == 1:
            return running
        totals = loop.gather(jnp.sum(a, at, dtype=a.dtype), dim, varies=True)
        part = loop.offset(dim) // loop.size(dim)
        others = jnp.arange(loop.parts(dim)).reshape(-1, *(1,) * (a.ndim - 1))
        earlier = others > part if reverse else others < part
        before = jnp.sum(totals, 0, where=earlier, dtype=a.dtype)
        return running + jnp.expand_dims(before, at)

    return run("cumsum", local, (x,), loop=x.dims, out=x.dims)
