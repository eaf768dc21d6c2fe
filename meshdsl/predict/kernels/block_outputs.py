"""What the block of a loop or a branch gives, written where the results of its equation stand."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable
from dataclasses import replace

from meshdsl.predict.kernels.equations import BARRIER, Block, Value, original
from meshdsl.predict.kernels.kernels import Buffer, Kernel, Move
from meshdsl.predict.kernels.primitives import ELEMENTWISE, FILL, PRODUCTS, REDUCTIONS, ROUND, TAKE
from meshdsl.predict.kernels.value_table import ValueTable
from meshdsl.predict.memory.tiles import LANES


def place_outputs(
    table: ValueTable,
    block: Block,
    buffers: list[Buffer],
    which: Collection[int],
    within: bool = False,
) -> list[tuple[Value, Buffer]]:
    """Lets outputs of a block be written where the results of its equation stand.

    Args:
      buffers: of the results of the equation.
      which: positions of the outputs that are placed.
      within: whether a buffer is a stack, of which the block writes a slice.

    Returns:
      Outputs that have to be copied, because they stand somewhere else already (an input of the
      block, say) or come from what cannot write a slice of a stack, with the buffers to copy them
      to.
    """
    copied = []
    outputs = [None if v is None else original(v) for v in block.outputs]
    placed = {original(v) for v in block.inputs}
    placed |= {v for i, v in enumerate(outputs) if v is not None and i not in which}
    for i in which:
        value, output, buffer = outputs[i], block.outputs[i], buffers[i]
        if value is None or output is None:
            continue
        if within:
            buffer = Buffer(value.shape, value.dtype, value.bytes, within=buffer)
        if value in placed or (within and not _joins(value)):
            copied.append((output, buffer))
        else:
            placed.add(value)
            table.set_buffer(value, buffer)
    return copied


def _joins(value: Value) -> bool:
    """Whether more code can join the kernel that makes a value: to write it into a stack, say."""
    made = value.equation
    return made is None or made.primitive in ELEMENTWISE | REDUCTIONS | PRODUCTS


def copy_kernel(
    reads: Iterable[Buffer], to: Buffer, scope: str, primitive: str = "copy", times: int = 1
) -> Kernel:
    """A kernel that copies what it reads, so many `times` as far as its moves go."""
    reads = list(reads)
    moves = [Move(b, b.bytes * times) for b in reads] + [Move(to, to.bytes * times, write=True)]
    return Kernel(primitive, scope, reads, [to], moves=moves)


def fill_kernels(stacks: Iterable[Buffer]) -> list[Kernel]:
    """Kernels that fill the stacks of a reversed loop with zeros.

    A TPU's compiler leaves them out only where a loop begins with the first slice.
    """
    return [
        Kernel(FILL, b.scope, writes=[Buffer((), "bool", 0)], moves=[move], bare=True)
        for b, move in ((b, Move(b, b.bytes, write=True)) for b in stacks)
    ]


def slice_lanes(kernel: Kernel, used: Collection[Buffer]) -> list[Kernel]:
    """Kernels that slice what a fused kernel gives for each row, such as a logarithm of a sum.

    On a TPU the fused kernel writes it into all lanes of a row, and a slice of them is taken then.

    Args:
      used: the buffers that are read afterwards; of the others there is no slice.
    """
    found = []
    for i, buffer in enumerate(kernel.writes):
        rows = (other.shape[:-1] for other in kernel.writes)
        is_used = any(buffer is one for one in used)
        if is_used and buffer.dtype == "float32" and buffer.shape in rows:
            shape = (*buffer.shape, LANES)
            wide = Buffer(shape, buffer.dtype, buffer.bytes * LANES, scope=buffer.scope)
            kernel.writes[i] = wide
            found.append(copy_kernel([wide], buffer, kernel.scope, "slice"))
    return found


def part_kernel(kernel: Kernel) -> Kernel:
    """The kernel that takes a device's part of a sum; the sum's own gives the whole from now on."""
    (part,), (array, *_) = kernel.writes, kernel.reads
    whole = Buffer(array.shape, array.dtype, array.bytes, scope=part.scope)
    kernel.writes = [whole]
    moves = [Move(whole, part.bytes), Move(part, part.bytes, write=True)]
    return Kernel("slice", kernel.scope, [whole], [part], moves=moves)


def as_gathered(gather: Kernel, copy: Kernel, shape: tuple[int, ...]) -> None:
    """Lets a gather write an array of another shape, which the `copy` behind it reads."""
    (array,) = gather.writes
    size = math.prod(shape) * array.bytes // math.prod(array.shape)
    gather.writes = copy.reads = [replace(array, shape=shape, bytes=size)]
    copy.moves[0] = Move(gather.writes[0], size)


def put_later(kernels: list[Kernel], kept: Iterable[Buffer], given: Iterable[Buffer]) -> None:
    """Lets slices be copied into their stacks, where the product that makes one gives more than it.

    A TPU's compiler lets a product write into a stack, but not what a policy names and keeps beside
    something else.

    Args:
      given: what the block of `kernels` gives.
    """
    slices = {id(buffer): buffer for buffer in kept if buffer.within is not None}
    used = {id(b) for b in given} | {id(b) for kernel in kernels for b in kernel.reads}
    for kernel in [k for k in kernels if k.dots]:
        if sum(id(b) in used for b in kernel.writes) < 2:
            continue
        for buffer in [b for b in kernel.writes if id(b) in slices]:
            made = Buffer(buffer.shape, buffer.dtype, buffer.bytes, scope=buffer.scope)
            for other in kernels:
                other.reads = [made if b is buffer else b for b in other.reads]
                other.writes = [made if b is buffer else b for b in other.writes]
                other.moves = [
                    replace(m, buffer=made) if m.buffer is buffer else m for m in other.moves
                ]
            kernels.append(copy_kernel([made], buffer, buffer.scope))


def take_kernels(kernels: Iterable[Kernel], slices: Iterable[Buffer]) -> list[Kernel]:
    """Kernels that copy slices of stacks into another order, for those of the kernels of a turn."""
    readers = {id(b): kernel.scope for kernel in kernels for b in kernel.reads}
    return [
        copy_kernel([b], Buffer(b.shape, b.dtype, b.bytes), readers[id(b)], TAKE)
        for b in slices
        if id(b) in readers
    ]


def scope_in_body(block: Block, value: Value | None, constants: int, otherwise: str) -> str:
    """The scope of the equation in a loop's body that makes an output of it.

    For an output that is an input carried on as it is, that of the equation that makes the next
    turn's.
    """
    if value is not None and original(value) in block.inputs[constants:]:
        i = block.inputs.index(original(value)) - constants
        value = block.outputs[i] if i < len(block.outputs) else None
    equation = original(value).equation if value is not None else None
    while equation is not None and equation.primitive in (BARRIER, ROUND):
        equation = original(equation.operands[0]).equation
    return equation.scope if equation else otherwise
