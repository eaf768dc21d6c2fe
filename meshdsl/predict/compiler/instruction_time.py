"""How long one instruction of a compiled program computes.

The TPU compiler writes `estimated_cycles` on fusions: they are divided by the clock that its cycles
count. Such times agree with the compiler, which is not the same as with hardware.

What has no cycles, and every instruction of a GPU program, is taken by the roofline: the FLOPs of
its products over the rate that products reach, or the bytes that it reads and writes in HBM over
the bandwidth that copies reach, whichever is longer. Of an operand that is only sliced or gathered
from, the slices count; an update in place counts the update, read once and written once. A fused
kernel that states its FLOPs (see `program.name_stacks`) is assumed to reach `FUSED_EFFICIENCY`; one
of products of groups of rows takes the share of its chip, `grouped_efficiency`.
"""

from __future__ import annotations

import json
import math
import re

from meshdsl.machine import FUSED_EFFICIENCY, Chip
from meshdsl.predict.compiler.hlo_text import ON_CHIP, Array, Instruction, Module, matched
from meshdsl.program.name_stacks import Stated, flops_in

# The names of HLO's instructions, as in XLA's `hlo_opcode.h`, without the `-start`, `-update` and
# `-done` of asynchronous ones. The time of an instruction that is none of these is not known.
_OPCODES = """
    abs acos acosh add add-dependency after-all all-gather all-reduce all-to-all and asin asinh atan
    atan2 atanh batch-norm-grad batch-norm-inference batch-norm-training bitcast bitcast-convert
    broadcast call cbrt ceil cholesky clamp collective-broadcast collective-permute compare complex
    concatenate conditional constant convert convolution copy cosh cosine count-leading-zeros
    custom-call divide domain dot dynamic-reshape dynamic-slice dynamic-update-slice erf
    exponential exponential-minus-one fft floor fusion gather get-dimension-size get-tuple-element
    imag infeed iota is-finite log log-plus-one logistic map maximum minimum multiply negate not
    opt-barrier optimization-barrier or outfeed pad parameter partition-id popcnt power
    ragged-all-to-all ragged-dot real recv reduce reduce-precision reduce-scatter reduce-window
    remainder replica-id reshape reverse rng rng-bit-generator rng-get-and-update-state
    round-nearest-afz round-nearest-even rsqrt scaled-dot scan scatter select select-and-scatter
    send set-dimension-size shift-left shift-right-arithmetic shift-right-logical sign sine sinh
    slice sort sqrt stochastic-convert subtract tan tanh topk transpose triangular-solve tuple
    while xor
""".split()
# What takes no time: names for what is there already, and scalars.
_FREE = {
    "parameter",
    "constant",
    "get-tuple-element",
    "tuple",
    "bitcast",
    "after-all",
    "partition-id",
    "replica-id",
    "opt-barrier",
    "get-dimension-size",
    "add-dependency",
    "infeed",
    "outfeed",
}
SLICES = ("dynamic-slice", "slice", "gather")
UPDATES = ("dynamic-update-slice", "scatter")
# Custom calls that only tell the compiler something, or allocate.
_NOTES = re.compile(
    r'custom_call_target="(AllocateBuffer|PrepareAsync\w+|AssumeGather\w+|Sharding'
    r'|annotate_device_placement|MoveTo\w+|AsyncCollective\w+)"'
)
_GEMM = re.compile(r'custom_call_target="__cublas\$(?:gemm|lt\$matmul)')
_FUSED = re.compile(r'custom_call_target="(tpu_custom_call|__cudnn\$fmha|__gpu\$xla\.gpu\.triton)')
_LABELS = re.compile(r"dim_labels=\w+_(\w+)->")
_CONTRACTING = re.compile(r'lhs_contracting_dim(?:ension)?s"?[=:][\[{]([^\]}]*)[\]}]')


def seconds(module: Module, instruction: Instruction, chip: Chip) -> float:
    """How long one execution of an instruction takes.

    Raises:
      LookupError: its opcode is none of HLO's.
    """
    if instruction.opcode not in _OPCODES:
        raise LookupError(f"HLO has no {instruction.opcode}")
    if instruction.opcode in _FREE or _NOTES.search(instruction.attributes):
        return 0.0
    cycles = instruction.cycles
    if cycles is not None and chip.clock:
        return cycles / chip.clock
    scalars = all(array.elements <= 1 for array in instruction.results)
    if scalars and instruction.opcode not in ("fusion", "reduce", "custom-call"):
        return 0.0
    stated = stated_flops(instruction)
    if stated is None:
        by_products = flops(module, instruction) / (chip.flops * chip.matmul_efficiency)
    else:
        reached = FUSED_EFFICIENCY
        if stated.grouped:
            dtypes = {a.dtype for o in module.operands(instruction) for a in o.results}
            # Some operands are indices, of int32. Only rows and matrices have 8 bits.
            reached = chip.grouped_efficiency / min(map(chip.slowdown, dtypes), default=1.0)
        by_products = stated.flops / (chip.flops * reached)
    by_memory = traffic(module, instruction) / (chip.hbm_bandwidth * chip.hbm_efficiency)
    return max(by_products, by_memory)


def stated_flops(instruction: Instruction) -> Stated | None:
    """What a fused kernel states of its FLOPs; None of anything else."""
    if instruction.opcode == "custom-call" and _FUSED.search(instruction.attributes):
        return flops_in(instruction.scope)
    return None


def flops(module: Module, instruction: Instruction) -> float:
    """The FLOPs of the products in it: a multiplication and an addition count as two."""
    if instruction.opcode == "fusion":
        inside = module.computations[module.named(instruction, "calls")]
        return sum(flops(module, i) for i in inside)
    if instruction.opcode == "convolution":
        kernel = module.operands(instruction)[1].results[0]
        labels = matched(_LABELS, instruction.attributes)[1]
        features = kernel.shape[labels.index("o")]
        return 2.0 * _elements(instruction) * kernel.elements / max(features, 1)
    gemm = instruction.opcode == "custom-call" and _GEMM.search(instruction.attributes)
    if instruction.opcode == "dot" or gemm:
        return 2.0 * _elements(instruction) * _contracted(module, instruction)
    return 0.0


def _elements(instruction: Instruction) -> int:
    return instruction.results[0].elements if instruction.results else 0


def _contracted(module: Module, instruction: Instruction) -> int:
    """Over how many elements of its left operand a product sums for each element of its result."""
    left = module.operands(instruction)[0].results[0]
    positions = re.findall(r"\d+", matched(_CONTRACTING, instruction.attributes)[1])
    return math.prod(left.shape[int(n)] for n in positions)


def traffic(module: Module, instruction: Instruction) -> int:
    """The bytes that an instruction reads from HBM and writes there."""
    noted = _noted_bytes(instruction)
    if noted is not None:
        return noted
    operands = module.operands(instruction)
    if instruction.opcode in SLICES:
        return 2 * _in_hbm(instruction.results)
    if instruction.opcode in UPDATES:
        return 2 * _in_hbm(operands[-1 if instruction.opcode == "scatter" else 1].results)
    if instruction.opcode != "fusion":
        return _in_hbm(instruction.results) + sum(_in_hbm(operand.results) for operand in operands)
    return _fusion_traffic(module, instruction, operands)


def _fusion_traffic(module: Module, fusion: Instruction, operands: list[Instruction]) -> int:
    """Of a fusion: of each operand what the instructions inside of it read, and its results."""
    inside = module.computations[module.named(fusion, "calls")]
    users: dict[str, list[Instruction]] = {}
    for i in inside:
        for name in i.operands:
            users.setdefault(name, []).append(i)
    total = 0
    updated = 0  # bytes of the results that are updated in place
    for parameter in (i for i in inside if i.opcode == "parameter"):
        uses = users.get(parameter.name, [])
        size = _in_hbm(operands[int(parameter.arguments)].results)
        if uses and all(u.opcode in SLICES and u.operands[0] == parameter.name for u in uses):
            total += min(size, sum(u.bytes for u in uses))
        elif uses and all(u.opcode in UPDATES and u.operands[0] == parameter.name for u in uses):
            written = [module.operands(u)[-1 if u.opcode == "scatter" else 1] for u in uses]
            total += sum(2 * update.bytes for update in written)
            updated += size
        else:
            total += size
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
