"""What a kernel moves from and to memory."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from meshdsl.predict.kernels.equations import Equation
from meshdsl.predict.kernels.kernels import Kernel, Move
from meshdsl.predict.kernels.primitives import IN_PLACE, PARTIAL_READS
from meshdsl.predict.kernels.value_table import ValueTable


def moves(kernel: Kernel, equations: Iterable[Equation], table: ValueTable) -> list[Move]:
    """What a kernel reads and writes.

    An operand of which the kernel reads a part counts with the bytes of that part, and an array
    that the kernel updates in place with the bytes of the update. The kernel of a loop or of
    branches has no moves of its own: the kernels inside have them.

    Args:
      equations: all that the kernel computes.
    """
    if kernel.loop is not None or kernel.branches:
        return []
    wanted: dict[int, int] = defaultdict(int)
    updated: int | None = None
    for equation in equations:
        part = None
        if equation.primitive in PARTIAL_READS:
            part = sum(v.bytes for v in equation.outputs)
        if equation.primitive in IN_PLACE:
            # A scatter may add to the elements that it updates, and then reads them first.
            overwrites = equation.primitive == "dynamic_update_slice"
            update = equation.inputs[1 if overwrites else 2]
            updated = update.bytes if update else 0
            part = 0 if overwrites else updated
        for i, value in enumerate(equation.inputs):
            if value is not None and table.is_written(value):
                buffer = table.buffer(value, equation.scope)
                size = min(value.bytes, buffer.bytes)  # less of what is split further
                wanted[id(buffer)] += part if part is not None and i == 0 else size
    reads = [Move(b, min(b.bytes, wanted.get(id(b), b.bytes))) for b in kernel.reads]
    writes = kernel.writes if updated is None else kernel.writes[:1]
    return reads + [Move(b, b.bytes if updated is None else updated, write=True) for b in writes]
