"""What one equation computes: its products with their sizes, and its element-wise operations."""

from __future__ import annotations

import math
from collections.abc import Mapping

import jax

from meshdsl.estimate.fusion.flat_jaxpr import Node
from meshdsl.estimate.fusion.written_values import DOTS, names
from meshdsl.estimate.kernels import Dot
from meshdsl.record.collective import Collective
from meshdsl.record.jaxpr import COLLECTIVES, collectives_of, join_scopes

_MOVES = names("""
    broadcast_in_dim concatenate convert_element_type copy dynamic_slice dynamic_update_slice gather iota optimization_barrier pad reduce_precision rev select_n slice split
""")  # elements about, and computes nothing


def dots(node: Node) -> list[Dot]:
    """The products of an equation."""
    eqn, inputs, outputs = node.eqn, node.inputs, node.outputs
    if eqn.primitive.name == "dot_general":
        return [_product(eqn, *(_shape(v, var) for v, var in zip(inputs, eqn.invars, strict=True)))]
    if eqn.primitive.name == "conv_general_dilated":
        return [
            _convolution(
                eqn,
                *(_shape(v, var) for v, var in zip(inputs, eqn.invars, strict=True)),
                outputs[0].shape,
            )
        ]
    return []


def other_flops(node: Node) -> int:
    """One for each element of an element-wise result and of a reduction's operand; none for what only moves elements."""
    name = node.primitive
    if name in _MOVES or name in DOTS or node.blocks or name in COLLECTIVES:
        return 0
    if name.startswith(("reduce_", "argm", "cum")):
        return max((v.size for v in node.inputs if v is not None), default=0)
    return max((v.size for v in node.outputs), default=0)


def collectives(node: Node, axis_sizes: Mapping[str, int], times: int) -> list[Collective]:
    """What an equation communicates, one for each operand; nothing over axes of size 1."""
    if node.primitive not in COLLECTIVES:
        return []
    return list(collectives_of(node.eqn, axis_sizes, times, join_scopes(node.scope, node.primitive)))


def _shape(value, var) -> tuple[int, ...]:
    """A value's local shape where it is cut, or the equation's own: renames inside a `shard_map` don't make values."""
    return var.aval.shape if value is None or value.parts is None else value.shape


def _product(eqn, left, right) -> Dot:
    (lc, rc), (lb, rb) = eqn.params["dimension_numbers"]
    batch = math.prod(left[i] for i in lb)
    k = math.prod(left[i] for i in lc)
    m = math.prod(n for i, n in enumerate(left) if i not in (*lc, *lb))
    n = math.prod(n for i, n in enumerate(right) if i not in (*rc, *rb))
    return Dot(batch, m, k, n, 2 * batch * m * k * n, eqn.invars[0].aval.dtype.name)


def _convolution(eqn, left, right, out) -> Dot:
    p = eqn.params
    numbers: jax.lax.ConvDimensionNumbers = p["dimension_numbers"]
    groups = p["feature_group_count"] * p["batch_group_count"]
    spatial = [out[i] for i in numbers.out_spec[2:]]
    kernel = [right[i] for i in numbers.rhs_spec[2:]]
    features, inner = right[numbers.rhs_spec[0]], right[numbers.rhs_spec[1]]
    met = 1
    for i, (size, window) in enumerate(zip(spatial, kernel, strict=True)):
        met *= _met(
            left[numbers.lhs_spec[2 + i]],
            size,
            window,
            p["window_strides"][i],
            p["padding"][i][0],
            p["lhs_dilation"][i],
            p["rhs_dilation"][i],
        )
    batch = out[numbers.out_spec[0]]
    flops = 2 * batch * features * inner * met
    return Dot(
        groups,
        batch * math.prod(spatial),
        math.prod(kernel) * inner,
        features // groups,
        flops,
        eqn.invars[0].aval.dtype.name,
    )


def _met(
    size: int, results: int, window: int, stride: int, before: int, dilated: int, apart: int
) -> int:
    """How many pairs of a result and a place of the window fall on an element, along one dim: not on padding, nor between dilated elements."""
    last = (size - 1) * dilated
    count = 0
    for place in range(window):
        offset = place * apart - before
        if dilated == 1:
            first = max(0, (stride - 1 - offset) // stride)
            count += max(0, min(results - 1, (last - offset) // stride) - first + 1)
        else:
            count += sum(
                0 <= at <= last and at % dilated == 0
                for at in range(offset, offset + results * stride, stride)
            )
    return count
