"""Arrays whose dims a collective over the fastest one has put into another order.

A TPU keeps the fastest dim of an array in lanes of 128. Where the parts of a gather along that dim
have fewer elements, the compiler lets the gathered dim be the slowest one instead, and one that is
scattered likewise. A plain product takes its operands in any order. A batch of products, as that of
experts, takes the dim of the batch as the slowest one, so there the array is copied into that order
first. For FSDP over 64 devices, of experts whose last dim has 2,048 elements, these copies are an
eighth of a step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from meshdsl.predict.kernels.block_outputs import copy_kernel
from meshdsl.predict.kernels.equations import Block, Equation, Value
from meshdsl.predict.kernels.kernels import Buffer, Kernel
from meshdsl.predict.memory.tiles import LANES, ROWS, fastest
from meshdsl.program.collective import phase_in_step
from meshdsl.program.jaxpr import COLLECTIVES

# The primitives of kernels that make such copies: of lanes that become rows, of arrays that have
# only one row for a tile, and of whole tiles, which is a copy like any other.
REORDER = "reorder"
REORDER_ROWS = "reorder_rows"
COPY = "copy"
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


def scatters_lanes(equation: Equation) -> int:
    """The parts into which an equation scatters an array along its lanes, if no whole tiles; or 0.

    Such an array is put into another order first where several parts make a tile. Otherwise the
    compiler sums all of it on every device, of which each takes its part.
    """
    if not equation.primitive.startswith("reduce_scatter") or not equation.operands:
        return 0
    dim, part = equation.eqn.params["scatter_dimension"], equation.eqn.outvars[0].aval.shape
    return part[dim] if len(part) > 1 and dim == len(part) - 1 and part[dim] % LANES else 0


def exchanges_inner(equation: Equation) -> bool:
    """Whether an equation exchanges parts along a dim that is not the slowest one.

    What goes to one device must lie together, so the array is copied first. What comes from the
    devices lies one behind the other, and is always copied after.
    """
    if equation.primitive != "all_to_all":
        return False
    outer = equation.eqn.invars[0].aval.shape[: equation.eqn.params["split_axis"]]
    return any(n > 1 for n in outer)


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
        if in_loop and part.ndim == 2 and not slowest:
            return ""  # a product takes a matrix of whole tiles in any order
        alone = slowest and in_loop and part.ndim == 2
        return REORDER_ROWS if alone else REORDER
    outside = [n for i, n in enumerate(whole.shape) if i < dim and i != lanes]
    return COPY if slowest and any(n > 1 for n in outside) else ""


def lengthwise(block: Block, constants: int, carried: int) -> Value | None:
    """What the layers of a loop hand on, if the compiler keeps it with its length in lanes.

    Products write their results with the larger of the two last dims in lanes. So the activations
    of layers, of batch, length and width, lie lengthwise where the length is not smaller, unless a
    collective moves them, which leaves their dims in order.
    """
    floats = [v for v in block.inputs[constants : constants + carried] if _is_float(v)]
    carry = max(floats, key=lambda v: v.size, default=None)
    if carry is None or len(carry.shape) != 3 or carry.shape[-2] < carry.shape[-1]:
        return None
    like = (carry.shape[0], carry.shape[-1])
    for equation in block.equations:
        if equation.primitive in COLLECTIVES:
            for v in equation.operands:
                if len(v.shape) == 3 and (v.shape[0], v.shape[-1]) == like:
                    return None
    return carry


def stays_lengthwise(stacks: Sequence[Value | None]) -> bool:
    """Whether activations lie lengthwise in a backward pass too, which is given `stacks`.

    What is kept with a larger dim in lanes is read so, and what is computed of it is written so.
    """
    kept = [v.shape for v in stacks if v is not None and _is_float(v) and len(v.shape) == 4]
    return not any(shape[-1] > shape[-2] > 1 for shape in kept)


def is_turned(kept: Value, carry: Value | None) -> bool:
    """Whether a backward pass reads a kept array in another order than a forward pass has kept it.

    So it does with queries in groups of heads, and with results of attention.

    Args:
      carry: activations that lay lengthwise forwards and do not backwards.
    """
    if not _is_float(kept):
        return False
    return len(kept.shape) == 5 or (carry is not None and kept.shape == carry.shape)


def grouped_heads(equation: Equation) -> bool:
    """Whether a fused kernel gives several heads of queries the same keys.

    The heads of queries are two dims then, of which the second is too small for the rows of a tile.
    """
    shapes = [v.aval.shape for v in equation.eqn.invars if len(v.aval.shape) == 4]
    if len(shapes) < 2:
        return False
    queries, keys = shapes[0][1], shapes[1][1]
    return 1 < keys < queries


def with_tables_in_order(kernels: list[Kernel], results: Sequence[Buffer]) -> list[Kernel]:
    """The kernels of a program, with copies of the tables that an optimizer updates.

    A table with a row for each token, such as that of an embedding, is an argument with its tokens
    in lanes where its width would be padded. Its gradient has its width in lanes, so parameters and
    moments are copied into that order, and what the optimizer has made of them back.
    """
    made = {id(b) for b in results}
    found: list[Kernel] = []
    for kernel in kernels:
        tables = [b for b in kernel.reads if b.name and _is_padded_table(b)]
        after = [b for b in kernel.writes if id(b) in made and _is_padded_table(b)]
        alone = not kernel.dots and kernel.loop is None and kernel.collective is None
        if not alone or not tables or not after:
            found.append(kernel)
            continue
        copies = {id(b): Buffer(b.shape, b.dtype, b.bytes) for b in (*tables, *after)}
        of = lambda b, copies=copies: copies.get(id(b), b)
        kernel.reads, kernel.writes = [*map(of, kernel.reads)], [*map(of, kernel.writes)]
        kernel.moves = [replace(move, buffer=of(move.buffer)) for move in kernel.moves]
        kernel.in_place = [(of(one), of(other)) for one, other in kernel.in_place]
        found += [copy_kernel([b], of(b), kernel.scope, REORDER) for b in tables]
        found.append(kernel)
        for b in after:
            found.append(copy_kernel([of(b)], b, kernel.scope, REORDER))
            found[-1].in_place += [(table, b) for table in tables if table.shape == b.shape]
    return found


def _is_padded_table(buffer: Buffer) -> bool:
    """Whether the smaller of two dims is no multiple of the lanes, but at least as many."""
    dims = [n for n in buffer.shape if n != 1]
    return len(dims) == 2 and min(dims) > LANES and min(dims) % LANES != 0 and max(dims) > 2**13


def _is_float(value: Value) -> bool:
    return value.dtype in ("bfloat16", "float16", "float32")
