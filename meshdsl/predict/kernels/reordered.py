"""Arrays whose dims a collective over the fastest one has put into another order.

A TPU keeps the fastest dim of an array in lanes of 128. Where the parts of a gather along that dim
have fewer elements, the compiler lets the gathered dim be the slowest one instead, and one that is
scattered likewise. A plain product takes its operands in any order. A batch of products, as that of
experts, takes the dim of the batch as the slowest one, so there the array is copied into that order
first. For FSDP over 64 devices, of experts whose last dim has 2,048 elements, these copies are an
eighth of a step.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace

from meshdsl.predict.kernels.block_outputs import copy_kernel
from meshdsl.predict.kernels.equations import Block, Equation, Value, original
from meshdsl.predict.kernels.kernels import Buffer, Kernel
from meshdsl.predict.kernels.primitives import ELEMENTWISE, FUSED, REORDERS
from meshdsl.predict.memory.tiles import LANES, ROWS, fastest
from meshdsl.program.jaxpr import COLLECTIVES

# The primitives of kernels that make such copies: of lanes that become rows, of arrays that have
# only one row for a tile, and of whole tiles, which is a copy like any other.
REORDER = "reorder"
REORDER_ROWS = "reorder_rows"
COPY = "copy"
_FEW = 2  # rows of a tile, of which there are 8 in others
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
    whole = equation.eqn.invars[0].aval
    if len(part) < 2 or not part[dim] % LANES:
        return 0
    return part[dim] if dim == fastest(whole.shape, whole.dtype.itemsize)[0] else 0


def read_by_fused(equations: Sequence[Equation]) -> set[Value]:
    """The values that fused kernels alone read, or that element-wise code alone makes such of.

    Products write these in the order of their dims, of which the last is in lanes. All other
    results have another dim there if the last one has too few elements.
    """
    users: dict[Value, list[Equation]] = defaultdict(list)
    for equation in equations:
        for value in {original(v) for v in equation.operands}:
            users[value].append(equation)
    found: set[Value] = set()
    for equation in reversed(equations):
        for value in equation.outputs:
            if users[value] and all(_is_fused(user, value, found) for user in users[value]):
                found.add(value)
    return found


def _is_fused(user: Equation, value: Value, found: set[Value]) -> bool:
    """Whether a user of a value is a fused kernel, or makes of it what such a kernel reads."""
    alike = user.primitive in ELEMENTWISE - REORDERS and user.outputs[0].size == value.size
    return user.primitive == FUSED or (alike and user.outputs[0] in found)


def is_batch(equation: Equation | None) -> bool:
    """Whether the equation is a batch of products."""
    if equation is None or equation.primitive != "dot_general":
        return False
    _, (batch, _) = equation.eqn.params["dimension_numbers"]
    left = equation.inputs[0]
    return left is not None and any(left.shape[i] > 1 for i in batch)


def relaid(equation: Equation, *, in_loop: bool) -> tuple[str, tuple[int, ...]]:
    """How what a collective gathers is put into the order of its use, and what it is before.

    A gather leaves the pieces one behind the other. Where they are no whole tiles in the order of
    the array, the gathered dim becomes the slowest one. A product takes the array in the order that
    pads it least, its own where several do.

    Args:
      in_loop: whether the array belongs to one turn of a loop. The compiler then keeps a dim of one
        element for the turn, which becomes the rows of a tile if no other dim is left for them.

    Returns:
      The primitive of the copy, empty if there is none, and the shape of the array in the order
      in which the gather leaves it.
    """
    whole = equation.eqn.outvars[0].aval
    if not equation.primitive.startswith("all_gather") or not equation.operands:
        return "", whole.shape
    dim, part = equation.eqn.params["all_gather_dimension"], equation.eqn.invars[0].aval
    if part.ndim < 2 or part.ndim != whole.ndim or not part.size:
        return "", whole.shape
    size = part.dtype.itemsize
    lanes, rows = fastest(part.shape, size)
    of_tile = LANES if dim == lanes else ROWS if dim == rows else 1
    if not part.shape[dim] % of_tile:
        # A product takes a matrix of whole tiles in any order.
        turned = lanes != fastest(whole.shape, size)[0] and not (in_loop and part.ndim == 2)
        return REORDER if turned else "", whole.shape
    others = [i for i in range(whole.ndim) if i != dim]
    lanes = rows if dim == lanes else lanes
    outer = [whole.shape[i] for i in others if i != lanes] or [1] * in_loop
    few = bool(outer) and outer[-1] <= _FEW
    if few:
        outer[-1] = max(outer[-1], 4 // size)  # elements that share a word of the rows
    shape = (whole.shape[dim], *outer, whole.shape[lanes])
    if lanes != fastest(whole.shape, size)[0]:
        return REORDER_ROWS if few else REORDER, shape
    outside = any(whole.shape[i] > 1 for i in others if i < dim and i != lanes)
    return COPY if outside else "", shape


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
