"""The product of two arrays in few bits, and its two derivatives, on what one device has.

With `x` [rows, ins], a weight [ins, outs] and a cotangent `g` [rows, outs], a step multiplies three
times, and each time in few bits:

    y  [rows, outs] = x w      summed over ins
    x' [rows, ins]  = g w      summed over outs
    w' [ins, outs]  = x g      summed over rows

Without blocks a scale belongs to each index of what a product keeps, never to an index of what it
sums over, so that sums are those of whole numbers. The scales of `x` and of the weight that the
forward pass has found lie along what the backward pass sums over: there they are multiplied into
`g`, before `g` is rounded with a scale of its own. Nothing that has been rounded is rounded again.

In blocks a scale belongs to a block of what a product sums over, so each product has numbers of its
own: `x` is rounded in blocks of ins and, for w', in blocks of rows, and the weight in blocks of ins
and, for x', in blocks of outs, each from what it was. Values times scales are exact in bfloat16, in
which these products are computed, and summed in float32. GPUs that multiply numbers with such
scales do that instead, see `scaled`.

The rows of a gradient of a weight may be those of a microbatch, and a rounding must not depend on
which rows come together. So low precision is used along the last dim of the rows alone, for each
index of the others; these terms are added up in float32. Where the rows have a single dim, or the
last one is so long that int32 might overflow, this product is computed in the dtype of `x`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from math import prod
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental.layout import Layout, with_layout_constraint

from meshdsl.dims import Dim, Dims, without
from meshdsl.errors import MeshDSLError
from meshdsl.lowering import collectives
from meshdsl.lowering.device_loop import DeviceLoop
from meshdsl.lowering.magnitudes import largest
from meshdsl.ops import threefry
from meshdsl.ops.component import align
from meshdsl.ops.precision import scaled
from meshdsl.ops.precision.blocks import largest_of, spread
from meshdsl.ops.precision.formats import Format, Recipe, block_scale, rounded, scale_of

# Chips that multiply whole numbers of 8 bits at twice the rate only where the dim that is summed
# over is the last in memory of the first operand: by the compiler's cycles of a product of
# 4096 x 4096 x 11008, in which int8 is otherwise as slow as bfloat16. v6e and tpu7x do not mind.
_ROWS_LAST = ("TPU v5 lite", "TPU v5", "TPU v5p")


Chance = Callable[[], jax.Array | None]  # gives random bits, or None to round to the nearest


class Product(NamedTuple):
    """What is known of a product while it is traced.

    Attributes:
      x, weight, out: the dims of the operands and of the result.
      recipe: the formats.
      at: the loop of the op.
      dtype: of the gradient of the weight.
    """

    x: Dims
    weight: Dims
    out: Dims
    recipe: Recipe
    at: DeviceLoop
    dtype: Any = None

    @property
    def ins(self) -> Dims:
        """The dims that are summed over."""
        return without(self.x, self.out)

    @property
    def outs(self) -> Dims:
        """The dims of the result that the weight alone has."""
        return without(self.weight, self.x)

    @property
    def rows(self) -> Dims:
        """The dims of the result that `x` alone has."""
        return without(self.x, self.weight)

    @property
    def last_row(self) -> Dims:
        """The dim of the rows along which the gradient of the weight is in few bits, if any is."""
        *others, last = self.rows
        return (last,) if others and last.size <= self.recipe.gradient.longest else ()


class Numbers(NamedTuple):
    """Values of an array, and their scale: for each index that is not summed over, or block."""

    values: jax.Array
    scale: jax.Array


class Random(NamedTuple):
    """By what gradients are rounded at random.

    Attributes:
      key: the words of a key.
      indices: for each dim of the result, the indices of the elements on this device. They are
        found in the forward pass: in the backward pass the turn of a pipeline has ended.
    """

    key: jax.Array
    indices: tuple[jax.Array, ...]


class Operands(NamedTuple):
    """What is multiplied.

    Attributes:
      x, weight: with scales along `ins`.
      x_by_rows: `x` with scales along the last dim of the rows, for a product in blocks.
      weight_by_outs: the weight with scales along `outs`, for a product in blocks.
      random: by what gradients are rounded at random.
    """

    x: Numbers
    weight: Numbers
    x_by_rows: Numbers | None = None
    weight_by_outs: Numbers | None = None
    random: Random | None = None


def multiplied(product: Product, operands: Operands, key=None) -> Any:
    """The product of what the operands stand for, in the dtype of the values of `x`.

    Args:
      key: the words of a key, by which gradients are rounded at random.
    """
    _note_backward(product)
    if key is not None:
        indices = tuple([product.at.indices(d, jnp.uint32) for d in product.out])
        operands = operands._replace(random=Random(key, indices))
    product = product._replace(at=product.at.aside, dtype=operands.weight.values.dtype)
    return _multiplied(product, collectives.vary_together(operands))


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _multiplied(product: Product, operands: Operands) -> Any:
    return _forward(product, operands)[0]


def _forward(product: Product, operands: Operands):
    x, weight, out, recipe = product[:4]
    operands = jax.tree.map(has_no_derivative, operands)  # each alone: some are not needed again
    low = jax.tree.map(lambda n: _low(n, recipe.forward), operands, is_leaf=_is_numbers)
    if recipe.block:
        sides = (low.x, x), (low.weight, weight)
        total = _in_blocks(product, *sides, product.ins, out, recipe.forward)
        low = low._replace(weight=None, x=None if product.last_row else low.x)
    else:
        total = _contracted(low.x.values, x, low.weight.values, weight, out, recipe.forward)
        total = total * _along(low.x.scale, without(x, product.ins), out)
        total = total * _along(low.weight.scale, without(weight, product.ins), out)
    return total.astype(operands.x.values.dtype), low


def _is_numbers(x) -> bool:
    return isinstance(x, Numbers)


def _low(x: Any, format: Format) -> Any:
    return x._replace(values=x.values.astype(format.dtype)) if _is_numbers(x) else x


def _backward(product: Product, low: Operands, g):
    g = has_no_derivative(g)
    chances: tuple[Chance, Chance] = lambda: None, lambda: None
    if low.random is not None:
        indices, (first, second) = low.random.indices, threefry.two_keys(low.random.key)
        bits = lambda key: threefry.bits_at(indices, key, product.out)
        chances = lambda: bits(first), lambda: bits(second)
    of_x = _by_x(product, low, g.astype(jnp.float32), chances[0]).astype(g.dtype)
    of_weight = _by_weight(product, low, g, chances[1]).astype(product.dtype)
    none: Any = None
    return (Operands(Numbers(of_x, none), Numbers(of_weight, none)),)


_multiplied.defvjp(_forward, _backward)


@jax.custom_jvp
def has_no_derivative(arrays: Any) -> Any:
    """`arrays`, in what is computed for a gradient: that has no derivative of its own.

    JAX would take a derivative through the rounding, which is 0, without a word.
    """
    return arrays


@has_no_derivative.defjvp
def _has_no_derivative_jvp(primals, tangents):
    raise MeshDSLError(
        "quantized_dot: a product in few bits has first derivatives only; for a derivative of its "
        "gradient, use md.dot"
    )


def _by_x(product: Product, low: Operands, g, chance: Chance):
    """The cotangent of what `x` stands for."""
    out, outs, format = product.out, product.outs, product.recipe.gradient
    if product.recipe.block:
        sides = (_quantized(product, g, outs, chance), out), (low.weight_by_outs, product.weight)
        return _in_blocks(product, *sides, outs, product.x, format)
    g = g * _along(low.weight.scale, without(product.weight, product.ins), out)
    values, scale = _quantized(product, g, outs, chance)
    total = _contracted(values, out, low.weight.values, product.weight, product.x, format)
    return total * align(scale, without(out, outs), product.x)


def _by_weight(product: Product, low: Operands, g, chance: Chance):
    """The cotangent of what the weight stands for, in float32."""
    x, out, rows, recipe = product.x, product.out, product.rows, product.recipe
    if not product.last_row:
        full = _full(product, low.x, x, product.ins, jnp.float32)
        return _einsum(full.astype(g.dtype), x, g, out, product.weight, jnp.float32)
    if recipe.block:
        g = _quantized(product, g.astype(jnp.float32), product.last_row, chance)
        sides = (low.x_by_rows, x), (g, out)
        return _in_blocks(product, *sides, product.last_row, product.weight, recipe.gradient)
    *others, last = rows
    along = g.astype(jnp.float32) * _along(low.x.scale, without(x, product.ins), out)
    values, scale = _quantized(product, along, (last,), chance)
    in_front = lambda array, dims: _flattened(array, dims, tuple(others))
    (x_rows, x_dims), (g_rows, g_dims) = in_front(low.x.values, x), in_front(values, out)
    if product.at.device_kind in _ROWS_LAST:
        x_rows, x_dims = _with_last(x_rows, x_dims, last)
    row_scales, scale_dims = in_front(scale, without(out, (last,)))

    def one(x, g, scale):
        total = _contracted(x, x_dims, g, g_dims, product.weight, recipe.gradient)
        return total * align(scale, scale_dims, product.weight)

    if len(x_rows) > 1 and product.at.platform == "cpu" and recipe.gradient.sums == jnp.int32:
        # The compiler for CPUs fails at some products of int8 in a loop: it adds int8 to int32.
        x_rows, g_rows = x_rows.astype(jnp.int32), g_rows.astype(jnp.int32)
    return _added_up(one, (x_rows, g_rows, row_scales))


def _along(scale, dims: Dims, target: Dims) -> jax.Array:
    """A scale with `dims` shaped to broadcast; one that has been stated has no dims."""
    return align(scale, dims, target) if scale.ndim else scale


def _quantized(product: Product, g, over: Dims, chance: Chance) -> Numbers:
    """The values of a gradient of the result in the dtype of the format, and their scales."""
    at, dims, recipe = product.at, product.out, product.recipe
    format = recipe.gradient
    scale, of_each = scales(at, g, dims, over, format, recipe.block)
    values = rounded(g, of_each, format, g.dtype, chance())
    return Numbers(values.astype(format.dtype), scale)


def scales(at: DeviceLoop, x, dims: Dims, over: Dims, format: Format, block: int) -> tuple:
    """The scales of an array `x` with `dims`, and the same in a shape that broadcasts against it.

    A scale is that of all elements along `over`; or, for a `block`, of a block along the last of
    `over`, for each index of the others.
    """
    positions = tuple(dims.index(d) for d in over)
    if not block:
        top = at.pmax(largest(x, positions), over)
        scale = scale_of(top, format)
        return scale, align(scale, without(dims, over), dims)
    last, size = positions[-1], x.shape[positions[-1]]
    top, of_row = largest_of(x, last, block), None
    if format.scales is not None:
        of_row = at.pmax(largest(top, positions, keepdims=True), over)
    scale = block_scale(top, of_row, format)
    return scale, spread(scale, last, block, size)


def _full(product: Product, x: Numbers, dims: Dims, over: Dims, dtype) -> jax.Array:
    """What numbers stand for, which have scales along `over`, in a dtype."""
    scale, position = x.scale, dims.index(over[-1])
    if product.recipe.block:
        size = x.values.shape[position]
        scale = spread(scale.astype(dtype), position, product.recipe.block, size)
    else:
        scale = _along(scale, without(dims, over), dims)
    return x.values.astype(dtype) * scale


def _in_blocks(product: Product, a: tuple, b: tuple, over: Dims, out: Dims, format: Format):
    """The product of two `Numbers` with scales along `over`, each with its dims; in float32."""
    at, recipe = product.at, product.recipe
    a, b = (scaled.Side(x.values, x.scale, dims) for x, dims in (a, b))
    if not recipe.fixed or at.device_kind not in scaled.KINDS or at.size(over[-1]) % recipe.block:
        # The same numbers in a wider dtype, in which a CPU multiplies faster.
        dtype = jnp.float32 if at.platform == "cpu" else jnp.bfloat16
        full = [_full(product, Numbers(*side[:2]), side.dims, over, dtype) for side in (a, b)]
        return _einsum(full[0], a.dims, full[1], b.dims, out, jnp.float32)
    others = tuple(d for d in a.dims if d in b.dims and d not in (*over, *out))
    if not others or format.scales is None:
        return scaled.multiplied(a, b, (*others, *over), out, format)
    # The scales of each index of the others have a power of two of their own.
    each = [_flattened(array, side.dims, others)[0] for side in (a, b) for array in side[:2]]
    a_dims, b_dims = (without(side.dims, others) for side in (a, b))

    def one(*arrays):
        x, x_scale, y, y_scale = arrays
        sides = scaled.Side(x, x_scale, a_dims), scaled.Side(y, y_scale, b_dims)
        return scaled.multiplied(*sides, over, out, format)

    return _added_up(one, each)


def _added_up(one: Callable, each: Sequence[jax.Array]) -> jax.Array:
    """The sum of what `one` gives for each row of the arrays, without all of it in memory."""
    if len(each[0]) == 1:
        return one(*[array[0] for array in each])
    like = jax.eval_shape(one, *[array[0] for array in each])
    zeros = collectives.vary(jnp.zeros(like.shape, like.dtype), collectives.varying_in(each))
    return lax.scan(lambda total, rows: (total + one(*rows), None), zeros, tuple(each))[0]


def _contracted(a, a_dims: Dims, b, b_dims: Dims, out: Dims, format: Format) -> jax.Array:
    """The product of two arrays in few bits, summed exactly if they are whole numbers; float32."""
    return _einsum(a, a_dims, b, b_dims, out, format.sums).astype(jnp.float32)


def _einsum(a, a_dims: Dims, b, b_dims: Dims, out: Dims, sums) -> jax.Array:
    number = {d: i for i, d in enumerate(dict.fromkeys((*a_dims, *b_dims)))}
    labels = [[number[d] for d in dims] for dims in (a_dims, b_dims, out)]
    return jnp.einsum(a, labels[0], b, labels[1], labels[2], preferred_element_type=sums)


def _flattened(array, dims: Dims, front: Dims) -> tuple[jax.Array, Dims]:
    """`array` with the dims `front` joined to one in front of the others, and the others."""
    order = [dims.index(d) for d in front] + [i for i, d in enumerate(dims) if d not in front]
    array = array.transpose(order)
    return array.reshape(-1, *array.shape[len(front) :]), without(dims, front)


def _with_last(array, dims: Dims, last: Dim) -> tuple[jax.Array, Dims]:
    """A copy of `array`, with a row in front, of which the dim `last` is the last in memory.

    Without saying so of both, the compiler would make `array` itself in the order of the copy.
    """
    order = (*without(dims, (last,)), last)
    copied = jnp.transpose(_in_order(array), (0, *[1 + dims.index(d) for d in order]))
    return _in_order(copied), order


def _in_order(array) -> jax.Array:
    """`array`, which lies in memory in the order of its dims."""
    return with_layout_constraint(array, Layout(tuple(range(array.ndim))))


def _note_backward(product: Product) -> None:
    """Write down the maxima over devices that the backward pass takes."""
    at, recipe = product.at, product.recipe
    if recipe.block and recipe.gradient.scales is None:
        return  # each device has the maxima of its blocks
    for over in (product.outs, product.last_row):
        kept = [at.size(d) for d in without(product.out, over)]
        at.note_move("hold", over, prod(kept) * 4, backward="pmax")
