"""The collectives in a compiled program.

A jaxpr says what was asked for; this module reads what the compiler made of it, from
`compiled.as_text()`. Instructions are visited from the entry computation through fusions, calls,
branches and loops, with the trip counts multiplied; an asynchronous collective counts where it
starts, and one with several operands is one per operand.

For code inside `shard_map` the two lists are equal, but for what compilers do of themselves. Seen
with jax 0.10 and 0.12:

- Two identical collectives become one, and one that is the same in every turn of a loop moves out
  of it. `jax.checkpoint` keeps its second run apart from the first inside a scan; outside of one
  the CPU compiler of jax 0.10 merges them.
- Several all-reduces are merged into one with several operands; counting per operand makes that
  invisible.
- CPU runs every collective of bfloat16 in float32: twice the bytes that the jaxpr states.
- On TPU a reduce-scatter may be an all-reduce fused with a slice, counted as the `psum_scatter`
  that it is. If its dim isn't a multiple of the tile it is padded, and small collective-permutes
  without a scope repair the seams.
- On TPU, gathers and scatters over one axis that spans the whole 3-D torus were all written as
  all-reduces of the full size (64 chips of a v5p): they are counted as the `psum` that runs. libtpu
  0.0.42 drops their scopes, and 0.0.50 those of the scatters only.
- On TPU, options can turn a product with a collective into a ring, which leaves collective-permutes
  of pieces. Pipelined gathers are peeled off the loop: counts stay, unless two peeled ones are
  identical.
- The partitioner (`jit` with shardings) writes an all-reduce and a slice where a reduce-scatter
  would do, on CPU; it is counted as the `psum` that runs.

A loop whose length isn't a constant counts as one turn, and every branch of a conditional is
listed. What is not understood of the text is left out, and counted in `Module.unread`.
"""

from __future__ import annotations

import itertools
import math
import re
import warnings
from collections.abc import Iterator, Mapping
from functools import partial

import numpy as np
from jax.sharding import Mesh

from meshdsl.predict.compiler.hlo_text import Instruction, Module, matched
from meshdsl.predict.compiler.unread import unread_sentence
from meshdsl.program.collective import Collective, live_axes

OPERATIONS = {
    "all-reduce": "psum",
    "all-gather": "all_gather",
    "reduce-scatter": "psum_scatter",
    "all-to-all": "all_to_all",
    "collective-permute": "ppermute",
}
_BETWEEN_DEVICES = re.compile(r"\b(?:replica_groups|source_target_pairs)=")
# The reducer of an all-reduce decides what it is; on booleans `or` is the maximum.
_REDUCERS = {"add": "psum", "maximum": "pmax", "minimum": "pmin", "or": "pmax", "and": "pmin"}
# The three ways in which groups of devices are written.
_LISTED = re.compile(r"(?:replica_groups|source_target_pairs)=\{(\{[\d,{} ]*\})?\}")
_COUNTED = re.compile(r"replica_groups=\[([\d,]+)\]<=\[([\d,]+)\](?:T\(([\d,]+)\))?")
_OF_MESH = re.compile(
    r"mesh\[([^\]]*)\](?:, ?device_ids=\((?:\[([\d,]+)\]T\(([\d,]+)\)|([\d,]+))\))? ?\{([^}]*)\}"
)


def from_hlo(compiled: str | Module, mesh: Mesh | Mapping[str, int]) -> list[Collective]:
    """The collectives of a compiled program, in the order of its schedule.

    A group of devices that covers only a part of an axis (the partitioner makes such) is counted
    under that axis, and is not `Collective.whole`.

    Args:
      compiled: `jitted.lower(...).compile().as_text()`; of a text, what is not understood is warned
        of, and of a `Module` it is counted in `Module.unread`.
      mesh: the mesh that it was compiled for, or its `{axis: size}`. Device n of the program is the
        n-th of the mesh.
    """
    axis_sizes = dict(mesh if isinstance(mesh, Mapping) else mesh.shape)
    module = compiled if isinstance(compiled, Module) else Module(compiled)
    found = list(_walk(module, module.entry, axis_sizes, 1))
    if module is not compiled and (sentence := unread_sentence(module.unread.kinds())):
        warnings.warn(sentence, stacklevel=2)
    return found


def _walk(
    module: Module, computation: str, axis_sizes: Mapping[str, int], count: int
) -> Iterator[Collective]:
    """The collectives of a computation that runs `count` times, and of those that it runs."""
    instructions = module.computations.get(computation, [])
    starts = any('custom_call_target="AsyncCollectiveStart"' in i.attributes for i in instructions)
    for i in instructions:
        if operation_of(i) is not None:
            # The TPU compiler spreads one collective over the fusions that compute meanwhile. Each
            # holds a copy of it, marked with the chain that it belongs to; the first starts it.
            if starts or "chain_id=" not in i.attributes:
                yield from collectives_of(module, computation, i, axis_sizes, count)
        else:
            for called, times in module.read(i, partial(_called, module, i), []):
                yield from _walk(module, called, axis_sizes, count * times)


def _called(module: Module, i: Instruction) -> list[tuple[str, int]]:
    """The computations that an instruction runs, each with how often.

    Raises:
      ValueError: it is a collective of a kind that is not known.
    """
    if is_unknown(i):
        raise ValueError(f"{i.opcode} is a collective that is not known")
    if i.opcode != "while":
        return [(name, 1) for name in module.called(i)]
    turns = module.trip_count(i)
    return [(module.named(i, key), 1 if turns is None else turns) for key in ("body", "condition")]


def operation_of(i: Instruction) -> str | None:
    """The collective that an instruction is or starts, by HLO's name; None where it is none."""
    opcode = i.opcode.removesuffix("-start")
    return opcode if opcode in OPERATIONS else None


def is_unknown(i: Instruction) -> bool:
    """Whether `i` is a collective that is not in `OPERATIONS`.

    It is one if it says which devices work together.
    """
    return operation_of(i) is None and bool(_BETWEEN_DEVICES.search(i.attributes))


def collectives_of(
    module: Module,
    computation: str,
    instruction: Instruction,
    axis_sizes: Mapping[str, int],
    count: int = 1,
) -> list[Collective]:
    """What one collective instruction of `computation` moves: a `Collective` for each operand.

    The list is empty where it moves nothing, and where it is not understood.
    """
    read = partial(_collectives, module, computation, instruction, axis_sizes, count)
    return module.read(instruction, read, [])


def _collectives(
    module: Module,
    computation: str,
    instruction: Instruction,
    axis_sizes: Mapping[str, int],
    count: int,
) -> list[Collective]:
    opcode = instruction.opcode.removesuffix("-start")
    groups = _groups(instruction, math.prod(axis_sizes.values()))
    axes = _axes(groups, axis_sizes)
    if not axes:
        return []
    operation = _operation(module, computation, instruction, opcode)
    operands = [array for one in module.operands(instruction) for array in one.results]
    if not operands:
        raise LookupError(f"%{instruction.name} has no operands")
    sizes = [(array.bytes, array.dtype) for array in operands]
    if operation == "all_to_all":  # of one array, or of a piece for each device of the group
        sizes = [(sum(size for size, _ in sizes), sizes[0][1])]
    gathered = len(groups[0]) if operation == "all_gather" else 1
    whole = opcode == "collective-permute" or _whole(groups, axes, axis_sizes, operation)
    return [
        Collective(operation, axes, count, size * gathered, dtype, instruction.scope, whole)
        for size, dtype in sizes
    ]


def _operation(module: Module, computation: str, instruction: Instruction, opcode: str) -> str:
    """JAX's name of a collective. An all-reduce is told by what it reduces with and who uses it."""
    if opcode != "all-reduce":
        return OPERATIONS[opcode]
    reducer = module.computations[module.named(instruction, "to_apply")]
    operation = next((_REDUCERS[i.opcode] for i in reducer if i.opcode in _REDUCERS), None)
    if operation is None:
        raise LookupError(f"%{instruction.name} reduces by something else")
    users = [i for i in module.computations[computation] if instruction.name in i.operands]
    sliced = bool(users) and all(i.opcode == "dynamic-slice" for i in users)
    fused = "all-reduce-scatter" in computation
    return "psum_scatter" if operation == "psum" and fused and sliced else operation


def _axes(groups: np.ndarray, axis_sizes: Mapping[str, int]) -> tuple[str, ...]:
    """The mesh axes along which the devices of a group differ."""
    coordinates = np.stack(np.unravel_index(groups, tuple(axis_sizes.values())))
    varies = (coordinates != coordinates[:, :, :1]).any(axis=(1, 2))
    return live_axes((axis for axis, v in zip(axis_sizes, varies, strict=True) if v), axis_sizes)


def _whole(
    groups: np.ndarray, axes: tuple[str, ...], axis_sizes: Mapping[str, int], operation: str
) -> bool:
    """Whether the groups are those of all devices along the axes.

    Where each device has a part of its own, the parts stand in the order of the axes too, of which
    any may be the major one.
    """
    names = list(axis_sizes)
    ids = np.arange(math.prod(axis_sizes.values())).reshape(tuple(axis_sizes.values()))
    rest = [i for i, name in enumerate(names) if name not in axes]
    count = math.prod(axis_sizes[axis] for axis in axes)
    if groups.shape != (ids.size // count, count):
        return False
    ordered = operation not in ("psum", "pmax", "pmin")

    def sorted_rows(rows: np.ndarray) -> np.ndarray:
        rows = rows if ordered else np.sort(rows)
        return rows[rows[:, 0].argsort()]

    orders = itertools.permutations(axes) if ordered else [axes]
    of = lambda order: ids.transpose(rest + [names.index(axis) for axis in order])
    found = sorted_rows(groups)
    return any((found == sorted_rows(of(order).reshape(-1, count))).all() for order in orders)


def _groups(instruction: Instruction, devices: int) -> np.ndarray:
    """The groups of devices that work together, as rows of an array.

    A permute's groups are its (source, target) pairs.
    """
    text = instruction.attributes
    if listed := _LISTED.search(text):
        rows = re.findall(r"\{([\d, ]+)\}", listed[1] or "")
        return np.array([_integers(row) for row in rows] or [list(range(devices))])
    if counted := _COUNTED.search(text):
        permutation = _integers(counted[3]) if counted[3] else None
        ids = np.arange(devices).reshape(_integers(counted[2])).transpose(permutation)
        return ids.reshape(_integers(counted[1]))
    return _mesh_groups(text, devices)


def _mesh_groups(text: str, devices: int) -> np.ndarray:
    """Groups that are written as axes of a mesh: `mesh['a'=4,'b'=2] {'a'}`.

    The ids of its devices may be given: `device_ids=([2,4]T(1,0))`. An axis may be used in part:
    `'a':(2)4` is the 4 devices that stand after a major part of 2.
    """
    mesh, shape_of_ids, permutation, listed, chosen = matched(_OF_MESH, text).groups()
    ids = np.arange(devices)
    if shape_of_ids:
        ids = ids.reshape(_integers(shape_of_ids)).transpose(_integers(permutation))
    elif listed:
        ids = np.array(_integers(listed))
    parts = re.findall(r"'([^']+)'(?::\((\d+)\)(\d+))?", chosen)
    shape, picked = [], []  # the mesh, its axes divided where a part begins or ends
    for axis, size in re.findall(r"'([^']+)'=(\d+)", mesh):
        spans = [
            (int(before or 1), int(before or 1) * int(length or size))
            for name, before, length in parts
            if name == axis
        ]
        bounds = sorted({1, int(size), *(bound for span in spans for bound in span)})
        for low, high in itertools.pairwise(bounds):
            picked += [len(shape)] if any(start <= low < stop for start, stop in spans) else []
            shape.append(high // low)
    rest = [n for n in range(len(shape)) if n not in picked]
    group = math.prod(shape[n] for n in picked)
    return ids.reshape(shape).transpose(rest + picked).reshape(-1, group)


def direction_of(
    instruction: Instruction, axes: tuple[str, ...], axis_sizes: Mapping[str, int]
) -> str:
    """The directions in which a collective uses the links of its axes: `+`, `-` or `+-` for both.

    Only a permute that shifts by one along a single axis uses them in one direction.
    """
    permute = instruction.opcode.startswith("collective-permute")
    if not permute or len(axes) != 1 or axis_sizes[axes[0]] == 2:
        return "+-"
    size = axis_sizes[axes[0]]
    pairs = _groups(instruction, math.prod(axis_sizes.values()))
    along = np.unravel_index(pairs, tuple(axis_sizes.values()))[list(axis_sizes).index(axes[0])]
    shifts = set(((along[:, 1] - along[:, 0]) % size).tolist())
    return {(1,): "+", (size - 1,): "-"}.get(tuple(shifts), "+-")


def _integers(text: str) -> list[int]:
    return [int(n) for n in text.split(",")]
