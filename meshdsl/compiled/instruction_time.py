"""How long one instruction of a compiled program computes.

The TPU compiler writes `estimated_cycles` on fusions: they are divided by the clock that its cycles count. They agree with the compiler,
which is not the same as with hardware. What has none, and every instruction of a GPU program, is taken by the roofline:
the FLOPs of its products over the rate that products reach, or the bytes that it reads and writes in HBM over the bandwidth that copies reach,
whichever is longer. Of an operand that is only sliced or gathered from, the slices count; an update in place counts the update, written once.
"""

from __future__ import annotations

import json
import math
import re

from meshdsl.compiled.hlo_text import ON_CHIP, Array, Instruction, Module
from meshdsl.compiled.opcodes import OPCODES

# What takes no time: names, and scalars on the side.
_FREE = {
    "parameter", "constant", "get-tuple-element", "tuple", "bitcast", "after-all", "partition-id", "replica-id", "opt-barrier",
    "get-dimension-size", "add-dependency", "infeed", "outfeed",
}  # fmt: skip
_SLICES = ("dynamic-slice", "slice", "gather")
_UPDATES = ("dynamic-update-slice", "scatter")
# Custom calls that only tell the compiler something, or allocate.
_NOTES = re.compile(
    r'custom_call_target="(AllocateBuffer|PrepareAsync\w+|AssumeGather\w+|Sharding|annotate_device_placement|MoveTo\w+|AsyncCollective\w+)"'
)
_GEMM = re.compile(r'custom_call_target="__cublas\$(?:gemm|lt\$matmul)')


def seconds(module: Module, instruction: Instruction, chip) -> float:
    """Of one execution; an error where the opcode is not one of HLO.

    chip: says `flops`, `matmul_efficiency`, `hbm_bandwidth`, `hbm_efficiency`, `clock`.
    """
    if instruction.opcode not in OPCODES:
        raise LookupError(f"HLO has no {instruction.opcode}")
    if instruction.opcode in _FREE or _NOTES.search(instruction.attributes):
        return 0.0
    cycles = instruction.cycles
    if cycles is not None and chip.clock:
        return cycles / chip.clock
    results = instruction.results
    if all(array.elements <= 1 for array in results) and instruction.opcode not in (
        "fusion",
        "reduce",
        "custom-call",
    ):
        return 0.0
    by_products = flops(module, instruction) / (chip.flops * chip.matmul_efficiency)
    by_memory = traffic(module, instruction) / (chip.hbm_bandwidth * chip.hbm_efficiency)
    return max(by_products, by_memory)


def flops(module: Module, instruction: Instruction) -> float:
    """Of the products in it; a multiplication and an addition count as two."""
    if instruction.opcode == "fusion":
        inside = module.computations[module.named(instruction, "calls")]
        return sum(flops(module, i) for i in inside)
    if instruction.opcode == "dot":
        return (
            2.0 * _elements(instruction) * _contracted(module, instruction, instruction.attributes)
        )
    if instruction.opcode == "convolution":
        kernel = module.operands(instruction)[1].results[0]
        labels = re.search(r"dim_labels=\w+_(\w+)->", instruction.attributes)
        features = kernel.shape[labels[1].index("o")]
        return 2.0 * _elements(instruction) * kernel.elements / max(features, 1)
    if instruction.opcode == "custom-call" and _GEMM.search(instruction.attributes):
        return (
            2.0 * _elements(instruction) * _contracted(module, instruction, instruction.attributes)
        )
    return 0.0


def _elements(instruction: Instruction) -> int:
    return instruction.results[0].elements if instruction.results else 0


def _contracted(module: Module, instruction: Instruction, text: str) -> int:
    """The product of the contracted dims of a product's left operand."""
    left = module.operands(instruction)[0].results[0]
    found = re.search(r'lhs_contracting_dim(?:ension)?s"?[=:][\[{]([^\]}]*)[\]}]', text)
    dims = [int(d) for d in re.findall(r"\d+", found[1])]
    return math.prod(left.shape[d] for d in dims)


def traffic(module: Module, instruction: Instruction) -> int:
    """Bytes that it reads from HBM and writes there."""
    noted = _noted_bytes(instruction)
    if noted is not None:
        return noted
    operands = module.operands(instruction)
    if instruction.opcode in _SLICES:
        return 2 * _in_hbm(instruction.results)
    if instruction.opcode in _UPDATES:
        return 2 * _in_hbm(operands[-1 if instruction.opcode == "scatter" else 1].results)
    if instruction.opcode != "fusion":
        return _in_hbm(instruction.results) + sum(_in_hbm(operand.results) for operand in operands)
    return _fusion_traffic(module, instruction, operands)


def _fusion_traffic(module: Module, fusion: Instruction, operands: list[Instruction]) -> int:
    inside = module.computations[module.named(fusion, "calls")]
    users: dict[str, list[Instruction]] = {}
    for i in inside:
        for name in i.operands:
            users.setdefault(name, []).append(i)
    total = 0
    updated = 0  # the whole size of results that are updated in place
    for parameter in (i for i in inside if i.opcode == "parameter"):
        uses = users.get(parameter.name, [])
        whole = _in_hbm(operands[int(parameter.arguments)].results)
        if uses and all(u.opcode in _SLICES and u.operands[0] == parameter.name for u in uses):
            total += min(whole, sum(u.bytes for u in uses))
        elif uses and all(u.opcode in _UPDATES and u.operands[0] == parameter.name for u in uses):
            places = [-1 if u.opcode == "scatter" else 1 for u in uses]
            total += sum(2 * module.operands(u)[n].bytes for u, n in zip(uses, places, strict=True))
            updated += whole
        else:
            total += whole
    return total + max(_in_hbm(fusion.results) - updated, 0)


def _noted_bytes(instruction: Instruction) -> int | None:
    """What a custom kernel says of itself: `"cost_estimate":{"flops":...,"bytes_accessed":...}`."""
    found = re.search(r'"cost_estimate":(\{[^}]*\})', instruction.attributes)
    if found is None:
        return None
    try:
        return int(json.loads(found[1])["bytes_accessed"])
    except (ValueError, KeyError):
        return None


def _in_hbm(arrays: list[Array]) -> int:
    return sum(array.bytes for array in arrays if array.memory != ON_CHIP)
