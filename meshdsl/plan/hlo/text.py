"""The text of a compiled program (`compiled.as_text()`), by computation.

The text is that of HLO: computations, each a list of instructions in the order in which they run (`is_scheduled=true`).
"""

import math
import re
from dataclasses import dataclass

_HEADER = re.compile(r"(ENTRY )?%?([\w.\-]+) \(.*\{$")
# `[ROOT] %name = type opcode(`; the type of several results is a tuple in parentheses.
_INSTRUCTION = re.compile(r"\s+(ROOT )?%?([^\s=]+) = (\(.*?\)|\S+) ([\w\-]+)\(")
_OPERAND = re.compile(r"%([\w.\-]+)")
_ARRAY = re.compile(r"(\w+)\[([\d,]*)\](?:\{([^{}]*)\})?")
_PARENTHESIS = re.compile(r"[()]")
_OP_NAME = re.compile(r'op_name="([^"]*)"')
_CYCLES = re.compile(r'"estimated_cycles":"(\d+)"')
_OVERFLOW = 2**62  # the compiler writes the largest integer where its cost model fails
_MEMORY = re.compile(r"S\((\d+)\)")
_DTYPES = {"pred": "bool", "bf16": "bfloat16", "f": "float", "s": "int", "u": "uint", "c": "complex"}


ON_CHIP = 1  # the memory space of VMEM on a TPU; 0 is HBM


@dataclass(frozen=True)
class Array:
    """An array type such as `bf16[8,128]{1,0:T(8,128)S(1)}`.

    Attributes:
      dtype: numpy's name.
      bits: of one element.
      memory: the space that it lies in; 0 is HBM, see also `ON_CHIP`.
    """

    dtype: str
    shape: tuple[int, ...]
    bits: int
    memory: int = 0

    @property
    def elements(self) -> int:
        return math.prod(self.shape)

    @property
    def bytes(self) -> int:
        return math.ceil(self.elements * self.bits / 8)


def arrays(type_text: str) -> list[Array]:
    """The arrays of a type, those of a tuple in its order. A token is none."""
    found = []
    for kind, dims, layout in _ARRAY.findall(type_text):
        letters, bits = re.match(r"([a-z]+)(\d*)", kind).groups()
        if letters == "token":
            continue
        dtype = f"float8_{kind[2:]}" if letters == "f" and bits == "8" else _DTYPES.get(kind) or _DTYPES.get(letters, letters) + kind[len(letters) :]
        memory = _MEMORY.search(layout)
        shape = tuple(int(d) for d in dims.split(",") if d)
        found.append(Array(dtype, shape, int(bits or 8), int(memory[1]) if memory else 0))
    return found


class Instruction:
    """One line of a computation.

    Attributes:
      name: unique in the program, without `%`.
      opcode: `fusion`, `all-gather-start`, `while`, ...
      type: the text of its result's type.
      operands: names of instructions.
      arguments: what stands in the parentheses: the operands, or a constant's value.
      attributes: the text after them.
      root: the result of its computation.
    """

    __slots__ = ("arguments", "attributes", "name", "opcode", "operands", "root", "type")

    def __init__(self, name: str, opcode: str, type: str, arguments: str, attributes: str, root: bool = False):
        self.name, self.opcode, self.type = name, opcode, type
        self.operands = tuple(_OPERAND.findall(arguments))
        self.arguments, self.attributes, self.root = arguments, attributes, root

    def attribute(self, key: str) -> str | None:
        """The name that `key=%name` gives."""
        found = re.search(rf"(?:^|[ ,]){key}=%?([\w.\-]+)", self.attributes)
        return found and found[1]

    @property
    def scope(self) -> str:
        """The JAX name stack that it was traced in."""
        found = _OP_NAME.search(self.attributes)
        return found[1] if found else ""

    @property
    def cycles(self) -> int | None:
        """What the TPU compiler thinks that it takes, in cycles of its clock; None where it says nothing."""
        found = _CYCLES.search(self.attributes)
        return int(found[1]) if found and int(found[1]) < _OVERFLOW else None

    @property
    def results(self) -> list[Array]:
        return arrays(self.type)

    @property
    def bytes(self) -> int:
        """Of its result, or of all of them."""
        return sum(array.bytes for array in self.results)

    def __repr__(self):
        return f"%{self.name} = {self.type} {self.opcode}({self.arguments})"


class Module:
    """The computations of a program.

    Attributes:
      computations: name -> its instructions, in order.
      instructions: of all computations, by name.
      entry: the name of the computation that the program begins in.
    """

    def __init__(self, text: str):
        self.computations: dict[str, list[Instruction]] = {}
        self.instructions: dict[str, Instruction] = {}
        self.entry = ""
        current: list[Instruction] = []
        for line in text.splitlines():
            if not line:
                continue
            if line[0] != " ":
                if header := _HEADER.match(line):
                    current = self.computations[header[2]] = []
                    self.entry = header[2] if header[1] else self.entry
            elif (instruction := _parse(line)) is not None:
                current.append(instruction)
                self.instructions[instruction.name] = instruction

    def root(self, computation: str) -> Instruction:
        return next(i for i in self.computations[computation] if i.root)

    def called(self, instruction: Instruction) -> list[str]:
        """The computations that an instruction runs once; not the body of a loop, nor the scalar functions of a reduction or a sort."""
        opcode = instruction.opcode.removesuffix("-start")
        keys = ["calls", "true_computation", "false_computation"] + (["to_apply"] if opcode in ("call", "async") else [])
        found = [name for key in keys if (name := instruction.attribute(key))]
        branches = re.search(r"branch_computations=\{([^}]*)\}", instruction.attributes)
        return found + (re.findall(r"%?([\w.\-]+)", branches[1]) if branches else [])

    def trip_count(self, loop: Instruction) -> int:
        """How often a `while` runs: as the compiler notes it, else read off its condition `index < constant` and the index's step; else 1."""
        known = re.search(r'known_trip_count":\{"n":"(\d+)"', loop.attributes)
        if known:
            return int(known[1])
        compare = self.root(loop.attribute("condition"))
        if compare.opcode != "compare" or "direction=LT" not in compare.attributes:
            return 1
        index, limit = (self.instructions[name] for name in compare.operands)
        limit = self.constant(limit)
        position = re.search(r"index=(\d+)", index.attributes)
        if limit is None or position is None:
            return 1
        carried = int(position[1])
        initial = self.instructions[loop.operands[0]]
        first = 0
        if initial.opcode == "tuple":
            first = self.constant(self.instructions[initial.operands[carried]]) or 0
        return max(math.ceil((limit - first) / self._step(loop, carried)), 0)

    def _step(self, loop: Instruction, carried: int) -> int:
        """By how much a turn raises the loop's index, which it carries at that position: an unrolled loop raises it by 2. 1 where it cannot be read."""
        result = self.root(loop.attribute("body"))
        following = self.instructions.get(result.operands[carried]) if result.opcode == "tuple" else None
        if following is None or following.opcode != "add":
            return 1
        steps = [self.constant(self.instructions[name]) for name in following.operands]
        return next((step for step in steps if step), 1)

    def constant(self, instruction: Instruction) -> int | None:
        """The value of an integer constant, seen through copies; None for anything else."""
        while instruction.opcode in ("copy", "copy-start", "copy-done", "bitcast"):
            instruction = self.instructions[instruction.operands[0]]
        is_integer = instruction.opcode == "constant" and re.fullmatch(r"-?\d+", instruction.arguments)
        return int(instruction.arguments) if is_integer else None


def _parse(line: str) -> Instruction | None:
    start = _INSTRUCTION.match(line)
    if start is None:
        return None
    opening = start.end() - 1
    closing = line.find(")", opening) + 1
    if line.find("(", opening + 1, closing) >= 0 or not closing:  # types of operands, which may hold parentheses
        closing = _closing(line, opening)
    return Instruction(start[2], start[4], start[3], line[opening + 1 : closing - 1], line[closing:], start[1] is not None)


def _closing(text: str, start: int) -> int:
    """The position after the parenthesis that closes the one at `start`."""
    depth = 0
    for match in _PARENTHESIS.finditer(text, start):
        depth += 1 if match[0] == "(" else -1
        if depth == 0:
            return match.end()
    return len(text)
