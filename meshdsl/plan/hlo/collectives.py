"""The collectives in a compiled program.

A jaxpr says what was asked for; this reads what the compiler made of it, from `compiled.as_text()`. Instructions are
visited from the entry computation through fusions, calls, branches and loops, with the trip counts multiplied; an
asynchronous collective counts where it starts, and one with several operands is one per operand.

For code inside `shard_map` the two lists are equal, but for what compilers do of themselves. Seen with jax 0.10 and
0.12:

- Two identical collectives become one, and one that is the same in every turn of a loop moves out of it.
  `jax.checkpoint` keeps its second run apart from the first inside a scan; outside of one the CPU compiler of jax
  0.10 merges them.
- Several all-reduces are merged into one with several operands; counting per operand makes that invisible.
- CPU runs every collective of bfloat16 in float32: twice the bytes that the jaxpr states.
- On TPU a reduce-scatter may be an all-reduce fused with a slice, counted as the `psum_scatter` that it is. If its
  dim isn't a multiple of the tile it is padded, and small collective-permutes without a scope repair the seams.
- On TPU, gathers and scatters over one axis that spans the whole 3-D torus were all written as all-reduces of the
  full size (64 chips of a v5p), and lost their scopes: they are counted as the `psum` that runs.
- On TPU, options can turn a product with a collective into a ring, which leaves collective-permutes of pieces.
  Pipelined gathers are peeled off the loop: counts stay, unless two peeled ones are identical.
- The partitioner (`jit` with shardings) writes an all-reduce and a slice where a reduce-scatter would do, on CPU; it
  is counted as the `psum` that runs.

A loop whose length isn't a constant counts as one turn, and every branch of a conditional is listed.
"""

import dataclasses
import math
import re
from collections.abc import Iterator, Mapping

import numpy as np

from .collective import Collective, live_axes

_OPERATIONS = {
    "all-reduce": "psum",
    "all-gather": "all_gather",
    "reduce-scatter": "psum_scatter",
    "all-to-all": "all_to_all",
    "collective-permute": "ppermute",
}
# The reducer of an all-reduce decides what it is; on booleans `or` is the maximum.
_REDUCERS = {"add": "psum", "maximum": "pmax", "minimum": "pmin", "or": "pmax", "and": "pmin"}

_DTYPES = {"pred": "bool", "bf16": "bfloat16", "f": "float", "s": "int", "u": "uint", "c": "complex"}


def from_hlo(compiled_text: str, mesh) -> list[Collective]:
    """Lists the collectives of an optimized program, in schedule order.

    compiled_text: `jitted.lower(...).compile().as_text()`.
    mesh: the mesh that it was compiled for, or its `{axis: size}`; device n of the program is the n-th of the mesh.

    A group that covers only a part of an axis (the partitioner makes such) is counted under that axis.
    """
    axis_sizes = dict(mesh if isinstance(mesh, Mapping) else mesh.shape)
    module = _Module(compiled_text)
    return list(_walk(module, module.entry, axis_sizes, 1))


@dataclasses.dataclass(frozen=True)
class _Instruction:
    name: str
    opcode: str
    type: str
    operands: tuple[str, ...]
    arguments: str  # what stands in the parentheses: operands, or a constant's value
    attributes: str
    root: bool

    def attribute(self, key: str) -> str | None:
        """The name that `key=%name` gives."""
        found = re.search(rf"(?:^|[ ,]){key}=%?([\w.\-]+)", self.attributes)
        return found and found[1]

    @property
    def scope(self) -> str:
        found = re.search(r'op_name="([^"]*)"', self.attributes)
        return found[1] if found else ""


class _Module:
    """The text of a program, by computation. Instruction names are unique in it."""

    def __init__(self, text: str):
        self.computations: dict[str, list[_Instruction]] = {}
        self.instructions: dict[str, _Instruction] = {}
        self.entry = ""
        current: list[_Instruction] = []
        for line in text.splitlines():
            header = re.match(r"(ENTRY )?%?([\w.\-]+) \(.*\{$", line)
            if header:
                current = self.computations[header[2]] = []
                self.entry = header[2] if header[1] else self.entry
            elif (instruction := _parse(line)) is not None:
                current.append(instruction)
                self.instructions[instruction.name] = instruction

    def root(self, computation: str) -> _Instruction:
        return next(i for i in self.computations[computation] if i.root)


def _parse(line: str) -> _Instruction | None:
    """Reads `[ROOT] %name = type opcode(arguments), attributes`."""
    start = re.match(r"\s+(ROOT )?%?([^\s=]+) = ", line)
    if start is None:
        return None
    rest = line[start.end() :]
    end = _closing(rest, 0) if rest.startswith("(") else rest.index(" ")
    opening = rest.index("(", end)
    closing = _closing(rest, opening)
    arguments = rest[opening + 1 : closing - 1]
    return _Instruction(
        name=start[2],
        opcode=rest[end:opening].strip(),
        type=rest[:end],
        operands=tuple(re.findall(r"%([\w.\-]+)", arguments)),
        arguments=arguments,
        attributes=rest[closing:],
        root=start[1] is not None,
    )


def _closing(text: str, start: int) -> int:
    """The position after the parenthesis that closes the one at `start`."""
    depth = 0
    for match in re.compile(r"[()]").finditer(text, start):
        depth += 1 if match[0] == "(" else -1
        if depth == 0:
            return match.end()
    return len(text)


def _walk(module: _Module, computation: str, axis_sizes, count: int) -> Iterator[Collective]:
    instructions = module.computations[computation]
    starts = any('custom_call_target="AsyncCollectiveStart"' in i.attributes for i in instructions)
    for i in instructions:
        opcode = i.opcode.removesuffix("-start")
        if opcode in _OPERATIONS:
            # The TPU compiler spreads one collective over the fusions that compute meanwhile: each holds a copy of it,
            # marked with the chain that it belongs to. The first starts it.
            if starts or "chain_id=" not in i.attributes:
                yield from _collectives(module, computation, i, opcode, axis_sizes, count)
        elif opcode == "while":
            times = count * _trip_count(module, i)
            yield from _walk(module, i.attribute("body"), axis_sizes, times)
            yield from _walk(module, i.attribute("condition"), axis_sizes, times)
        else:
            for called in _called(i, opcode):
                yield from _walk(module, called, axis_sizes, count)


def _called(instruction: _Instruction, opcode: str) -> list[str]:
    """The computations that an instruction runs once; not the scalar functions of a reduction or a sort."""
    keys = ["calls", "true_computation", "false_computation"] + (["to_apply"] if opcode in ("call", "async") else [])
    found = [name for key in keys if (name := instruction.attribute(key))]
    branches = re.search(r"branch_computations=\{([^}]*)\}", instruction.attributes)
    return found + (re.findall(r"%?([\w.\-]+)", branches[1]) if branches else [])


def _collectives(module, computation, instruction, opcode, axis_sizes, count) -> Iterator[Collective]:
    groups = _groups(instruction, math.prod(axis_sizes.values()))
    axes = _axes(groups, axis_sizes)
    if not axes:
        return
    operation = _operation(module, computation, instruction, opcode)
    sizes = [_size(module.instructions[name].type) for name in instruction.operands]
    if operation == "all_to_all":  # given in pieces, one for each device of the group, or whole
        sizes = [(sum(size for size, _ in sizes), sizes[0][1])]
    gathered = len(groups[0]) if operation == "all_gather" else 1
    for size, dtype in sizes:
        yield Collective(operation, axes, count, size * gathered, dtype, instruction.scope)


def _operation(module, computation, instruction, opcode) -> str:
    if opcode != "all-reduce":
        return _OPERATIONS[opcode]
    reducer = module.computations[instruction.attribute("to_apply")]
    operation = next((_REDUCERS[i.opcode] for i in reducer if i.opcode in _REDUCERS), "psum")
    users = [i for i in module.computations[computation] if instruction.name in i.operands]
    sliced = bool(users) and all(i.opcode == "dynamic-slice" for i in users)
    fused = "all-reduce-scatter" in computation
    return "psum_scatter" if operation == "psum" and fused and sliced else operation


def _size(type_text: str) -> tuple[int, str]:
    """Bytes and dtype of an array type such as `bf16[8,128]{1,0:T(8,128)}`."""
    kind, dims = re.match(r"(\w+)\[([\d,]*)\]", type_text).groups()
    letters, bits = re.match(r"([a-z]+)(\d*)", kind).groups()
    dtype = _DTYPES.get(kind) or _DTYPES.get(letters, letters) + kind[len(letters) :]
    elements = math.prod(int(d) for d in dims.split(",") if d)
    return math.ceil(elements * int(bits or 8) / 8), dtype


def _trip_count(module: _Module, loop: _Instruction) -> int:
    """How often a loop runs: as the compiler notes it, else read off its condition `index < constant`."""
    known = re.search(r'known_trip_count":\{"n":"(\d+)"', loop.attributes)
    if known:
        return int(known[1])
    compare = module.root(loop.attribute("condition"))
    if compare.opcode != "compare" or "direction=LT" not in compare.attributes:
        return 1
    index, limit = (module.instructions[name] for name in compare.operands)
    limit = _constant(module, limit)
    position = re.search(r"index=(\d+)", index.attributes)
    if limit is None or position is None:
        return 1
    initial = module.instructions[loop.operands[0]]
    first = 0
    if initial.opcode == "tuple":
        first = _constant(module, module.instructions[initial.operands[int(position[1])]]) or 0
    return max(limit - first, 0)


def _constant(module: _Module, instruction: _Instruction) -> int | None:
    """The value of an integer constant, seen through copies; None for anything else."""
    while instruction.opcode in ("copy", "copy-start", "copy-done", "bitcast"):
        instruction = module.instructions[instruction.operands[0]]
    is_integer = instruction.opcode == "constant" and re.fullmatch(r"-?\d+", instruction.arguments)
    return int(instruction.arguments) if is_integer else None


def _axes(groups: np.ndarray, axis_sizes: Mapping[str, int]) -> tuple[str, ...]:
    """The mesh axes along which the devices of a group differ."""
    coordinates = np.stack(np.unravel_index(groups, tuple(axis_sizes.values())))
    varies = (coordinates != coordinates[:, :, :1]).any(axis=(1, 2))
    return live_axes((axis for axis, v in zip(axis_sizes, varies, strict=True) if v), axis_sizes)


def _groups(instruction: _Instruction, devices: int) -> np.ndarray:
    """The groups of devices that work together, as rows. A permute's groups are its (source, target) pairs."""
    text = instruction.attributes
    if listed := re.search(r"(?:replica_groups|source_target_pairs)=\{(\{[\d,{} ]*\})?\}", text):
        rows = re.findall(r"\{([\d, ]+)\}", listed[1] or "")
        return np.array([_integers(row) for row in rows] or [list(range(devices))])
    if iota := re.search(r"replica_groups=\[([\d,]+)\]<=\[([\d,]+)\](?:T\(([\d,]+)\))?", text):
        shape, order, permutation = (_integers(g) if g else None for g in iota.groups())
        return np.arange(devices).reshape(order).transpose(permutation).reshape(shape)
    return _mesh_groups(text, devices)


def _mesh_groups(text: str, devices: int) -> np.ndarray:
    """Groups as axes of a mesh: `mesh['a'=4,'b'=2] {'a'}`.

    There may be an order of devices: `device_ids=([2,4]T(1,0))`. An axis may be used in part: `'a':(2)4` is the 4 that stand after a major part of 2.
    """
    pattern = r"mesh\[([^\]]*)\](?:, ?device_ids=\((?:\[([\d,]+)\]T\(([\d,]+)\)|([\d,]+))\))? ?\{([^}]*)\}"
    mesh, order, permutation, listed, chosen = re.search(pattern, text).groups()
    ids = np.arange(devices)
    if order:
        ids = ids.reshape(_integers(order)).transpose(_integers(permutation))
    elif listed:
        ids = np.array(_integers(listed))
    parts = re.findall(r"'([^']+)'(?::\((\d+)\)(\d+))?", chosen)
    shape, picked = [], []  # the mesh, its axes cut where a part begins or ends
    for axis, size in re.findall(r"'([^']+)'=(\d+)", mesh):
        own = [(int(before or 1), int(length or size)) for name, before, length in parts if name == axis]
        spans = [(before, before * length) for before, length in own]
        cuts = sorted({1, int(size), *(cut for span in spans for cut in span)})
        for low, high in zip(cuts, cuts[1:], strict=False):
            picked += [len(shape)] if any(start <= low < stop for start, stop in spans) else []
            shape.append(high // low)
    rest = [d for d in range(len(shape)) if d not in picked]
    return ids.reshape(shape).transpose(rest + picked).reshape(-1, math.prod(shape[d] for d in picked))


def _integers(text: str) -> list[int]:
    return [int(n) for n in text.split(",")]
