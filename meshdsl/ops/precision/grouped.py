"""The products of experts in few bits: those of groups of rows, in `md.routed`.

They are as the products of one matrix (see `products`), with a scale for each row and for each
column of each expert's matrix. But the gradient of a matrix sums over the rows that have chosen its
expert, and which of these come together depends on the layout. So it is computed in the dtype of
the rows, of the numbers that were rounded.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from meshdsl.dims import Dim, Dims, without
from meshdsl.lowering import collectives, magnitudes
from meshdsl.lowering.device_loop import DeviceLoop
from meshdsl.ops import grouped_dot
from meshdsl.ops.grouped_dot import Way
from meshdsl.ops.precision.formats import Format, Recipe, rounded, scale_of
from meshdsl.ops.precision.products import has_no_derivative
from meshdsl.ops.precision.quantize import quantized, stands_for
from meshdsl.tensor import Tensor

# Chips whose kernel for these products multiplies numbers of 8 bits; others are given bfloat16, in
# which these numbers are exact.
_NATIVE = {"int8": ("TPU v5 lite", "TPU v5", "TPU v6 lite"), "fp8": ("TPU7x",)}


class How(NamedTuple):
    """How the matrices of experts are multiplied.

    Attributes:
      dims: theirs, with the experts in front.
      ins: the dim that products sum over.
      recipe: the formats.
      largest: the largest magnitude of what is multiplied; None: it is found each time.
    """

    dims: Dims
    ins: Dim
    recipe: Recipe
    largest: float | None

    def matrices(self, values, scale: Any = None) -> Matrices:
        """The matrices of these arrays; those of a stated `largest` have no array of scales."""
        if self.largest is not None:
            scale = jnp.float32(self.largest / self.recipe.forward.bound)
        return Matrices(values, scale, self)


class Matrices:
    """The matrices of experts in few bits, as the function of `md.routed` gets them.

    `groups.dot` multiplies in few bits. All else takes them for an array of the numbers that they
    stand for.

    Attributes:
      values: [experts, ...], in a dtype in which they are exact.
      scale: [experts, outs] in float32, or a number.
    """

    def __init__(self, values, scale, how: How):
        self.values, self.scale, self.how = values, scale, how

    def __jax_array__(self) -> jax.Array:
        at = self.how.dims.index(self.how.ins)
        scale = jnp.expand_dims(self.scale, at) if self.scale.ndim else self.scale
        return stands_for(self.values, scale)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(self.__jax_array__(), name)

    def sums(self, transposed: bool) -> bool:
        """Whether `groups.dot(rows, self, transposed=transposed)` sums over `ins`."""
        return self.how.dims[2 if transposed else 1] == self.how.ins


def in_few_bits(
    weight: Tensor, experts: Dim, recipe: Recipe, largest: float | None
) -> tuple[tuple[Tensor, ...], How | None]:
    """The Tensors that stand for a parameter of `md.routed`, and how they are multiplied.

    It stays as it is unless it has matrices, by its role, that are not too long for the format; and
    in a format with blocks.
    """
    ins = [d for d in weight.dims if weight.role and d.name in weight.role.ins]
    others = without(weight.dims, (experts,))
    matrices = experts in weight.dims and len(others) == 2 and len(ins) == 1 and ins[0] in others
    longest = min(recipe.forward.longest, recipe.gradient.longest)
    if recipe.block or not matrices or not weight.size or max(d.size for d in others) > longest:
        return (weight,), None
    values, scale = quantized(weight, tuple(ins), recipe, largest, at_rest=True)
    tensors = (values, scale) if largest is None else (values,)
    return tensors, How((experts, *others), ins[0], recipe, largest)


def joined(fn: Callable, given: Sequence[tuple[tuple[Tensor, ...], How | None]]) -> Callable:
    """`fn`, called with the arrays of all Tensors that stand for its parameters."""

    def called(groups, rows, *arrays):
        left, found = iter(arrays), []
        for tensors, how in given:
            own = [next(left) for _ in tensors]
            found.append(how.matrices(*own) if how else own[0])
        return fn(groups, rows, *found)

    return called


class Product(NamedTuple):
    """What is known of a product while it is traced.

    Attributes:
      way: of the products of groups.
      transposed: whether matrices are [experts, outs, ins].
      outs: the dim that it gives.
      at: the loop of the op.
    """

    way: Way
    transposed: bool
    how: How
    outs: Dim
    at: DeviceLoop


def dot(at: DeviceLoop, way: Way, transposed: bool, rows, matrices: Matrices, starts, of_rows):
    """Each of `rows [m, ins]` times the matrix of its group, in few bits: [m, outs].

    Args:
      of_rows: for each row the number of its group; how many there are, for none.
    """
    how = matrices.how
    (outs,) = without(how.dims[1:], (how.ins,))
    if how.largest is None:
        at.note_move("pmax", how.ins, len(rows) * 4)
    at.note_move("hold", outs, len(rows) * 4, backward="pmax")
    arrays = rows, matrices.values, matrices.scale, starts, of_rows
    product = Product(way, transposed, how, outs, at.aside)
    result: Any = _multiplied(product, *collectives.vary_together(arrays))
    return result


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _multiplied(product: Product, rows, values, scale, starts, of_rows):
    return _forward(product, rows, values, scale, starts, of_rows)[0]


def _forward(product: Product, rows, values, scale, starts, of_rows):
    rows, values, scale = has_no_derivative((rows, values, scale))
    how, format = product.how, product.how.recipe.forward
    own, own_scale = _rounded_rows(product.at, rows, how.ins, format, how.largest)
    low = values.astype(format.dtype)
    total = _summed(product, product.transposed, own, low, starts, format)
    total = total * own_scale * _of_rows(product.way, scale, of_rows)
    kept = own, own_scale, low, scale, starts, of_rows, jnp.zeros((), values.dtype)
    return total.astype(rows.dtype), kept


def _backward(product: Product, kept, g):
    own, own_scale, low, scale, starts, of_rows, like = kept
    g = has_no_derivative(g)
    format = product.how.recipe.gradient
    wide = g.astype(jnp.float32) * _of_rows(product.way, scale, of_rows)
    slope, slope_scale = _rounded_rows(product.at, wide, product.outs, format)
    of_x = _summed(product, not product.transposed, slope, low, starts, format) * slope_scale
    full = (own.astype(jnp.float32) * own_scale).astype(g.dtype)
    way = product.way.taking(g.dtype)
    of_values = grouped_dot.outer(way, product.transposed, full, g, starts)
    return of_x.astype(g.dtype), of_values.astype(like.dtype), None, None, None


_multiplied.defvjp(_forward, _backward)


def _rounded_rows(at: DeviceLoop, rows, over: Dim, format: Format, largest: float | None = None):
    """The values of rows in the dtype of the format, and the scale of each, [m, 1]."""
    if largest is not None:
        scale = jnp.float32(largest / format.bound)
    else:
        top = magnitudes.largest(rows, 1, keepdims=True)
        scale = scale_of(at.pmax(top, over), format)
    return rounded(rows, scale, format, rows.dtype).astype(format.dtype), scale


def _of_rows(way: Way, scale, of_rows):
    """For each row the scales of its group, [m, outs]; or the one scale, which has been stated."""
    if not scale.ndim:
        return scale
    if way.platform != "tpu":
        return jnp.take(scale, of_rows, axis=0, mode="fill", fill_value=0)
    # Exact, as one number of each row is 1; and no array, for the compiler joins it with its use.
    groups = jax.nn.one_hot(of_rows, len(scale), dtype=scale.dtype)
    return jnp.dot(groups, scale, precision=lax.Precision.HIGHEST)


def _summed(product: Product, transposed: bool, rows, values, starts, format: Format):
    """The products of values in few bits, in float32."""
    way = product.way
    if way.kernel == "blocks":
        dtype = sums = format.sums  # in which sums of whole numbers are exact
    elif way.kernel == "megablox" and way.device_kind in _NATIVE.get(product.how.recipe.name, ()):
        dtype, sums = rows.dtype, format.sums
    else:
        dtype, sums = jnp.bfloat16, jnp.float32
    if dtype != rows.dtype:
        rows, values = rows.astype(dtype), values.astype(dtype)
    return grouped_dot.dot(way, transposed, rows, values, starts, sums).astype(jnp.float32)
