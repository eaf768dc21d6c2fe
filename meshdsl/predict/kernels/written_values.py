"""Which values are written to memory, and which are computed wherever they are used."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable

from meshdsl.predict.kernels.equations import Equation, Value, original
from meshdsl.predict.kernels.primitives import COSTLY, ELEMENTWISE

SMALL = 4096  # bytes that scalars and the like have at most
_KERNELS = 2  # what is not costly is computed in up to so many kernels rather than written
_AGAIN = 1.1  # a value is written if computing it again reads so many times what reading it does

Sources = Callable[[Value], frozenset[Value]]


def written_values(
    equations: list[Equation],
    outputs: Iterable[Value | None],
    sources: Sources,
    fused: Collection[str],
) -> set[Value]:
    """The values of a block that are written to memory.

    These are the block's results, all that something other than element-wise code makes, and what
    something other than element-wise code and `fused` primitives needs. Element-wise values that
    several kernels need are among them if computing them again would read more than reading them,
    and is costly or happens often, or if writing them moves fewer bytes in all.

    Args:
      equations: of the block.
      outputs: of the block.
      sources: for a value from outside of the block, the written ones that it is computed from;
        itself if it is written.
      fused: the primitives whose kernels compute operands that are element-wise: reductions, and
        products where those are no kernels of their own.
    """
    users: dict[Value, list[Equation]] = defaultdict(list)
    for equation in equations:
        for value in {original(v) for v in equation.operands}:
            users[value].append(equation)
    origins, costly = _origins(equations, sources)
    found = {original(v) for v in outputs if v is not None}
    # For an element-wise value, the kernels that would compute it: fused primitives, or the
    # written values that further element-wise code makes of it.
    kernels: dict[Value, set[Value | Equation]] = {}
    for equation in reversed(equations):
        if equation.primitive not in ELEMENTWISE:
            found.update(equation.outputs)
            continue
        for value in equation.outputs:
            into: set[Value | Equation] = set()
            for user in users[value]:
                if user.primitive in ELEMENTWISE:
                    for result in user.outputs:
                        into |= {result} if result in found else kernels[result]
                elif user.primitive in fused or _is_update(value, user):
                    into.add(user)
                elif not _is_computed_inside(value, user, origins[value]):
                    found.add(value)
            kernels[value] = into
            read = sum(v.bytes for v in origins[value])
            pays = value.bytes <= SMALL or read > _AGAIN * value.bytes
            often = value in costly or len(into) > _KERNELS
            if len(into) > 1 and ((pays and often) or _saves(read, value.bytes, len(into))):
                found.add(value)
    return found


def _origins(
    equations: list[Equation], sources: Sources
) -> tuple[dict[Value, frozenset[Value]], set[Value]]:
    """What element-wise values are computed from if none is written, and which of them are costly.

    A value is costly if it, or a value that it is computed from, is made by a costly primitive.
    """
    origins: dict[Value, frozenset[Value]] = {}
    costly: set[Value] = set()
    for equation in equations:
        if equation.primitive not in ELEMENTWISE:
            continue
        inputs = [original(v) for v in equation.operands]
        found: frozenset[Value] = frozenset().union(
            *(origins[v] if v in origins else sources(v) for v in inputs)
        )
        is_costly = equation.primitive in COSTLY or any(v in costly for v in inputs)
        for value in equation.outputs:
            origins[value] = found
            if is_costly:
                costly.add(value)
    return origins, costly


def _saves(read: int, size: int, kernels: int) -> bool:
    """Whether it moves fewer bytes to write a value once than to compute it in each kernel.

    Args:
      read: bytes that computing it reads.
      size: bytes of the value, which is written once and read by each kernel.
    """
    return size > SMALL and kernels * read > read + (1 + kernels) * size


def _is_update(value: Value, user: Equation) -> bool:
    """Whether `user` writes `value` into a part of a larger array."""
    return (
        user.primitive == "dynamic_update_slice"
        and user.inputs[0] is not None
        and original(user.inputs[0]) is not value
    )


def _is_computed_inside(value: Value, user: Equation, origins: frozenset[Value]) -> bool:
    """Whether a loop or branch computes `value` for itself instead of being given it.

    That is so for what it uses as it is and what is made from next to nothing: broadcasts, masks.
    """
    read = sum(v.bytes for v in origins)
    if not user.blocks or value.bytes <= SMALL or read * 8 > value.bytes:
        return False
    varying = user.inputs[user.body_start + user.constants :]
    return all(v is None or original(v) is not value for v in varying)
