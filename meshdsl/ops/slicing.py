"""Ops that cut and join tensors along a dim.

Along a split dim, a device fetches by `ppermute` the elements that its part of the result lacks,
and no others travel. The result comes out with the split of the dim that was cut; where the law
wants another, it is the result that moves.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from meshdsl import dims as dim_algebra
from meshdsl.dims import Dim, Dims
from meshdsl.errors import MeshDSLError, is_whole, quote, whole_number
from meshdsl.lowering.device_loop import DeviceLoop
from meshdsl.lowering.law import apply_op, apply_op_many
from meshdsl.lowering.nest import Nest
from meshdsl.ops.arrays import in_order
from meshdsl.ops.comparison import bounds
from meshdsl.ops.declare import Case, Draw, along_a, op
from meshdsl.splits import windows
from meshdsl.tensor import Tensor, is_tensor, is_value


@op(
    computes="its own elements of the result; fetches those that it lacks",
    moves=("ppermute",),
    mesh_tensorflow="SliceOperation; not along a split dim",
    example=along_a(
        lambda slice, x, a, b, start, new: slice(x, a, start, new),
        lambda draw, a: (n := draw.integer(0, a.size), Dim("v", draw.integer(0, a.size - n))),
    ),
)
def slice(x: Tensor, dim: Dim | str, start: int, size: int | Dim) -> Tensor:
    """`size` elements of `x` along `dim`, from the index `start` on, which is known beforehand.

    A Dim as `size` also names the result's dim.

    Raises:
      MeshDSLError: the slice reaches beyond the dim.
    """
    dim = dim_algebra.find("slice", x.dims, dim)
    new = size
    if not isinstance(new, Dim):
        new = Dim(dim.name, whole_number(f"slice: `size` along {dim}", size, 0))
    if start < 0 or start + new.size > dim.size:
        raise MeshDSLError(
            f"slice: elements {start} to {start + new.size} reach beyond {dim} of "
            f"{dim_algebra.show(x.dims)}"
        )
    return windowed("slice", x, dim, new, start)


@op(
    computes="its own elements of the result; fetches those that it lacks",
    moves=("ppermute",),
    mesh_tensorflow="PadOperation; not along a split dim, and only zeros",
    example=along_a(
        lambda pad, x, a, b, *widths: pad(x, a, *widths, out="v"),
        lambda draw, _: (draw.integer(0, 5), draw.integer(0, 9), draw.pick(1.5, 0)),
    ),
)
def pad(
    x: Tensor,
    dim: Dim | str,
    before: int = 0,
    after: int = 0,
    value=0,
    *,
    out: Dim | str | None = None,
) -> Tensor:
    """`x` with `before` and `after` elements of `value` put around `dim`.

    Args:
      out: the dim of the result, or its name; by default that of `dim`.

    Raises:
      MeshDSLError: a negative width (`slice` is what cuts), or `out` has another size.
    """
    dim = dim_algebra.find("pad", x.dims, dim)
    check_fits("pad", x, value)
    if before < 0 or after < 0:
        raise MeshDSLError(
            f"pad: {before} and {after} around {dim}; widths are at least 0, use `slice` to cut"
        )
    new = _called(dim.name if out is None else out, before + dim.size + after)
    if new.size != before + dim.size + after:
        raise MeshDSLError(
            f"pad: {before}, {dim} and {after} together are {before + dim.size + after} elements, "
            f"not {new}"
        )
    return windowed("pad", x, dim, new, -before, value)


def check_fits(name: str, x: Tensor, value) -> None:
    """Raise a MeshDSLError unless `value` is a number that the dtype of `x` can hold."""
    if not is_value(value) or is_tensor(value) or np.ndim(value) or isinstance(value, Tracer):
        raise MeshDSLError(
            f"{name}: {dim_algebra.show(x.dims)} is filled up with a number, not {quote(value)}"
        )
    if jnp.issubdtype(x.dtype, jnp.inexact):
        fits = np.isrealobj(value) or jnp.issubdtype(x.dtype, jnp.complexfloating)
    else:
        low, high = bounds(x.dtype)
        fits = np.isrealobj(value) and low <= value <= high and value == int(value)
    if not fits:
        raise MeshDSLError(
            f"{name}: {dim_algebra.show(x.dims)} of {x.dtype} cannot hold {quote(value)}; use "
            "another number, or md.cast"
        )


def windowed(
    name: str, x: Tensor, dim: Dim, new: Dim, start: int, value=0, *, step: int = 1
) -> Tensor:
    """The elements of `x` along `dim` from `start` on, every `step`th one, as the dim `new`.

    The window may reach beyond `dim` on both sides; `value` stands outside of it. With a negative
    step the elements come in the opposite order.
    """
    out = dim_algebra.distinct(dim_algebra.replace(x.dims, dim, (new,)), name)
    if out == x.dims and start == 0 and step == 1:
        return x
    at = x.dims.index(dim)

    def local(loop: DeviceLoop, a):
        size = loop.size(new)
        reach = (size - 1) * step  # from the first element of a part to its last
        starts = [start + j * size * step + min(reach, 0) for j in range(loop.parts(new))]
        length = abs(reach) + 1 if size else 0
        stop = start + max((new.size - 1) * step, 0) + 1
        run = loop.fetch(a, at, dim, starts, length, stop=stop, fill=value)
        if step == 1:
            return run
        run = jax.lax.slice_in_dim(run, 0, length, abs(step), at)
        return run if step > 0 else jnp.flip(run, at)

    return apply_op(
        name,
        local,
        (x,),
        loop=x.dims,
        out=out,
        in_order=(dim,),
        same_split=((new, dim),),
        linear=value == 0,
        fill=value,
    )


@op(
    computes="its own elements of the result; fetches those that it lacks",
    moves=("ppermute",),
    mesh_tensorflow="SplitOperation; not along a split dim",
    example=along_a(
        lambda split, x, a, b, n: split(x, a, [Dim("v", n), Dim("w", a.size - n)]),
        lambda draw, a: (draw.integer(0, a.size),),
    ),
)
def split(x: Tensor, dim: Dim | str, sizes: int | Sequence[int | Dim]) -> tuple[Tensor, ...]:
    """`x` cut along `dim`, into `sizes` equal parts or into parts of the given sizes (or Dims).

    Raises:
      MeshDSLError: the sizes do not add up.
    """
    dim = dim_algebra.find("split", x.dims, dim)
    if is_whole(sizes):
        count = whole_number("split: the number of parts", sizes)
        if count < 1 or dim.size % count:
            raise MeshDSLError(f"split: {dim} does not split into {sizes} equal parts")
        sizes = [dim.size // count] * count
    assert not isinstance(sizes, int)
    new = [
        s if isinstance(s, Dim) else Dim(dim.name, whole_number(f"split: a part of {dim}", s, 0))
        for s in sizes
    ]
    if sum(d.size for d in new) != dim.size:
        raise MeshDSLError(f"split: the parts {dim_algebra.show(new)} do not add up to {dim}")
    at = x.dims.index(dim)
    outs = [dim_algebra.distinct(dim_algebra.replace(x.dims, dim, (d,)), "split") for d in new]

    def local(loop: DeviceLoop, a):
        if not loop.axes(dim):
            return jax.lax.split(a, [d.size for d in new], axis=at)
        lengths = [loop.size(d) for d in new]
        pieces, first, place = [], 0, 0
        for d, length in zip(new, lengths, strict=True):
            starts = [first + j * length for j in range(loop.parts(dim))]
            first += d.size
            pieces += [
                p._replace(write=place + p.write)
                for p in windows.pieces(starts, length, loop.size(dim), first)
            ]
            place += length
        return jax.lax.split(loop.exchange(a, at, dim, pieces, place), lengths, axis=at)

    carried = tuple((d, dim) for d in new)
    return apply_op_many(
        "split",
        local,
        (x,),
        Nest(x.dims, tuple(outs), in_order=(dim,), same_split=carried, sums=False),
        linear=True,
        fill=None,
    )


def _concat_example(concat: Callable, draw: Draw) -> Case:
    a, b = draw.dims("a", "b")
    operands = draw.tensor(a, b), draw.tensor(a, b)
    return Case(lambda x, y: concat([x, y, x], "a", out="v"), operands, (a,))


@op(
    computes="its own elements of the result; fetches those that it lacks",
    moves=("ppermute",),
    mesh_tensorflow="ConcatOperation; not along a split dim",
    example=_concat_example,
)
def concat(tensors: Sequence[Tensor], dim: Dim | str, *, out: Dim | str | None = None) -> Tensor:
    """The tensors put together along `dim`, which may have another size in each.

    Args:
      dim: the dim's name, or the Dim of the result.
      out: the Dim of the result, or its name, where it is not to be called as those of the tensors
        are.

    Raises:
      MeshDSLError: the other dims differ, or the sizes do not add up.
    """
    _check_tensors("concat", tensors)
    name = dim.name if isinstance(dim, Dim) else dim
    along = [dim_algebra.find("concat", t.dims, name) for t in tensors]
    count = sum(d.size for d in along)
    total = _called(dim if out is None else out, count)
    if total.size != count:
        raise MeshDSLError(
            f"concat: the parts {dim_algebra.show(along)} do not add up to {total}; together they "
            f"have {count}"
        )
    others = [dim_algebra.without(t.dims, (d,)) for t, d in zip(tensors, along, strict=True)]
    rest = _same_dims("concat", tensors, others, f" in more than `{name}`")
    dims = dim_algebra.distinct(dim_algebra.replace(tensors[0].dims, along[0], (total,)), "concat")
    at, joint = dims.index(total), Dim(name, count)
    orders = [dim_algebra.replace(dims, total, (d,)) for d in along]

    def local(loop: DeviceLoop, *arrays):
        alike = [
            in_order(a, t.dims, order) for a, t, order in zip(arrays, tensors, orders, strict=True)
        ]
        joined = jnp.concatenate(alike, at)
        if not loop.axes(joint):
            return joined
        length, pieces, first, place = loop.size(total), [], 0, 0
        for d in along:
            starts = [j * length - first for j in range(loop.parts(joint))]
            pieces += [
                p._replace(read=place + p.read)
                for p in windows.pieces(starts, length, loop.size(d), d.size)
            ]
            first += d.size
            place += loop.size(d)
        return loop.exchange(joined, at, joint, pieces, length)

    carried = tuple((d, joint) for d in (*along, total))
    return apply_op(
        "concat",
        local,
        tensors,
        loop=(*rest, joint),
        out=dims,
        in_order=(joint,),
        same_split=carried,
        linear=True,
        sums=False,
        fill=None,
    )


def _stack_example(stack: Callable, draw: Draw) -> Case:
    a, b = draw.dims("a", "b")
    operands = draw.tensor(a, b), draw.tensor(a, b)
    return Case(lambda x, y: stack([x, y, x], "v"), operands, (Dim("v", 3),))


@op(
    computes="puts together its own parts",
    mesh_tensorflow="StackOperation; the new dim not split",
    example=_stack_example,
)
def stack(tensors: Sequence[Tensor], dim: Dim | str) -> Tensor:
    """The tensors put together along a new dim `dim`, which the result has in front.

    Raises:
      MeshDSLError: the tensors have different dims, or `dim` has another size than their number.
    """
    _check_tensors("stack", tensors)
    new = _called(dim, len(tensors))
    if new.size != len(tensors):
        raise MeshDSLError(f"stack: {new} for {len(tensors)} tensors")
    rest = _same_dims("stack", tensors, [t.dims for t in tensors])
    out = dim_algebra.distinct((new, *tensors[0].dims), "stack")

    def local(_, *arrays):
        alike = [in_order(a, t.dims, out[1:]) for a, t in zip(arrays, tensors, strict=True)]
        return jnp.stack(alike)

    return apply_op(
        "stack", local, tensors, loop=rest, out=out, in_order=(), linear=True, fill=None
    )


@op(
    computes="takes apart what it has",
    moves=("all_gather", "all_to_all"),
    mesh_tensorflow="UnstackOperation; not along a split dim",
    example=along_a(lambda unstack, x, a, b: list(unstack(x, a))),
)
def unstack(x: Tensor, dim: Dim | str) -> tuple[Tensor, ...]:
    """The elements of `dim`: for each a tensor without `dim`.

    An element of a split dim is on some of the devices, and all need it. That takes one all_gather,
    or one all_to_all where the axes pass on to another dim.
    """
    dim = dim_algebra.find("unstack", x.dims, dim)
    at = x.dims.index(dim)
    outs = [dim_algebra.without(x.dims, (dim,))] * dim.size
    local = lambda _, a: [jax.lax.index_in_dim(a, i, at, keepdims=False) for i in range(dim.size)]
    nest = Nest(x.dims, tuple(outs), unsplit=(dim,), in_order=())
    return apply_op_many("unstack", local, (x,), nest, linear=True, fill=None)


def _called(dim: Dim | str, size: int) -> Dim:
    """A Dim, which stays as it is, or a name with the size that it is to have."""
    return dim if isinstance(dim, Dim) else Dim(dim, size)


def _check_tensors(name: str, tensors) -> None:
    if len(tensors) == 0 or not all(isinstance(t, Tensor) for t in tensors):
        raise MeshDSLError(
            f"{name}: needs one Tensor or more, not {[type(t).__name__ for t in tensors]}"
        )


def _same_dims(name: str, tensors: Sequence[Tensor], dims: Sequence[Dims], how: str = "") -> Dims:
    """The dims that all of the tensors have, after checking that these have the same `dims`.

    Args:
      how: the end of the error message.
    """
    every = dim_algebra.union(name, dims)
    if not all(len(have) == len(every) for have in dims):
        raise MeshDSLError(
            f"{name}: {' and '.join(dim_algebra.show(t.dims) for t in tensors)} differ{how}"
        )
    return every
