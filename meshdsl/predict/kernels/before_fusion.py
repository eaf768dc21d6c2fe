"""What a compiler does to the equations of a block before it makes kernels of them."""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Iterable
from typing import Any

from meshdsl.predict.kernels.equations import BARRIER, Block, Equation, Value, original
from meshdsl.predict.kernels.primitives import ELEMENTWISE, ROUND
from meshdsl.predict.kernels.written_values import SMALL

_PARTS = ("dynamic_update_slice", "scatter-add", "scatter_add")


def needed(equations: list[Equation], outputs: Iterable[Value | None]) -> list[Equation]:
    """Those of the equations that lead to one of the outputs."""
    wanted = {original(v) for v in outputs if v is not None}
    kept = []
    for equation in reversed(equations):
        if any(v in wanted for v in equation.outputs):
            kept.append(equation)
            wanted.update(original(v) for v in equation.operands)
    return kept[::-1]


def unrounded(equations: list[Equation]) -> list[Equation]:
    """The equations without roundings of what a policy keeps, which other compilers take out."""
    for equation in equations:
        if equation.primitive == ROUND:
            equation.outputs[0].base = original(equation.operands[0])
    return [equation for equation in equations if equation.primitive != ROUND]


def once(equations: list[Equation]) -> list[Equation]:
    """The equations without element-wise ones that compute what another has computed before."""
    found: list[Equation] = []
    known: dict[Any, Value] = {}
    for equation in equations:
        if equation.primitive in ELEMENTWISE and len(equation.outputs) == 1:
            (result,) = equation.outputs
            operands = tuple(
                str(var) if v is None else (id(original(v)), v.shape, v.transposed)
                for v, var in zip(equation.inputs, equation.eqn.invars, strict=True)
            )
            params = tuple((k, str(p)) for k, p in equation.eqn.params.items())
            key = equation.primitive, operands, params, result.shape, result.dtype
            if key in known:
                result.base = known[key]
                continue
            known[key] = result
        found.append(equation)
    return found


def updated_in_place(equations: list[Equation]) -> list[Equation]:
    """The equations with sums of a part computed in that part.

    The gradient of a slice, or of a lookup, is an array of zeros into which the slice's own
    gradient is written, or those of the rows are added. Where it is added to another array, the
    compiler reads and writes that slice, or those rows, of the other array alone, in place.
    """
    users: dict[Value, int] = defaultdict(int)
    for equation in equations:
        for value in equation.operands:
            users[original(value)] += 1
    found: list[Equation] = []
    for equation in equations:
        if equation.primitive in ("add", "add_any"):
            for whole, other in (equation.inputs, equation.inputs[::-1]):
                update = _into_zeros(other)
                if whole is None or other is None or update is None or users[other] != 1:
                    continue
                found += _sum_in_place(whole, update, equation)
                break
            else:
                found.append(equation)
        else:
            found.append(equation)
    return found


def _into_zeros(value: Value | None) -> Equation | None:
    """The equation that makes `value` by writing a part of what a scalar was spread over."""
    maker = value.equation if value is not None and value.base is None else None
    if maker is None or maker.primitive not in _PARTS or maker.inputs[1] is None:
        return None
    filled = maker.inputs[0]
    spread = original(filled).equation if filled is not None else None
    if spread is None or spread.primitive != "broadcast_in_dim" or spread.operands:
        return None
    return maker


def _sum_in_place(whole: Value, update: Equation, equation: Equation) -> list[Equation]:
    """Equations that add an update to the part of `whole` where it is written."""
    (result,) = equation.outputs
    if update.primitive != "dynamic_update_slice":
        inputs = [whole, *update.inputs[1:]]
        result.equation = Equation(update.primitive, inputs, [result], update.scope, update.eqn)
        return [result.equation]
    added, where = update.inputs[1], update.inputs[2:]
    assert added is not None
    part, total = added.copy(), added.copy()
    scope, eqn = equation.scope, equation.eqn
    part.equation = Equation("dynamic_slice", [whole, *where], [part], scope, eqn)
    total.equation = Equation("add_any", [part, added], [total], scope, eqn)
    result.equation = Equation(
        "dynamic_update_slice", [whole, total, *where], [result], update.scope, update.eqn
    )
    return [part.equation, total.equation, result.equation]


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
