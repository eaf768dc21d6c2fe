"""Reductions over named dims.

A sum over a split dim leaves a pending sum. The other reductions reduce the part of each device,
and then combine the small results: by `pmax` or `pmin`, and for a product by a gather. The padding
of a dim holds an element that does not change the result, such as 1 for a product.
"""

from __future__ import annotations

import builtins
from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp

from meshdsl import dims as dim_algebra
from meshdsl.dims import Dim, Dims
from meshdsl.errors import MeshDSLError, quote
from meshdsl.lowering.device_loop import DeviceLoop
from meshdsl.lowering.law import apply_op
from meshdsl.ops import component
from meshdsl.ops.comparison import (
    bounds,
    check_real,
    check_some,
    computed_once,
    from_key,
    is_complex,
    parts,
    share_ties,
    to_key,
)
from meshdsl.ops.declare import Case, Draw, Example, along_a, op
from meshdsl.ops.functions import FUNCTIONS
from meshdsl.tensor import Tensor

Which = Dim | str | tuple[Dim | str, ...] | None


def reduced(
    name: str, x: Tensor, dims: Which, local: Callable, *, in_order: Dims = (), **options
) -> Tensor:
    """An op that reduces `dims`.

    Args:
      local: called with the loop, the array, the positions of `dims` in it, and `dims`.
      options: other arguments of `apply_op`; by default the order of the parts does not matter.
    """
    dims = dim_algebra.find_all(name, x.dims, dims)
    positions = tuple(x.dims.index(d) for d in dims)
    out = dim_algebra.without(x.dims, dims)
    return apply_op(
        name,
        lambda at, a: local(at, a, positions, dims),
        (x,),
        loop=x.dims,
        out=out,
        in_order=in_order,
        **options,
    )


def along_some(call: Callable = lambda fn, x, dims: fn(x, dims), *, low: int = 1) -> Example:
    """`call(op, x, dims)`, for one dim of two, or for both. Their sizes are at least `low`."""

    def example(fn: Callable, draw: Draw) -> Case:
        a, b = draw.dims("a", "b", low=low)
        dims = draw.pick((a,), (b, a))
        return Case(lambda x: call(fn, x, dims), (draw.tensor(a, b),), dims)

    return example


@op(
    computes="the same of its part",
    mesh_tensorflow="ReduceOperation",
    example=along_some(),
    result="reduces",
)
def sum(x: Tensor, dims: Which = None) -> Tensor:
    """The sum over `dims` (default: all of them).

    Over split dims it stays pending until it is needed.
    """
    # Small integers are added up in larger ones, and wrap around only once the sum is taken.
    small = x.dtype.itemsize < jax.dtypes.canonicalize_dtype(int).itemsize
    linear = jnp.issubdtype(x.dtype, jnp.inexact) or not small
    return reduced("sum", x, dims, lambda _, a, at, __: jnp.sum(a, at), linear=linear)


@op(
    computes="the sum of its part, over the number of all",
    mesh_tensorflow="ReduceOperation",
    example=along_some(),
    result="reduces",
)
def mean(x: Tensor, dims: Which = None) -> Tensor:
    """The mean over `dims` (default: all of them)."""
    # As a float: it may be beyond int32.
    count = float(dim_algebra.size(dim_algebra.find_all("mean", x.dims, dims)))

    def local(_, a, at, __):
        # Divided before it is cast: the total may be too large for float16.
        total = jnp.sum(a, at, dtype=jnp.promote_types(a.dtype, jnp.float32))
        return (total / count).astype(float_of(a.dtype))

    return reduced("mean", x, dims, local, linear=jnp.issubdtype(x.dtype, jnp.inexact))


@op(
    computes="the mean, then squared distances from it: sums of its part",
    moves=("psum",),
    example=along_some(lambda var, x, dims: var(x, dims, ddof=1), low=2),
    result="reduces",
)
def var(x: Tensor, dims: Which = None, *, ddof: int = 0) -> Tensor:
    """The variance over `dims` (default: all of them).

    It is the sum of squared distances from the mean, divided by their number less `ddof`.
    """
    dims = dim_algebra.find_all("var", x.dims, dims)
    distance = x - mean(x, dims)
    if is_complex(x.dtype):
        squares = component.map(lambda d: (d * d.conj()).real, distance, name="square")
    else:
        squares = FUNCTIONS["square"](distance)
    if not ddof:
        return mean(squares, dims)
    return sum(squares, dims) / float(builtins.max(dim_algebra.size(dims) - ddof, 0))


@op(
    computes="the root of `var`",
    moves=("psum",),
    example=along_some(low=2),
    result="reduces",
)
def std(x: Tensor, dims: Which = None, *, ddof: int = 0) -> Tensor:
    """The standard deviation over `dims` (default: all of them), the square root of `var`."""
    return FUNCTIONS["sqrt"](var(x, dims, ddof=ddof))


@op(
    computes="the sum of squares of its part; the root of what they come to",
    example=along_some(),
    result="reduces",
)
def norm(x: Tensor, dims: Which = None) -> Tensor:
    """The Euclidean length over `dims` (default: all of them): the root of the sum of squares."""
    magnitude = FUNCTIONS["abs"](x)  # of complex numbers too
    return FUNCTIONS["sqrt"](sum(FUNCTIONS["square"](magnitude), dims))


@op(
    computes="the same of its part",
    example=along_some(),
    result="reduces",
    gradients=False,
)
def count_nonzero(x: Tensor, dims: Which = None) -> Tensor:
    """How many elements over `dims` (default: all of them) are not zero (int32)."""
    return sum(x != 0, dims)


def float_of(dtype):
    """The dtype itself where it is one of floating-point or complex numbers, else float32."""
    return dtype if jnp.issubdtype(dtype, jnp.inexact) else jnp.float32


@partial(jax.custom_jvp, nondiff_argnums=(0, 1, 2, 3))
def _extremum(sign: int, loop: DeviceLoop, at: tuple[int, ...], dims: Dims, a):
    """The largest elements (with `sign` -1: the smallest) over `dims`, which `a` has at `at`."""
    if is_complex(a.dtype):
        return _complex_extremum(sign, loop, at, dims, a)
    extremum = (jnp.max if sign > 0 else jnp.min)(a, at)
    if not loop.axes(dims):
        return extremum
    return from_key(loop.pmax(to_key(extremum, sign), dims), a.dtype, sign)


def _complex_extremum(sign: int, loop: DeviceLoop, at: tuple[int, ...], dims: Dims, a):
    """The real parts are compared first, and the imaginary parts of those elements that tie."""
    found, tied = [], True
    for part in parts(a):
        key = to_key(part, sign)
        key = jnp.where(tied, key, jnp.iinfo(key.dtype).min)
        best = loop.pmax(jnp.max(key, at, keepdims=True), dims)
        tied = tied & (key == best)
        found.append(from_key(jnp.squeeze(best, at), part.dtype, sign))
    return jax.lax.complex(*found)


@_extremum.defjvp
def _extremum_jvp(sign, loop, at, dims, primals, tangents):
    a = computed_once(primals[0])
    extremum = _extremum(sign, loop, at, dims, a)
    return extremum, share_ties(loop, dims, at, a, extremum, tangents[0])


_declare_extremum = op(
    computes="the same of its part",
    moves=("pmax",),
    mesh_tensorflow="ReduceOperation; gives each of equal elements the whole gradient",
    example=along_some(),
    result="reduces",
)


@_declare_extremum
def max(x: Tensor, dims: Which = None) -> Tensor:
    """The largest element over `dims` (default: all of them).

    Elements that tie share the gradient. Complex numbers are compared by their real parts, and
    where these are equal by their imaginary parts.

    Raises:
      MeshDSLError: there is no element over `dims`.
    """
    return _chosen("max", x, dims, 1)


@_declare_extremum
def min(x: Tensor, dims: Which = None) -> Tensor:
    """The smallest element over `dims` (default: all of them).

    Elements that tie share the gradient. Complex numbers are compared by their real parts, and
    where these are equal by their imaginary parts.

    Raises:
      MeshDSLError: there is no element over `dims`.
    """
    return _chosen("min", x, dims, -1)


def _chosen(name: str, x: Tensor, dims: Which, sign: int) -> Tensor:
    check_some(name, x, dim_algebra.find_all(name, x.dims, dims))
    local = lambda loop, a, at, dims: _extremum(sign, loop, at, dims, a)
    return reduced(name, x, dims, local, sums=False, fill=bounds(x.dtype)[sign < 0])


@op(
    computes="the same of its part; the product of those of all parts, which are gathered",
    moves=("all_gather",),
    mesh_tensorflow="ReduceOperation; no gradient",
    example=along_some(),
    result="reduces",
)
def prod(x: Tensor, dims: Which = None) -> Tensor:
    """The product over `dims` (default: all of them).

    Where they are split, the products of the parts are gathered.
    """
    local = lambda loop, a, at, dims: jnp.prod(
        loop.gather(jnp.prod(a, at), dims, in_order=False), 0
    )
    return reduced("prod", x, dims, local, sums=False, fill=1)


@op(
    computes="the same of its part",
    moves=("pmax",),
    mesh_tensorflow="ReduceOperation",
    example=along_some(lambda any, x, dims: any(x > 0.5, dims)),
    result="reduces",
    gradients=False,
)
def any(x: Tensor, dims: Which = None) -> Tensor:
    """Whether any element over `dims` (default: all of them) is true."""
    local = lambda loop, a, at, dims: loop.pmax(jnp.any(a, at).astype(jnp.int32), dims) > 0
    return reduced("any", x, dims, local, sums=False)


@op(
    computes="the same of its part",
    moves=("pmin",),
    mesh_tensorflow="ReduceOperation",
    example=along_some(lambda all, x, dims: all(x > -0.5, dims)),
    result="reduces",
    gradients=False,
)
def all(x: Tensor, dims: Which = None) -> Tensor:
    """Whether all elements over `dims` (default: all of them) are true."""
    local = lambda loop, a, at, dims: loop.pmin(jnp.all(a, at).astype(jnp.int32), dims) > 0
    return reduced("all", x, dims, local, sums=False, fill=1)


def _arg(name: str, x: Tensor, dim: Dim | str, sign: int) -> Tensor:
    def local(loop, a, at, dims):
        a = jax.lax.stop_gradient(a)
        index = (jnp.argmax if sign > 0 else jnp.argmin)(a, at[0]).astype(jnp.int32)
        if not loop.axes(dims):
            return index
        value = jnp.take_along_axis(a, jnp.expand_dims(index, at[0]), at[0]).squeeze(at[0])
        key = to_key(value, sign)
        first = jnp.where(
            key == loop.pmax(key, dims), index + loop.offset(dims[0]), jnp.iinfo(jnp.int32).max
        )
        return loop.pmin(first, dims)

    if not isinstance(dim, (Dim, str)):
        raise MeshDSLError(
            f"{name}: works along one dim, not {quote(dim)}; the dims are "
            f"{dim_algebra.show(x.dims)}"
        )
    along = (dim_algebra.find(name, x.dims, dim),)
    check_some(name, x, along)
    check_real(name, x)
    fill = bounds(x.dtype)[sign < 0]
    return reduced(name, x, along, local, in_order=along, sums=False, fill=fill)


@op(
    computes="the same of its part; the lowest index of those with the largest element",
    moves=("pmax", "pmin"),
    mesh_tensorflow="TopKOperation",
    example=along_a(),
    result="removes",
    gradients=False,
)
def argmax(x: Tensor, dim: Dim | str) -> Tensor:
    """The index (int32) of the largest element along `dim`; of equal ones the first.

    Raises:
      MeshDSLError: there is no element along `dim`, or `x` is complex.
    """
    return _arg("argmax", x, dim, 1)


@op(
    computes="the same of its part; the lowest index of those with the smallest element",
    moves=("pmax", "pmin"),
    example=along_a(),
    result="removes",
    gradients=False,
)
def argmin(x: Tensor, dim: Dim | str) -> Tensor:
    """The index (int32) of the smallest element along `dim`; of equal ones the first.

    Raises:
      MeshDSLError: there is no element along `dim`, or `x` is complex.
    """
    return _arg("argmin", x, dim, -1)
