"""The kernels of a program that a TPU's compiler made, as kernels that can be estimated.

A kernel of the compiled program is a fusion for which the compiler writes cycles. It is made into a
`Kernel` with the arrays that it reads and writes, in the tiles that the compiler has chosen, so
that `kernel_seconds` can be held against the cycles.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass

from meshdsl.machine import Chip
from meshdsl.predict.compiler import instruction_time
from meshdsl.predict.compiler.hlo_text import ON_CHIP, Instruction, Module
from meshdsl.predict.compiler.instruction_time import SLICES, UPDATES
from meshdsl.predict.kernels.kernels import Buffer, Dot, Kernel, Move
from meshdsl.predict.memory.tiles import LANES, round_up

_LAYOUT = re.compile(r"\w+\[[\d,<= ]*\](?:\{([\d,]*)(?::T\((\d+)(?:,(\d+))?\))?[^}]*\})?")
_COMMENT = re.compile(r"/\*.*?\*/")
_BARE = ("convert", "broadcast")
_COSTLY = set("exponential exponential-minus-one log logistic tanh erf power".split())
_MOVES = ("all-", "reduce-scatter", "collective-", "async-", "copy-", "call-")


@dataclass(frozen=True)
class Seen:
    """A kernel of a compiled program.

    Attributes:
      program: where it is from.
      kernel: with products, if it has any.
      on_chip: for each of the kernel's moves, whether the array is in fast memory.
      whole: for each, whether the kernel moves all of the array.
      seconds: by the compiler's cycles.
    """

    program: str
    kernel: Kernel
    on_chip: tuple[bool, ...]
    whole: tuple[bool, ...]
    seconds: float


def seen_kernels(text: str, program: str, chip: Chip) -> Iterator[Seen]:
    """The kernels of a compiled program, each that is different from the others once."""
    module = Module(text)
    fused = {module.named(i, "calls") for i in module.instructions.values() if i.opcode == "fusion"}
    known = set()
    for computation, instructions in module.computations.items():
        if computation in fused:
            continue
        for i in instructions:
            if i.opcode != "fusion" or not i.cycles or _communicates(module, i):
                continue
            found = _seen(module, i, program, chip)
            key = found.seconds, str(found.kernel.moves), str(found.kernel.dots)
            if key not in known:
                known.add(key)
                yield found


def bare_instructions(text: str, chip: Chip) -> Iterator[tuple[str, int, float]]:
    """The single instructions that are not fused: the kind, the elements and the seconds of each.

    The kind is `bare` for a conversion or a fill, and `reorder` for a copy from memory to memory
    with another dim in lanes.
    """
    module = Module(text)
    fused = {module.named(i, "calls") for i in module.instructions.values() if i.opcode == "fusion"}
    for computation, instructions in module.computations.items():
        for i in instructions if computation not in fused else ():
            if not i.cycles or len(i.results) != 1:
                continue
            kind = "bare" if i.opcode in _BARE else ""
            if i.opcode == "copy" and _changes_lanes(i, module.operands(i)[0]):
                kind = "reorder"
            if kind:
                yield kind, i.results[0].elements, i.cycles / chip.clock


def _changes_lanes(copy: Instruction, operand: Instruction) -> bool:
    """Whether a copy goes from memory to memory, in tiles of eight rows, with other lanes."""
    lanes = set()
    for i in (copy, operand):
        found = _LAYOUT.fullmatch(_COMMENT.sub("", i.type))
        if not found or found[2] != "8" or i.results[0].memory == ON_CHIP:
            return False
        lanes.add(found[1].split(",")[0])
    return len(lanes) == 2


def _communicates(module: Module, fusion: Instruction) -> bool:
    """Whether a part of a collective runs beside what the fusion computes."""
    inside = module.computations[module.named(fusion, "calls")]
    return any(i.opcode.startswith(_MOVES) or "AsyncCollective" in i.attributes for i in inside)


def _seen(module: Module, fusion: Instruction, program: str, chip: Chip) -> Seen:
    inside = module.computations[module.named(fusion, "calls")]
    operands = module.operands(fusion)
    moves: list[tuple[Move, bool, bool]] = []
    for parameter in (i for i in inside if i.opcode == "parameter"):
        source = operands[int(parameter.arguments)]
        sizes = tiled_bytes(source)
        for array, size in zip(source.results, sizes, strict=True):
            used = _used(module, parameter, inside, size)
            moves.append(_move(array, size if used is None else used, used is None, write=False))
    updated = {u.results[0].shape: u for u in inside if u.opcode in UPDATES and u.results}
    for array, size in zip(fusion.results, tiled_bytes(fusion), strict=True):
        update = updated.get(array.shape)
        part = None
        if update is not None:
            part = sum(
                tiled_bytes(module.operands(update)[-1 if update.opcode == "scatter" else 1])
            )
        moves.append(_move(array, size if part is None else part, part is None, write=True))
    kernel = Kernel(fusion.opcode, fusion.scope, moves=[m for m, _, _ in moves])
    kernel.dots = list(_dots(module, inside))
    if len(kernel.dots) == 1:
        kernel.costly = _costly(module, inside, kernel.dots[0])
    cycles = fusion.cycles
    assert cycles is not None
    return Seen(
        program,
        kernel,
        tuple(on_chip for _, on_chip, _ in moves),
        tuple(whole for _, _, whole in moves),
        cycles / chip.clock,
    )


def _move(array, size: float, whole: bool, *, write: bool) -> tuple[Move, bool, bool]:
    """What a kernel moves of an array, as lanes of a buffer that has no padding."""
    width = max(array.bits / 8, 1)
    rows = max(round(size / width / LANES), 1)
    buffer = Buffer((rows, LANES), array.dtype, round(rows * LANES * width))
    if not whole:  # a slice of a stack
        buffer.within = buffer
    return Move(buffer, round(size), write), array.memory == ON_CHIP, whole


def _used(
    module: Module, source: Instruction, inside: list[Instruction], size: float
) -> float | None:
    """The bytes of an operand that instructions read where all read slices; None for all of it.

    What is updated in place is read nowhere.
    """
    total = 0.0
    users = [i for i in inside if source.name in i.operands]
    for user in users:
        if user.opcode in SLICES and user.operands[0] == source.name:
            total += sum(tiled_bytes(user))
        elif user.opcode == "bitcast":
            used = _used(module, user, inside, size)
            if used is None:
                return None
            total += used
        elif user.opcode == "fusion":
            within = module.computations[module.named(user, "calls")]
            for i in within:
                if i.opcode == "parameter" and user.operands[int(i.arguments)] == source.name:
                    used = _used(module, i, within, size)
                    if used is None:
                        return None
                    total += used
        elif not (user.opcode in UPDATES and user.operands[0] == source.name):
            return None
    return min(total, size) if users else None


def _dots(module: Module, inside: list[Instruction]) -> Iterator[Dot]:
    """The products in a fusion, each as one of matrices.

    Of convolutions over space, and of products with batches, the sizes of the matrices are those
    that move as many elements.
    """
    for i in inside:
        if i.opcode == "fusion":
            yield from _dots(module, module.computations[module.named(i, "calls")])
        elif i.opcode == "convolution":
            left, right = (operand.results[0] for operand in module.operands(i)[:2])
            results = i.results[0].elements
            k = math.sqrt(left.elements * right.elements / results)
            stated = instruction_time.flops(module, i) / 2 / results
            k = stated if abs(stated / k - 1) < 0.2 else k
            m, n, k = round(left.elements / k), round(right.elements / k), round(k)
            yield Dot(1, m, k, n, 2 * m * k * n, left.dtype)


def _costly(module: Module, inside: list[Instruction], dot: Dot) -> int:
    """The elements of an operand that a fusion computes by exponentials and the like."""
    operands, found = (dot.m * dot.k, dot.k * dot.n), 0
    for i in inside:
        if i.opcode == "fusion":
            found = max(found, _costly(module, module.computations[module.named(i, "calls")], dot))
        elif i.opcode in _COSTLY and i.results[0].elements in operands:
            found = max(found, i.results[0].elements)
    return 0 if found == dot.m * dot.n else found


def tiled_bytes(instruction: Instruction) -> list[float]:
    """The bytes of each result in the tiles that the compiler has chosen."""
    layouts = _LAYOUT.findall(_COMMENT.sub("", instruction.type))
    found = []
    for array in instruction.results:
        order, rows, lanes = layouts[len(found)] if len(found) < len(layouts) else ("", "", "")
        dims = [array.shape[int(d)] for d in order.split(",") if d] or list(array.shape[::-1])
        if rows and not lanes:
            rows, lanes = "1", rows
        for position, tile in enumerate((lanes, rows)):
            if tile and position < len(dims):
                dims[position] = round_up(dims[position], int(tile))
        found.append(math.prod(dims) * array.bits / 8)
    return found
