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
from meshdsl.predict.memory.tiles import LANES, ROWS, fastest
from meshdsl.program.collective import phase_in_step

# The primitives of kernels that make such copies: of lanes that become rows, of arrays that have
# only one row for a tile, and of whole tiles.
REORDER = "reorder"
REORDER_ROWS = "reorder_rows"
REORDER_TILES = "reorder_tiles"
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


def relaid(equation: Equation, *, in_loop: bool) -> str:
    """The primitive of the copy that puts what a collective gathers into the order of its use.

    A gather leaves the pieces one behind the other. Where they are no whole tiles in the order of
    the array, the gathered dim becomes the slowest one. A product takes the array in the order that
    pads it least, its own where several do. What is gathered once more for the backward pass is
    taken as it is.

    Args:
      in_loop: whether the array belongs to one turn of a loop. The compiler then keeps a dim of one
        element for the turn, which becomes the rows of a tile if no other dim is left for them.
    """
    if not equation.primitive.startswith("all_gather") or not equation.operands:
        return ""
    dim = equation.eqn.params["all_gather_dimension"]
    part, whole = equation.eqn.invars[0].aval, equation.eqn.outvars[0].aval
    if part.ndim < 2 or part.ndim != whole.ndim or not part.size:
        return ""
    if phase_in_step(equation.scope) != "forward":
        return ""
    size = part.dtype.itemsize
    lanes, rows = fastest(part.shape, size)
    of_tile = LANES if dim == lanes else ROWS if dim == rows else 1
    slowest = part.shape[dim] % of_tile != 0
    if slowest and dim == lanes:
        lanes = rows
    wanted, _ = fastest(whole.shape, size)
    if lanes != wanted:
        alone = slowest and in_loop and part.ndim == 2
        return REORDER_ROWS if alone else REORDER
    outside = [n for i, n in enumerate(whole.shape) if i < dim and i != lanes]
    return REORDER_TILES if slowest and any(n > 1 for n in outside) else ""
