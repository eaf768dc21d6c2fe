"""The work of one equation: its products with their sizes, its FLOPs, and what it communicates."""

from __future__ import annotations

import math
from collections.abc import Mapping

import jax

from meshdsl.predict.kernels.equations import Equation, Value
from meshdsl.predict.kernels.kernels import Dot
from meshdsl.predict.kernels.primitives import MOVES, PRODUCTS
from meshdsl.predict.memory.tiles import LANES
from meshdsl.program.collective import Collective
from meshdsl.program.jaxpr import COLLECTIVES, collectives_of, join_scopes

_ROWS = 8  # of which a TPU's compiler has enough in a convolution, see `kernel_time`


def dots(equation: Equation) -> list[Dot]:
    """The products that an equation computes: one, none, or those that a kernel states."""
    eqn, name = equation.eqn, equation.primitive
    if stated := eqn.params.get("products"):
        return [Dot(*product) for product in stated]
    if name not in PRODUCTS:
        return []
    left, right = (_shape(v, var) for v, var in zip(equation.inputs, eqn.invars, strict=True))
    if name == "dot_general":
        return [_product(eqn, left, right)]
    return [_convolution(eqn, left, right, equation.outputs[0].shape)]


def other_flops(equation: Equation) -> int:
    """The FLOPs of an equation that is no product.

    One for each element of an element-wise result or of a reduction's operand; none for what only
    moves elements.
    """
    name = equation.primitive
    if name in MOVES or name in PRODUCTS or equation.blocks or name in COLLECTIVES:
        return 0
    if name.startswith(("reduce_", "argm", "cum")):
        return max((v.size for v in equation.operands), default=0)
    return max((v.size for v in equation.outputs), default=0)


def collectives(equation: Equation, axis_sizes: Mapping[str, int], times: int) -> list[Collective]:
    """What an equation that runs `times` communicates: one for each operand, none over size 1."""
    if equation.primitive not in COLLECTIVES:
        return []
    scope = join_scopes(equation.scope, equation.primitive)
    return list(collectives_of(equation.eqn, axis_sizes, times, scope))


def _shape(value: Value | None, var) -> tuple[int, ...]:
    """The shape on one device of an operand, with the dims that the equation sees.

    For global arrays that is the value's. Inside of a `shard_map` it is the jaxpr's own: what only
    renames an array there makes no value.
    """
    return var.aval.shape if value is None or value.parts is None else value.shape


def _product(eqn, left: tuple[int, ...], right: tuple[int, ...]) -> Dot:
    (contracted_left, contracted_right), (batch_left, batch_right) = eqn.params["dimension_numbers"]
    batch = math.prod(left[i] for i in batch_left)
    k = math.prod(left[i] for i in contracted_left)
    of_left = [n for i, n in enumerate(left) if i not in (*contracted_left, *batch_left)]
    of_right = [n for i, n in enumerate(right) if i not in (*contracted_right, *batch_right)]
    m, n = math.prod(of_left), math.prod(of_right)
    flops = 2 * batch * m * k * n
    lanes = _empty_lanes(of_right or of_left)
    return Dot(batch, m, k, n, flops, eqn.invars[0].aval.dtype.name, lanes=lanes)


def _empty_lanes(dims: list[int]) -> float:
    """`lanes` of a `Dot` by the dims that end its result.

    A last dim of very few elements is not put into lanes.
    """
    if len(dims) < 2 or not LANES // 4 <= dims[-1] < LANES:
        return 1.0
    return LANES / dims[-1]


def _convolution(eqn, left: tuple[int, ...], right: tuple[int, ...], out: tuple[int, ...]) -> Dot:
    """A convolution as a product, with the FLOPs of terms that do not meet padding."""
    p = eqn.params
    numbers: jax.lax.ConvDimensionNumbers = p["dimension_numbers"]
    groups = p["feature_group_count"] * p["batch_group_count"]
    spatial = [out[i] for i in numbers.out_spec[2:]]
    kernel = [right[i] for i in numbers.rhs_spec[2:]]
    features, inner = right[numbers.rhs_spec[0]], right[numbers.rhs_spec[1]]
    terms = 1
    for i, (size, window) in enumerate(zip(spatial, kernel, strict=True)):
        terms *= _terms(
            left[numbers.lhs_spec[2 + i]],
            size,
            window,
            stride=p["window_strides"][i],
            before=p["padding"][i][0],
            lhs_dilation=p["lhs_dilation"][i],
            rhs_dilation=p["rhs_dilation"][i],
        )
    batch = out[numbers.out_spec[0]]
    return Dot(
        groups,
        batch * math.prod(spatial),
        math.prod(kernel) * inner,
        features // groups,
        2 * batch * features * inner * terms,
        eqn.invars[0].aval.dtype.name,
        rearranged=_rearranged(eqn, left, right, out),
    )


def _rearranged(eqn, left: tuple[int, ...], right: tuple[int, ...], out: tuple[int, ...]) -> int:
    """`rearranged` of a `Dot`. In the gradient of a kernel the rows are what is summed over."""
    numbers: jax.lax.ConvDimensionNumbers = eqn.params["dimension_numbers"]
    space = lambda shape, spec: math.prod(shape[i] for i in spec[2:])
    window, results = space(right, numbers.rhs_spec), space(out, numbers.out_spec)
    forward = results >= window
    rows = left[numbers.lhs_spec[0 if forward else 1]]
    if rows >= _ROWS or min(window, results) == 1:
        return 0
    other, var = (out, eqn.outvars[0]) if forward else (right, eqn.invars[1])
    sizes = (left, eqn.invars[0]), (other, var)
    return sum(math.prod(shape) * v.aval.dtype.itemsize for shape, v in sizes)


def _terms(
    size: int,
    results: int,
    window: int,
    *,
    stride: int,
    before: int,
    lhs_dilation: int,
    rhs_dilation: int,
) -> int:
    """How many terms of a convolution along one dim meet an element of its operand.

    A term is a pair of a result and a position in the window. Those that fall on padding, or
    between the elements of a dilated operand, are not counted.

    Args:
      size: of the operand.
      results: how many there are.
      window: size of the window.
      before: padding in front of the operand.
    """
    last = (size - 1) * lhs_dilation
    count = 0
    for position in range(window):
        offset = position * rhs_dilation - before
        if lhs_dilation == 1:
            first = max(0, (stride - 1 - offset) // stride)
            count += max(0, min(results - 1, (last - offset) // stride) - first + 1)
        else:
            count += sum(
                0 <= at <= last and at % lhs_dilation == 0
                for at in range(offset, offset + results * stride, stride)
            )
    return count
