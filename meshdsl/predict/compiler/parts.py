"""Instructions that belong together: what a start and a done are of, and what a fusion holds.

Compilers write one collective as several instructions, or inside of another one; `replay` says in
which ways.
"""

from __future__ import annotations

from functools import partial

from meshdsl.predict.compiler.collectives import operation_of
from meshdsl.predict.compiler.hlo_text import Instruction, Module

# What may hold a collective.
_HOLDERS = ("fusion", "call", "call-start", "async-start")


def collective_inside(
    module: Module, computation: str, i: Instruction
) -> tuple[str, Instruction | None]:
    """The collective that an instruction is or runs, and the computation that it stands in.

    Args:
      computation: in which `i` stands; it is returned where there is no collective.
    """
    if operation_of(i) is not None:
        return computation, i
    for called in module.called(i):
        for one in module.computations[called]:
            if operation_of(one) is None and one.opcode not in _HOLDERS:
                continue
            within = partial(collective_inside, module, called, one)
            holder, found = module.read(one, within, (called, None))
            if found is not None:
                return holder, found
    return computation, None


def started(module: Module, computation: str, i: Instruction) -> tuple[str, Instruction]:
    """The start that a done or an update belongs to, and the computation that it stands in.

    It is looked for through the loop that carries it, and through updates.

    Args:
      computation: in which `i` stands.
    """
    i = module.operands(i)[0]
    seen = set()
    while i.name not in seen and (i.opcode == "get-tuple-element" or i.opcode.endswith("-update")):
        seen.add(i.name)
        source = module.operands(i)[0]
        if i.opcode.endswith("-update"):
            i = source
            continue
        index = i.index
        if source.opcode == "parameter":
            carried = module.root(computation)
        elif source.opcode == "while":
            computation = module.named(source, "body")
            carried = module.root(computation)
        else:
            carried = source
        if carried.opcode != "tuple":
            break
        i = module.operands(carried)[index]
    return computation, i
