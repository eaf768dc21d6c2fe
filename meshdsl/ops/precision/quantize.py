"""Numbers in few bits: rounded to a format with a scale, and multiplied.

A scale is a Tensor, and its dims say which numbers share it: all of a row, say, if it has the dims
of `x` but the features. So what is rounded depends on values and never on a layout. The largest
element is an ordinary maximum: a `pmax`, where the features are split. What is rounded travels in
its format, a quarter or half of the bytes: the weights that FSDP gathers, and the activations of a
sequence that is split.

The gradient passes straight through the rounding, as if it were not there.
"""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp

from meshdsl import dims as dim_algebra
from meshdsl.dims import Dims, without
from meshdsl.errors import MeshDSLError, quote
from meshdsl.lowering.law import apply_op, apply_op_many
from meshdsl.lowering.nest import Nest
from meshdsl.lowering.scope import copy_of
from meshdsl.ops import component
from meshdsl.ops.component import align
from meshdsl.ops.declare import Case, Draw, op
from meshdsl.ops.einsum import dot_dims, einsum
from meshdsl.ops.precision.formats import Format, Recipe, recipe, rounded, scale_of
from meshdsl.ops.precision.products import Operands, Product, multiplied
from meshdsl.ops.reduce import Which, along_some
from meshdsl.tensor import Dtypes, Parameter, Tensor


def _quantize_example(quantize: Callable, x: Tensor, dims) -> tuple[Tensor, Tensor]:
    return quantize(x, "int8", dims)


@op(
    computes="the maximum of its part; then its own numbers, rounded",
    moves=("pmax",),
    example=along_some(_quantize_example),
    floats=True,
)
def quantize(
    x: Tensor, format: str, over: Which = None, *, largest: float | None = None
) -> tuple[Tensor, Tensor]:
    """`x` rounded to numbers in few bits, and the scale that makes `x` of them again.

        values, scale = md.quantize(x, "int8", over=d_model)    # a scale for each row
        md.dequantize(values, scale)                            # `x`, rounded

    `values` hold what the format has, in the dtype of `x`, and travel between devices in the dtype
    of the format; `md.cast(values, jnp.int8)` keeps them in it. A gradient of `values` is taken for
    one of the numbers that they stand for, so it is that of `x`.

    Args:
      format: "int8", or "fp8" (e4m3).
      over: the dims whose elements share a scale; by default all of them. The scale is the largest
        magnitude among them, divided by the bound of the format: 127.5 for int8, 448 for fp8.
      largest: the largest magnitude instead of the one that is found. What is larger becomes that.

    Returns:
      The values, and the scale in float32, which has the dims of `x` without `over`; with `largest`
      it has none.

    Raises:
      MeshDSLError: there is no such format, `x` has none of the dims, or it is not of real
        floating-point numbers.
    """
    _check_float("quantize", x)
    over = dim_algebra.find_all("quantize", x.dims, over)
    return quantized(x, over, recipe("quantize", format).forward, _checked("quantize", largest))


def _dequantize_example(dequantize: Callable, x: Tensor, dims) -> Tensor:
    return dequantize(*quantize(x, "int8", dims))


@op(
    computes="its own numbers",
    example=along_some(_dequantize_example),
    floats=True,
)
def dequantize(values: Tensor, scale: Tensor) -> Tensor:
    """What `values` with `scale` stand for: their product.

    It has the dtype of the values; or that of the scale, where the values are kept in 8 bits. The
    gradient of the result is that of `values`, see `quantize`; none flows to the scale.

    Raises:
      MeshDSLError: the scale has a dim that the values lack.
    """
    if values.dtype.itemsize == 1:
        values = component.cast(values, scale.dtype)
    return component.map(_stands_for, values, scale, name="dequantize")


@jax.custom_jvp
def _stands_for(values, scale):
    return (values.astype(jnp.float32) * scale).astype(values.dtype)


@_stands_for.defjvp
def _stands_for_jvp(primals, tangents):
    value = _stands_for(*primals)
    return value, jnp.broadcast_to(tangents[0], value.shape)


def _quantized_dot_example(quantized_dot: Callable, draw: Draw) -> Case:
    a, b, c, d = draw.dims("a", "b", "c", "d")
    call = lambda x, w: quantized_dot(x, w.replace(role=Parameter(("b",))))
    return Case(call, (draw.tensor(a, d, b), draw.tensor(b, c)), (b,))


@op(
    computes="multiplies what it has, in few bits",
    moves=("pmax",),
    example=_quantized_dot_example,
    floats=True,
)
def quantized_dot(
    x: Tensor, weight: Tensor, format: str = "int8", *, largest: float | None = None
) -> Tensor:
    """`md.dot(x, weight)`, with both rounded to few bits first; and so in the backward pass.

    `x` has a scale for each row, and the weight for each of its columns. Sums are those of whole
    numbers (int8, added up in int32), or in float32. The gradient of the result is rounded too, for
    each of the two products that it is in; see `meshdsl.ops.precision.products`.

    Args:
      format: "int8", or "fp8": e4m3 forward, and e5m2 for gradients.
      largest: the largest magnitude in `x` and in the weight, where it is not to be found each
        time; gradients have scales of their own in any case.

    Raises:
      MeshDSLError: as `dot`, and where there is no such format.
    """
    out = dot_dims("quantized_dot", x, weight)
    _check_float("quantized_dot", x)
    found = recipe("quantized_dot", format)
    return product(
        x, component.cast(weight, x.dtype), out, found, _checked("quantized_dot", largest)
    )


def product(
    x: Tensor, weight: Tensor, out: Dims, recipe: Recipe, largest: float | None = None
) -> Tensor:
    """The product of two Tensors of one dtype, of which each has dims that the other lacks.

    A product of which a dim is empty, that sums over more than the format can add up, or that is
    none of two matrices, is computed as usual.
    """
    ins = tuple(d for d in x.dims if d in weight.dims and d not in out)
    rows, outs = without(x.dims, weight.dims), without(weight.dims, x.dims)
    matrices = ins and rows and outs and {*rows, *outs} <= set(out)
    longest = max(dim_algebra.size(ins), dim_algebra.size(outs))
    too_long = longest > min(recipe.forward.longest, recipe.gradient.longest)
    if not matrices or too_long or not (x.size and weight.size):
        return einsum(x, weight, out=out)
    of_x, x_scale = quantized(x, ins, recipe.forward, largest)
    of_weight, weight_scale = quantized(weight, ins, recipe.forward, largest, at_rest=True)
    dims = of_x.dims, of_weight.dims, out

    def local(at, *arrays):
        return multiplied(Product(*dims, recipe, at), Operands(*arrays))

    return apply_op(
        "quantized_dot",
        local,
        (of_x, x_scale, of_weight, weight_scale),
        loop=dim_algebra.union("quantized_dot", [x.dims, weight.dims]),
        out=out,
        in_order=(),
    )


def quantized(
    x: Tensor, over: Dims, format: Format, largest: float | None = None, *, at_rest: bool = False
) -> tuple[Tensor, Tensor]:
    """The values and the scale of `x`, see `quantize`; they travel in the dtype of the format.

    Args:
      at_rest: whether an op gets the values in the dtype that `x` has at rest, and not in that of
        its use, so that the op may give a gradient in the wider of these.
    """
    dtype, dtypes = x.dtype, x.placement and x.placement.dtypes
    if x.placement and dtypes and copy_of(x) is None:
        x = Tensor(x.stored, x.dims, x.role, x.placement._replace(dtypes=None))
    kept, positions = without(x.dims, over), tuple(x.dims.index(d) for d in over)

    def local(at, array):
        if largest is not None:
            return rounded(array, fixed, format, dtype), fixed
        used = jax.lax.stop_gradient(array).astype(dtype)
        top = jnp.max(jnp.abs(used), positions, initial=0)
        scale = scale_of(at.pmax(top, over), format)
        return rounded(array, align(scale, kept, x.dims), format, dtype), scale

    fixed = jnp.float32((largest or 1) / format.bound)
    kept = kept if largest is None else ()
    nest = Nest(x.dims, (x.dims, kept), in_order=(), sums=False)
    values, scale = apply_op_many("quantize", local, (x,), nest)
    if values.placement is None:
        return values, scale
    use = values.stored.dtype if at_rest else dtype
    moves = Dtypes(use, dtypes.sums if dtypes else use, format.dtype)
    return values.replace(placement=values.placement._replace(dtypes=moves)), scale


def _check_float(name: str, x: Tensor) -> None:
    if not jnp.issubdtype(x.dtype, jnp.floating):
        raise MeshDSLError(
            f"{name}: numbers with fractions are rounded; {dim_algebra.show(x.dims)} is {x.dtype}"
        )


def _checked(name: str, largest: float | None) -> float | None:
    if largest is not None and not 0 < largest < float("inf"):
        raise MeshDSLError(f"{name}: `largest` is a number above 0, not {quote(largest)}")
    return largest
