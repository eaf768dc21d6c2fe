"""Arrays whose dims a collective over the fastest one has put into another order.

A TPU keeps the fastest dim of an array in lanes of 128. Where the parts of a gather along that dim
have fewer elements, the compiler lets the gathered dim be the slowest one instead, and one that is
scattered likewise. A plain product takes its operands in any order. A batch of products, as that of
experts, takes the dim of the batch as the slowest one, so there the array is copied into that order
first. For FSDP over 64 devices, of experts whose last dim has 2,048 elements, these copies are an
eighth of a step.
"""

from __future__ import annotations

from meshdsl.predict.kernels.equations import Equation
from meshdsl.predict.memory.tiles import LANES

REORDER = "reorder"  # the primitive of a kernel that makes such a copy
_DIMS = {"all_gather": "all_gather_dimension", "reduce_scatter": "scatter_dimension"}


def reorders(equation: Equation) -> str:
    """`all_gather` or `reduce_scatter`, if the equation is one over lanes; else nothing.

    JAX's names have endings, as in `all_gather_invariant`.
    """
    for name, key in _DIMS.items():
        dim = equation.eqn.params.get(key) if equation.primitive.startswith(name) else None
        if dim is None or not equation.operands:
            continue
        # Of the equation itself: a dim of one element may be missing in what is read.
        whole, part = equation.eqn.invars[0].aval.shape, equation.eqn.outvars[0].aval.shape
        if name == "all_gather":
            whole, part = part, whole
        if dim == len(whole) - 1 and dim > 1 and part[dim] < min(LANES, whole[dim]):
            return name
    return ""


def is_batch(equation: Equation | None) -> bool:
    """Whether the equation is a batch of products."""
    if equation is None or equation.primitive != "dot_general":
        return False
    _, (batch, _) = equation.eqn.params["dimension_numbers"]
    left = equation.inputs[0]
    return left is not None and any(left.shape[i] > 1 for i in batch)
