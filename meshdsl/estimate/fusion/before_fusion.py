"""What a compiler does to a block's equations before it fuses them: drops the unneeded, computes scalars early, narrows what a loop reads."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

from meshdsl.estimate.fusion.flat_jaxpr import BARRIER, Block, Node, Value, original
from meshdsl.estimate.fusion.written_values import ELEMENTWISE, SMALL


def needed(nodes: list[Node], outputs: Iterable[Value | None]) -> list[Node]:
    """Those that lead to a result."""
    wanted = {original(v) for v in outputs if v is not None}
    kept = []
    for node in reversed(nodes):
        if any(v in wanted for v in node.outputs):
            kept.append(node)
            wanted.update(original(v) for v in node.inputs if v is not None)
    return kept[::-1]


def small_first(nodes: list[Node]) -> list[Node]:
    """Scalars and the like as soon as what they depend on is there, so that what needs them is not torn from what it belongs to."""
    place: dict[Value, int] = {}
    keys = []
    for i, node in enumerate(nodes):
        at = i
        values = [original(v) for v in node.inputs if v is not None]
        small = node.primitive in ELEMENTWISE and all(
            v.bytes <= SMALL for v in (*values, *node.outputs)
        )
        if small:
            at = max((place.get(v, -1) for v in values), default=-1)
        keys.append((at, small, i))
        place.update(dict.fromkeys(node.outputs, at))
    return [nodes[i] for _, _, i in sorted(keys)]


def narrowed(nodes: list[Node]) -> list[Node]:
    """A stack whose slices a scan only uses in one narrower type is converted before the scan, once for all scans."""
    found: list[Node] = []
    converted: dict[tuple[Value, str], Value] = {}
    for node in nodes:
        if node.primitive == "scan":
            for i in range(node.constants + node.carried, len(node.inputs)):
                stack, block = node.inputs[i], node.blocks[0]
                convert = _only_conversion(block, block.inputs[i])
                if convert is None or stack is None:
                    continue
                narrow = convert.outputs[0]
                key = original(stack), narrow.dtype
                if key not in converted:
                    parts = None if narrow.parts is None else stack.parts
                    value = Value(
                        stack.shape,
                        narrow.dtype,
                        stack.bytes // block.inputs[i].bytes * narrow.bytes,
                        parts,
                    )
                    value.node = Node(
                        "convert_element_type", [stack], [value], convert.scope, convert.eqn
                    )
                    found.append(value.node)
                    converted[key] = value
                node.inputs[i] = converted[key]
                _give_narrow(block, i, convert)
        found.append(node)
    return found


def _only_conversion(block: Block, value: Value) -> Node | None:
    """The conversion to a narrower type that is all that `block` does with `value`, if only behind a barrier."""
    if any(v is not None and original(v) is value for v in block.outputs):
        return None
    users = [
        n for n in block.nodes if any(v is not None and original(v) is value for v in n.inputs)
    ]
    if len(users) != 1:
        return None
    if users[0].primitive == BARRIER:
        return _only_conversion(block, users[0].outputs[0])
    return (
        users[0]
        if users[0].primitive == "convert_element_type" and users[0].outputs[0].bytes < value.bytes
        else None
    )


def _give_narrow(block: Block, i: int, convert: Node) -> None:
    """The block gets at `i` what `convert` made of it."""
    before, narrow = block.inputs[i], convert.outputs[0]
    block.nodes.remove(convert)
    barrier = original(convert.inputs[0]).node
    if original(convert.inputs[0]) is before or barrier is None:
        block.inputs[i] = narrow
        return
    block.inputs[i] = dataclasses.replace(narrow, of=None, node=None)
    barrier.inputs, barrier.outputs, narrow.node = [block.inputs[i]], [narrow], barrier
