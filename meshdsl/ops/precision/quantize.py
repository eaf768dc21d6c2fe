"""Numbers in few bits: rounded to a format with a scale, and multiplied.

A scale is a Tensor, and its dims say which numbers share it: all of a row, say, if it has the dims
of `x` but the features. So what is rounded depends on values and never on a layout. The largest
element is an ordinary maximum: a `pmax`, where the features are split. What is rounded travels in
its format, a quarter or half of the bytes: the weights that FSDP gathers, and the activations of a
sequence that is split.

The gradient passes straight through the rounding, as if it were not there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp

from meshdsl import dims as dim_algebra
from meshdsl.dims import Dim, Dims, without
from meshdsl.errors import MeshDSLError, quote
from meshdsl.lowering.law import apply_op, apply_op_many
from meshdsl.lowering.nest import Nest
from meshdsl.lowering.scope import common, copy_of
from meshdsl.ops import component, threefry
from meshdsl.ops.component import align
from meshdsl.ops.declare import Case, Draw, op
from meshdsl.ops.einsum import dot_dims, einsum
from meshdsl.ops.precision.blocks import blocks_of, check_uncut, spread
from meshdsl.ops.precision.formats import Recipe, recipe, rounded
from meshdsl.ops.precision.products import Numbers, Operands, Product, multiplied, scales
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
    x: Tensor,
    format: str,
    over: Which = None,
    *,
    block: int | None = None,
    largest: float | None = None,
) -> tuple[Tensor, Tensor]:
    """`x` rounded to numbers in few bits, and the scale that makes `x` of them again.

        values, scale = md.quantize(x, "int8", over=d_model)    # a scale for each row
        values, scale = md.quantize(x, "int8", over=d_model, block=32)
        md.dequantize(values, scale)                            # `x`, rounded

    `values` hold what the format has, in the dtype of `x`, and travel between devices in the dtype
    of the format; `md.cast(values, jnp.int8)` keeps them in it. A gradient of `values` is taken for
    one of the numbers that they stand for, so it is that of `x`.

    Args:
      format: "int8", "fp8" (e4m3), "mxfp8" (e4m3 in blocks of 32) or "nvfp4" (e2m1 in blocks of
        16).
      over: the dims whose elements share a scale; by default all of them. The scale is the largest
        magnitude among them, divided by the bound of the format: 127.5 for int8, 448 for fp8. With
        blocks it is one dim.
      block: how many consecutive elements of `over` share a scale. The scale is then the least
        power of two with which nothing becomes more than the bound. No layout may cut a block.
      largest: the largest magnitude instead of the one that is found. What is larger becomes that.

    Returns:
      The values, and the scale in float32, which has the dims of `x` without `over`; with `largest`
      it has none. With blocks it has a dim called as `over` is, with an element for each block, so
      that the rules that split one dim split the other too.

    Raises:
      MeshDSLError: there is no such format, `x` has none of the dims, it is not of real
        floating-point numbers, or a layout cuts a block.
    """
    _check_float("quantize", x)
    over = dim_algebra.find_all("quantize", x.dims, over)
    found = _recipe("quantize", format, block, largest)
    if found.block and (len(over) != 1 or over[0].size % found.block):
        raise MeshDSLError(
            f"quantize: with blocks of {found.block}, `over` is one dim that they divide, not "
            f"{dim_algebra.show(over)}"
        )
    return quantized(x, over, found, largest)


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
      MeshDSLError: the scale has a dim that the values lack, or one with another size than theirs
        that is no number of blocks.
    """
    if values.dtype.itemsize == 1:
        values = component.cast(values, scale.dtype)
    wide = {d.name: d for d in values.dims}
    blocks = next((d for d in scale.dims if wide.get(d.name, d) != d), None)
    if blocks is None:
        return component.map(stands_for, values, scale, name="dequantize")
    dim, dims = wide[blocks.name], values.dims
    of_each = tuple(wide.get(d.name, d) for d in scale.dims)
    block, left = divmod(dim.size, blocks.size or 1)
    if left or not set(of_each) <= set(dims):
        raise MeshDSLError(
            f"dequantize: the values are {dim_algebra.show(dims)}, and the scale is "
            f"{dim_algebra.show(scale.dims)}: it has dims of these, of which one may have an "
            "element for each block of equally many"
        )
    _check_uncut("dequantize", (values, scale), dims, (dim,), block)

    def local(at, values, scale):
        scale = spread(scale, of_each.index(dim), block, values.shape[dims.index(dim)])
        return stands_for(values, align(scale, of_each, dims))

    how = {"loop": dims, "out": dims, "in_order": (), "same_split": ((blocks, dim),)}
    return apply_op("dequantize", local, (values, scale), **how)


@jax.custom_jvp
def stands_for(values, scale):
    return (values.astype(jnp.float32) * scale).astype(values.dtype)


@stands_for.defjvp
def _stands_for_jvp(primals, tangents):
    value = stands_for(*primals)
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
    x: Tensor,
    weight: Tensor,
    format: str = "int8",
    *,
    block: int | None = None,
    largest: float | None = None,
    key=None,
) -> Tensor:
    """`md.dot(x, weight)`, with both rounded to few bits first; and so in the backward pass.

    `x` has a scale for each row, and the weight for each of its columns. Sums are those of whole
    numbers (int8, added up in int32), or in float32. The gradient of the result is rounded too, for
    each of the two products that it is in; see `meshdsl.ops.precision.products`.

    Args:
      format: "int8"; "fp8": e4m3 forward, and e5m2 for gradients; "mxfp8": e4m3 in blocks of 32; or
        "nvfp4": e2m1 in blocks of 16.
      block: how many consecutive elements of what a product sums over share a scale, instead of all
        of them; of several dims that it sums over, elements of the last.
      largest: the largest magnitude in `x` and in the weight, where it is not to be found each
        time; gradients have scales of their own in any case.
      key: a JAX PRNG key, with which gradients are rounded up or down at random, so that the mean
        is right. No layout changes a bit.

    Raises:
      MeshDSLError: as `dot`, and where there is no such format, or a layout cuts a block.
    """
    out = dot_dims("quantized_dot", x, weight)
    _check_float("quantized_dot", x)
    found = _recipe("quantized_dot", format, block, largest)
    return product(x, component.cast(weight, x.dtype), out, found, largest, key)


def product(
    x: Tensor,
    weight: Tensor,
    out: Dims,
    recipe: Recipe,
    largest: float | None = None,
    key=None,
) -> Tensor:
    """The product of two Tensors of one dtype, of which each has dims that the other lacks.

    A product of which a dim is empty, that sums over more than the format can add up, or that is
    none of two matrices, is computed as usual.

    Args:
      key: by which gradients are rounded at random.
    """
    ins = tuple(d for d in x.dims if d in weight.dims and d not in out)
    rows, outs = without(x.dims, weight.dims), without(weight.dims, x.dims)
    loop = dim_algebra.union("quantized_dot", [x.dims, weight.dims])
    matrices = ins and rows and outs and {*rows, *outs} <= set(out)
    longest = max(dim_algebra.size(ins), dim_algebra.size(outs))
    too_long = longest > min(recipe.forward.longest, recipe.gradient.longest) and not recipe.block
    if not matrices or too_long or not (x.size and weight.size):
        return einsum(x, weight, out=out)
    blocked = (ins[-1], outs[-1], *rows[1:][-1:]) if recipe.block else ()
    _check_uncut("quantized_dot", (x, weight), loop, blocked, recipe.block, recipe.fixed)
    of_weight = quantized(weight, ins, recipe, largest, at_rest=True)
    pairs = [quantized(x, ins, recipe, largest), of_weight]
    if recipe.block:
        if len(rows) > 1:
            pairs.append(quantized(x, rows[-1:], recipe, gradient=False))
        pairs.append(quantized(weight, outs[-1:], recipe, gradient=False))
    dims = x.dims, weight.dims, out
    words = None if key is None else threefry.key_data(key)

    def local(at, *arrays):
        given = [Numbers(*pair) for pair in zip(arrays[::2], arrays[1::2], strict=True)]
        of_x, of_weight, *again = given
        by_rows, by_outs = (None, *again)[-2:] if again else (None, None)
        operands = Operands(of_x, of_weight, by_rows, by_outs)
        return multiplied(Product(*dims, recipe, at), operands, words)

    return apply_op(
        "quantized_dot",
        local,
        [t for pair in pairs for t in pair],
        loop=loop,
        out=out,
        in_order=(),
        same_split=_blocks_alike(blocked, recipe.block),
    )


def quantized(
    x: Tensor,
    over: Dims,
    recipe: Recipe,
    largest: float | None = None,
    *,
    at_rest: bool = False,
    gradient: bool = True,
) -> tuple[Tensor, Tensor]:
    """The values and the scale of `x`, see `quantize`; they travel in the dtype of the format.

    With blocks, these are along the last dim of `over`, for each index of the others.

    Args:
      at_rest: whether an op gets the values in the dtype that `x` has at rest, and not in that of
        its use, so that the op may give a gradient in the wider of these.
      gradient: whether the values have one.
    """
    format, block, blocked = recipe.forward, recipe.block, over[-1:] if recipe.block else ()
    _check_uncut("quantize", (x,), x.dims, blocked, block, recipe.fixed)
    dtype, dtypes = x.dtype, x.placement and x.placement.dtypes
    if x.placement and dtypes and copy_of(x) is None:
        x = Tensor(x.stored, x.dims, x.role, x.placement._replace(dtypes=None))

    def local(at, array):
        if largest is not None:
            return rounded(array, fixed, format, dtype), fixed
        array = array if gradient else jax.lax.stop_gradient(array)
        used = jax.lax.stop_gradient(array).astype(dtype)
        scale, of_each = scales(at, used, x.dims, over, format, block)
        return rounded(array, of_each, format, dtype), scale

    fixed = jnp.float32((largest or 1) / format.bound)
    kept = without(x.dims, over) if largest is None else ()
    if block:
        kept = tuple(blocks_of(d, block) if d == over[-1] else d for d in x.dims)
    same_split = _blocks_alike(blocked, block)
    nest = Nest(x.dims, (x.dims, kept), in_order=(), sums=False, same_split=same_split)
    values, scale = apply_op_many("quantize", local, (x,), nest)
    if values.placement is None:
        return values, scale
    use = values.stored.dtype if at_rest else dtype
    values = _moving(values, Dtypes(use, dtypes.sums if dtypes else use, format.dtype))
    if block:  # bfloat16 has all the scales of blocks
        scale = _moving(scale, Dtypes(scale.dtype, scale.dtype, jnp.dtype(jnp.bfloat16)))
    return values, scale


def _check_uncut(
    name: str,
    operands: Sequence[Tensor],
    loop: Dims,
    blocked: Dims,
    block: int,
    fixed: bool = False,
) -> None:
    """Raise a MeshDSLError if a layout cuts a block of the dims `blocked`, see `check_uncut`."""
    scope = common(name, operands) if blocked else None
    if scope is not None:
        levels = {t.placement.level for t in operands if t.placement}
        level = "rules" if len(levels) > 1 else levels.pop()
        check_uncut(name, scope, loop, level, blocked, block, fixed=fixed)


def _moving(x: Tensor, dtypes: Dtypes) -> Tensor:
    return x.replace(placement=x.placement._replace(dtypes=dtypes))


def _blocks_alike(dims: Dims, block: int) -> tuple[tuple[Dim, Dim], ...]:
    """For each dim that is in blocks, the dim of its blocks, which has the same split."""
    pairs = [(blocks_of(d, block), d) for d in dims] if block else []
    return tuple(pair for pair in pairs if pair[0] != pair[1])


def _check_float(name: str, x: Tensor) -> None:
    if not jnp.issubdtype(x.dtype, jnp.floating):
        raise MeshDSLError(
            f"{name}: numbers with fractions are rounded; {dim_algebra.show(x.dims)} is {x.dtype}"
        )


def _recipe(name: str, format: str, block: int | None, largest: float | None) -> Recipe:
    """The recipe that the arguments of an op describe."""
    if largest is not None and not 0 < largest < float("inf"):
        raise MeshDSLError(f"{name}: `largest` is a number above 0, not {quote(largest)}")
    found = recipe(name, format).in_blocks(name, block)
    if found.block and largest is not None:
        raise MeshDSLError(
            f"{name}: `largest` is one for all, and each block has a scale of its own"
        )
    return found
