"""Ops on the matrix that two dims span: its diagonal, its triangles, and the identity."""

from __future__ import annotations

from collections.abc import Callable

import jax.numpy as jnp
from jax.typing import DTypeLike

from meshdsl import dims as dim_algebra
from meshdsl.dims import Dim
from meshdsl.errors import MeshDSLError
from meshdsl.lowering.device_loop import DeviceLoop
from meshdsl.lowering.law import apply_op
from meshdsl.ops.arrays import in_order, laid_along
from meshdsl.ops.component import apply_alike
from meshdsl.ops.declare import Case, Draw, op
from meshdsl.ops.reshape import rename
from meshdsl.tensor import Tensor


def _diagonal_example(diagonal: Callable, draw: Draw) -> Case:
    a, b, c = draw.dims("a", "b", "c")
    new = Dim("v", min(a.size, b.size))
    return Case(lambda x: diagonal(x, a, b, new), (draw.tensor(a, c, b),), (a, b))


@op(
    computes="the elements of the diagonal that it has",
    moves=("ppermute",),
    example=_diagonal_example,
)
def diagonal(x: Tensor, a: Dim | str, b: Dim | str, new: str | Dim) -> Tensor:
    """The elements of `x` whose indices along `a` and `b` are equal.

    The result has the dims of `x` without `a` and `b`, then `new`. It comes out split as the
    smaller of `a` and `b` is (`a`, where they are equal). That takes no communication where the
    other is whole. Where the other is split, each device has what falls into its part of both,
    and the result is a pending sum of these.

    Args:
      new: a Dim of the size of the smaller of `a` and `b`, or a name.

    Raises:
      MeshDSLError: `a` is `b`, or `new` does not have the size of the smaller of them.
    """
    a, b = _matrix("diagonal", x, a, b)
    along, across = (a, b) if a.size <= b.size else (b, a)
    new = new if isinstance(new, Dim) else Dim(new, along.size)
    if new == across and new.size == along.size:
        along, across = across, along
    if new.size != along.size:
        raise MeshDSLError(
            f"diagonal: {new} instead of {dim_algebra.show((a, b))} in {dim_algebra.show(x.dims)}; "
            f"it has {along.size} elements"
        )
    rest = dim_algebra.without(x.dims, (a, b))
    dim_algebra.distinct((*rest, new), "diagonal")

    def local(loop: DeviceLoop, array):
        array = in_order(array, x.dims, (*rest, along, across))
        at = loop.indices(along) - loop.offset(across)
        here = (at >= 0) & (at < loop.size(across))
        found = array[..., jnp.arange(loop.size(along)), jnp.where(here, at, 0)]
        return jnp.where(here, found, jnp.zeros((), found.dtype))

    found = apply_op(
        "diagonal",
        local,
        (x,),
        loop=x.dims,
        out=(*rest, along),
        in_order=(across,),
        linear=True,
        fill=None,
    )
    return found if new == along else rename(found, along, new)


def _triangle_example(triangle: Callable, draw: Draw) -> Case:
    a, b = draw.dims("a", "b")
    k = draw.integer(-2, 2)
    return Case(lambda x: triangle(x, a, b, k), (draw.tensor(a, b),), (a, b))


_declare_triangle = op(
    computes="its part, by the indices that it has",
    mesh_tensorflow="RangeOperation and BinaryOpWithBroadcasting",
    example=_triangle_example,
    result="same",
)


@_declare_triangle
def tril(x: Tensor, row: Dim | str, col: Dim | str, k: int = 0) -> Tensor:
    """`x` with zeros where the index along `col` is more than `k` beyond that along `row`."""
    return _triangle("tril", x, row, col, lambda i, j: j <= i + k)


@_declare_triangle
def triu(x: Tensor, row: Dim | str, col: Dim | str, k: int = 0) -> Tensor:
    """`x` with zeros where the index along `col` is less than `k` beyond that along `row`."""
    return _triangle("triu", x, row, col, lambda i, j: j >= i + k)


def _triangle(name: str, x: Tensor, row: Dim | str, col: Dim | str, keeps: Callable) -> Tensor:
    """`x` with zeros where not `keeps(i, j)`, of the indices along `row` and `col`."""
    row, col = _matrix(name, x, row, col)

    def local(loop: DeviceLoop, array):
        i, j = (laid_along(loop.indices(d), x.dims.index(d), len(x.dims)) for d in (row, col))
        return jnp.where(keeps(i, j), array, jnp.zeros((), array.dtype))

    return apply_alike(name, local, x, in_order=(), linear=True, fill=None)


def _matrix(name: str, x: Tensor, a: Dim | str, b: Dim | str) -> tuple[Dim, Dim]:
    """The two dims of `x` that are meant; an error where they are the same."""
    a, b = (dim_algebra.find(name, x.dims, d) for d in (a, b))
    if a == b:
        raise MeshDSLError(f"{name}: needs two dims of {dim_algebra.show(x.dims)}, not {a} twice")
    return a, b


def _eye_example(eye: Callable, draw: Draw) -> Case:
    a, b = draw.dims("a", "b")
    return Case(lambda x: eye(a, b, like=x), (draw.tensor(a),), (a, b))


@op(
    computes="its part, by the indices that it has",
    mesh_tensorflow="RangeOperation and BinaryOpWithBroadcasting",
    example=_eye_example,
    gradients=False,
)
def eye(
    a: Dim | str, b: Dim | str, dtype: DTypeLike = jnp.float32, *, like: Tensor | None = None
) -> Tensor:
    """The identity matrix: 1 where the indices along `a` and `b` are equal, 0 elsewhere.

    Args:
      a, b: Dims, or names of dims of `like`.
      like: any tensor of the computation. With it each device makes its own part only; see `iota`.
    """
    known = like.dims if like is not None else ()
    a, b = (dim_algebra.resolve_one("eye", known, d) for d in (a, b))
    out = dim_algebra.distinct((a, b), "eye")
    local = lambda loop: (loop.indices(a)[:, None] == loop.indices(b)).astype(dtype)
    return apply_op("eye", local, (), loop=out, out=out, in_order=(), like=like)
