"""Products that were meant to be in few bits, and that the compiler computes in more."""

from __future__ import annotations

from collections import defaultdict

from meshdsl.predict.compiler.hlo_text import Instruction, Module, arrays
from meshdsl.predict.kernels.kernel_graph import kernel_graph
from meshdsl.program.collective import phase_in_step
from meshdsl.program.program import Program
from meshdsl.program.recorder import source_of, tag_in

_OP = "quantized_dot"  # what the record calls a product in few bits
# A product of the program as XLA has it, and the parts of the names of calls of libraries.
_PRODUCTS, _LIBRARIES = ("dot", "convolution"), ("matmul", "gemm")


def wide_products(module: Module, program: Program) -> tuple[str, ...]:
    """A line for each op and phase whose products the program has in 8 bits, and the compiler not.

    An op with further products in more bits is left out: which of them a product of the compiler is
    cannot be told.
    """
    if not any(op.name == _OP for op in program.ops):
        return ()
    meant: dict[tuple[str | None, str], set[str]] = defaultdict(set)
    for kernel, _ in kernel_graph(program).walk():
        for dot in kernel.dots:
            meant[tag_in(kernel.scope), kernel.phase].add(dot.dtype)
    narrow = {key for key, dtypes in meant.items() if all(map(_is_narrow, dtypes))}
    found: dict[tuple[str | None, str], set[str]] = defaultdict(set)
    for instruction in module.instructions.values():
        key = tag_in(instruction.scope), phase_in_step(instruction.scope)
        if key in narrow and _multiplies(instruction):
            operands = {a.dtype for o in module.operands(instruction)[:2] for a in arrays(o.type)}
            if operands and not any(map(_is_narrow, operands)):
                found[key] |= operands
    lines = []
    for (tag, phase), dtypes in found.items():
        op, wanted = program.op_tagged(tag), ", ".join(sorted(meant[tag, phase]))
        where = f"{op.name} ({source_of(op)})" if op else "a product"
        lines.append(f"{where}, {phase}: in {', '.join(sorted(dtypes))}, not {wanted}")
    return tuple(lines)


def _multiplies(instruction: Instruction) -> bool:
    if instruction.opcode == "custom-call":
        return any(name in instruction.attributes for name in _LIBRARIES)
    return instruction.opcode in _PRODUCTS


def _is_narrow(dtype: str) -> bool:
    """Whether numbers of a dtype, by its name in NumPy, have 8 bits."""
    return dtype == "int8" or dtype.startswith("float8")
