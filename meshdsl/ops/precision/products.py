"""The product of two arrays in few bits, and its two derivatives, on what one device has.

With `x` [rows, ins], a weight [ins, outs] and a cotangent `g` [rows, outs], a step multiplies three
times, and each time in few bits:

    y  [rows, outs] = x w      summed over ins
    x' [rows, ins]  = g w      summed over outs
    w' [ins, outs]  = x g      summed over rows

A scale belongs to each index of what a product keeps, never to an index of what it sums over, so
that sums are those of whole numbers. The scales of `x` and of the weight that the forward pass has
found lie along what the backward pass sums over: there they are multiplied into `g`, before `g` is
rounded with a scale of its own. Nothing that has been rounded is rounded again.

The rows of a gradient of a weight may be those of a microbatch, and a rounding must not depend on
which rows come together. So low precision is used along the last dim of the rows alone, for each
index of the others; these terms are added up in float32. Where the rows have a single dim, or the
last one is so long that int32 might overflow, this product is computed in the dtype of `x`.
"""

from __future__ import annotations

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
from meshdsl.ops.component import align
from meshdsl.ops.precision.formats import Format, Recipe, rounded, scale_of

# Chips that multiply whole numbers of 8 bits at twice the rate only where the dim that is summed
# over is the last in memory of the first operand: by the compiler's cycles of a product of
# 4096 x 4096 x 11008, in which int8 is otherwise as slow as bfloat16. v6e and tpu7x do not mind.
_ROWS_LAST = ("TPU v5 lite", "TPU v5", "TPU v5p")


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


class Operands(NamedTuple):
    """Values and scales of `x` and of the weight; a scale has the dims that are not summed over."""

    x: jax.Array
    x_scale: jax.Array
    weight: jax.Array
    weight_scale: jax.Array


def multiplied(product: Product, operands: Operands) -> Any:
    """The product of what the operands stand for, in the dtype of the values of `x`."""
    _note_backward(product)
    product = product._replace(at=product.at.aside, dtype=operands.weight.dtype)
    return _multiplied(product, collectives.vary_together(operands))


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _multiplied(product: Product, operands: Operands) -> Any:
    return _forward(product, operands)[0]


def _forward(product: Product, operands: Operands):
    x, weight, out, recipe = product[:4]
    operands = _has_no_derivative(operands)
    low = operands._replace(
        x=operands.x.astype(recipe.forward.dtype),
        weight=operands.weight.astype(recipe.forward.dtype),
    )
    total = _contracted(low.x, x, low.weight, weight, out, recipe.forward)
    total = total * _along(low.x_scale, without(x, product.ins), out)
    total = total * _along(low.weight_scale, without(weight, product.ins), out)
    return total.astype(operands.x.dtype), low


def _backward(product: Product, low: Operands, g):
    g = _has_no_derivative(g)
    of_x = _by_x(product, low, g.astype(jnp.float32)).astype(g.dtype)
    of_weight = _by_weight(product, low, g).astype(product.dtype)
    none: Any = None
    return (Operands(of_x, none, of_weight, none),)


_multiplied.defvjp(_forward, _backward)


@jax.custom_jvp
def _has_no_derivative(arrays: Any) -> Any:
    """`arrays`, in what is computed for a gradient: that has no derivative of its own.

    JAX would take a derivative through the rounding, which is 0, without a word.
    """
    return arrays


@_has_no_derivative.defjvp
def _has_no_derivative_jvp(primals, tangents):
    raise MeshDSLError(
        "quantized_dot: a product in few bits has first derivatives only; for a derivative of its "
        "gradient, use md.dot"
    )


def _by_x(product: Product, low: Operands, g):
    """The cotangent of what `x` stands for."""
    out, outs, format = product.out, product.outs, product.recipe.gradient
    g = g * _along(low.weight_scale, without(product.weight, product.ins), out)
    values, scale = _quantized(product.at, g, out, outs, format)
    total = _contracted(values, out, low.weight, product.weight, product.x, format)
    return total * align(scale, without(out, outs), product.x)


def _by_weight(product: Product, low: Operands, g):
    """The cotangent of what the weight stands for, in float32."""
    x, out, rows, format = product.x, product.out, product.rows, product.recipe.gradient
    of_scale = without(x, product.ins)
    if not product.last_row:
        full = low.x.astype(jnp.float32) * _along(low.x_scale, of_scale, x)
        return _einsum(full.astype(g.dtype), x, g, out, product.weight, jnp.float32)
    *others, last = rows
    along = g.astype(jnp.float32) * _along(low.x_scale, of_scale, out)
    values, scale = _quantized(product.at, along, out, (last,), format)
    in_front = lambda array, dims: _flattened(array, dims, tuple(others))
    (x_rows, x_dims), (g_rows, g_dims) = in_front(low.x, x), in_front(values, out)
    if product.at.device_kind in _ROWS_LAST:
        x_rows, x_dims = _with_last(x_rows, x_dims, last)
    scales, scale_dims = in_front(scale, without(out, (last,)))

    def one(x, g, scale):
        total = _contracted(x, x_dims, g, g_dims, product.weight, format)
        return total * align(scale, scale_dims, product.weight)

    if len(x_rows) == 1:
        return one(x_rows[0], g_rows[0], scales[0])
    if product.at.platform == "cpu" and format.sums == jnp.int32:
        # The compiler for CPUs fails at some products of int8 in a loop: it adds int8 to int32.
        x_rows, g_rows = x_rows.astype(format.sums), g_rows.astype(format.sums)
    each = x_rows, g_rows, scales
    like = jax.eval_shape(one, *[array[0] for array in each])
    zeros = collectives.vary(jnp.zeros(like.shape, like.dtype), collectives.varying(g))
    return lax.scan(lambda total, rows: (total + one(*rows), None), zeros, each)[0]


def _along(scale, dims: Dims, target: Dims) -> jax.Array:
    """A scale with `dims` shaped to broadcast; one that has been stated has no dims."""
    return align(scale, dims, target) if scale.ndim else scale


def _quantized(at: DeviceLoop, array, dims: Dims, over: Dims, format: Format):
    """The values of `array` in the dtype of the format, and its scales: one for all of `over`."""
    positions = tuple(dims.index(d) for d in over)
    top = at.pmax(jnp.max(jnp.abs(array), positions, initial=0), over)
    scale = scale_of(top, format)
    values = rounded(array, align(scale, without(dims, over), dims), format, array.dtype)
    return values.astype(format.dtype), scale


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
    at = product.at
    for over in (product.outs, product.last_row):
        kept = [at.size(d) for d in without(product.out, over)]
        at.note_move("hold", over, prod(kept) * 4, backward="pmax")
