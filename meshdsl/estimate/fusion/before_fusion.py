"""What a compiler does to the equations of a block before it makes kernels of them."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

from meshdsl.estimate.fusion.equations import BARRIER, Block, Equation, Value, original
from meshdsl.estimate.fusion.primitives import ELEMENTWISE
from meshdsl.estimate.fusion.written_values import SMALL


def needed(equations: list[Equation], outputs: Iterable[Value | None]) -> list[Equation]:
    """Those of the equations that lead to one of the outputs."""
    wanted = {original(v) for v in outputs if v is not None}
    kept = []
    for equation in reversed(equations):
        if any(v in wanted for v in equation.outputs):
            kept.append(equation)
            wanted.update(original(v) for v in equation.operands)
    return kept[::-1]


def scalars_early(equations: list[Equation]) -> list[Equation]:
    """The equations with scalars and the like as early as their operands allow.

    Otherwise code that waits for a scalar would be torn from the code that it is fused with.
    """
    place: dict[Value, int] = {}
    keys = []
    for i, equation in enumerate(equations):
        at = i
        values = [original(v) for v in equation.operands]
        small = equation.primitive in ELEMENTWISE and all(
            v.bytes <= SMALL for v in (*values, *equation.outputs)
        )
        if small:
            at = max((place.get(v, -1) for v in values), default=-1)
        keys.append((at, small, i))
        place.update(dict.fromkeys(equation.outputs, at))
    return [equations[i] for _, _, i in sorted(keys)]


def convert_stacks(equations: list[Equation]) -> list[Equation]:
    """The equations with conversions to narrower types moved out of scans.

    A stack whose slices a scan only uses in one narrower type is converted before the scan, once
    for all scans. Changes the equations of such scans, and their bodies, in place.
    """
    found: list[Equation] = []
    converted: dict[tuple[Value, str], Value] = {}
    for equation in equations:
        if equation.primitive == "scan":
            block = equation.blocks[0]
            for i in range(equation.constants + equation.carried, len(equation.inputs)):
                stack, convert = equation.inputs[i], _only_conversion(block, block.inputs[i])
                if convert is None or stack is None:
                    continue
                key = original(stack), convert.outputs[0].dtype
                if key not in converted:
                    before = _convert_stack(stack, block.inputs[i], convert)
                    found.append(before)
                    (converted[key],) = before.outputs
                equation.inputs[i] = converted[key]
                _give_narrow(block, i, convert)
        found.append(equation)
    return found


def _convert_stack(stack: Value, slice_: Value, convert: Equation) -> Equation:
    """The equation that does with a whole stack what `convert` does with a slice of it."""
    (narrow,) = convert.outputs
    value = Value(
        stack.shape,
        narrow.dtype,
        stack.bytes // slice_.bytes * narrow.bytes,
        None if narrow.parts is None else stack.parts,
    )
    value.equation = Equation("convert_element_type", [stack], [value], convert.scope, convert.eqn)
    return value.equation


def _only_conversion(block: Block, value: Value) -> Equation | None:
    """The conversion to a narrower type that is all that `block` does with `value`.

    There may be a barrier before it. None if `block` does anything else with the value.
    """
    if any(v is not None and original(v) is value for v in block.outputs):
        return None
    users = [e for e in block.equations if any(original(v) is value for v in e.operands)]
    if len(users) != 1:
        return None
    (user,) = users
    if user.primitive == BARRIER:
        return _only_conversion(block, user.outputs[0])
    narrows = user.primitive == "convert_element_type" and user.outputs[0].bytes < value.bytes
    return user if narrows else None


def _give_narrow(block: Block, i: int, convert: Equation) -> None:
    """Gives the block, as its input `i`, what `convert` makes of that input."""
    before, narrow = block.inputs[i], convert.outputs[0]
    block.equations.remove(convert)
    (converted,) = convert.operands
    barrier = original(converted).equation
    if original(converted) is before or barrier is None:
        block.inputs[i] = narrow
        return
    block.inputs[i] = dataclasses.replace(narrow, base=None, equation=None)
    barrier.inputs, barrier.outputs, narrow.equation = [block.inputs[i]], [narrow], barrier
