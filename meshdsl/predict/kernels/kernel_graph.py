"""Makes the graph of a program's kernels from its jaxpr."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from fractions import Fraction

from meshdsl.predict.kernels.flat_jaxpr import flatten
from meshdsl.predict.kernels.kernel_builder import KernelBuilder
from meshdsl.predict.kernels.kernels import Buffer, Graph, Kernel
from meshdsl.predict.kernels.reordered import with_tables_in_order
from meshdsl.predict.kernels.value_table import ValueTable
from meshdsl.program.program import Program


def kernel_graph(program: Program, kind: str = "") -> Graph:
    """The kernels that a compiler makes of one call of `program`, and the buffers between them.

    Args:
      kind: of the chip that it is compiled for, as in `Chip.kind`; empty where none is known.
    """
    block = flatten(program)
    table = ValueTable(program.axis_sizes, kind)
    arguments = [table.buffer(value, "") for value in block.inputs]
    for buffer, value in zip(arguments, block.inputs, strict=True):
        buffer.name = value.name
    flops: dict[tuple[str | None, str], int | Fraction] = defaultdict(int)
    kernels = KernelBuilder(block, table, flops, 1).kernels
    results = [table.buffer(v, "") for v in block.outputs if v is not None]
    if kind == "tpu":
        kernels = with_tables_in_order(kernels, results)
    _drop_unread(kernels, {id(b) for b in results} | _read_or_carried(kernels))
    return Graph(
        kernels,
        arguments,
        results,
        _aliases(arguments, results, program.donated),
        program.axis_sizes,
        {key: round(count) for key, count in flops.items()},
    )


def _read_or_carried(kernels: Iterable[Kernel]) -> set[int]:
    """The ids of the buffers that a kernel reads or a loop carries, in bodies and branches too."""
    found: set[int] = set()
    for kernel in kernels:
        found.update(id(b) for b in kernel.reads)
        for branch in kernel.branches:
            found |= _read_or_carried(branch)
        if kernel.loop is not None:
            found |= _read_or_carried(kernel.loop.kernels)
            found |= {id(end) for _, end in kernel.loop.carries}
    return found


def _drop_unread(kernels: Iterable[Kernel], read: set[int]) -> None:
    """Lets kernels not write what only they themselves use.

    An example is a product of which only the activation is needed, computed in the same kernel.
    A kernel of which nothing is read keeps what it writes.
    """
    for kernel in kernels:
        if kernel.loop is not None:
            _drop_unread(kernel.loop.kernels, read)
            continue
        for branch in kernel.branches:
            _drop_unread(branch, read | {id(b) for b in kernel.writes})
        unread = [b for b in kernel.writes if b.within is None and id(b) not in read]
        if unread and len(unread) < len(kernel.writes):
            kernel.writes = [b for b in kernel.writes if all(b is not u for u in unread)]
            gone = {id(b) for b in unread}
            kernel.moves = [m for m in kernel.moves if not m.write or id(m.buffer) not in gone]


def _aliases(
    arguments: list[Buffer], results: list[Buffer], donated: Iterable[bool]
) -> dict[int, int]:
    """For the position of a result, that of the donated argument whose memory it takes.

    As JAX pairs them: the first argument of the same shape and type that is still free.
    """
    free: dict[tuple, list[int]] = defaultdict(list)
    for i, (buffer, given) in enumerate(zip(arguments, donated, strict=True)):
        if given:
            free[buffer.shape, buffer.dtype].append(i)
    found = {}
    for i, buffer in enumerate(results):
        if waiting := free[buffer.shape, buffer.dtype]:
            found[i] = waiting.pop(0)
    return found
