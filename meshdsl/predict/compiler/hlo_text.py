"""The text of a compiled program (`compiled.as_text()`), by computation.

The text is that of XLA's HLO: computations, each a list of instructions in the order in which they
run (`is_scheduled=true`). This module splits it into those, and reads types, names and trip counts;
what an instruction means is read by the modules above. What is not understood is counted in
`Module.unread` and left out.
"""

import math
import re
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import TypeVar

from meshdsl.predict.compiler.unread import STRANGE, Unread

T = TypeVar("T")

_NAME_OF_MODULE = re.compile(r"HloModule ([\w.\-]+)")
_HEADER = re.compile(r"(ENTRY )?%?([\w.\-]+) \(.*\{$")
# `[ROOT] %name = type opcode(`; the type of several results is a tuple in parentheses.
_INSTRUCTION = re.compile(r"\s+(ROOT )?%?([^\s=]+) = (\(.*?\)|\S+) ([\w\-]+)\(")
# What Pallas says of a kernel, in the middle of an instruction and on a line of its own.
_KERNEL_METADATA = re.compile(r"kernel_metadata=\{\n(.*)\n\}")
_OPERAND = re.compile(r"%([\w.\-]+)")
_ARRAY = re.compile(r"(\w+)\[([\d,<=]*)\](?:\{([^{}]*)\})?")
_BETWEEN_ARRAYS = re.compile(r"(?:[(), ]|/\*index=\d+\*/)*")
_ELEMENT = re.compile(r"(pred|bf|f|s|u|c)(\d*)(\w*)")
_PARENTHESIS = re.compile(r"[()]")
_OP_NAME = re.compile(r'op_name="([^"]*)"')
_INDEX = re.compile(r"index=(\d+)")
_CYCLES = re.compile(r'"estimated_cycles":"?(\d+)')
_TURNS = re.compile(r'known_trip_count"?[:=]\{"?n"?[:=]"?(\d+)')
_MOST_TURNS = 2**40
_LARGEST = 2**63  # bytes of an array
_CALLED = re.compile(
    r"\b(?:calls|to_apply|body|condition|true_computation|false_computation)=%?([\w.\-]+)"
    r"|\bbranch_computations=\{([^}]*)\}"
)
_NAME = re.compile(r"%?([\w.\-]+)")
_OPCODE = re.compile(r"[ %]([a-z][\w\-]*)\(")
_OVERFLOW = 2**62  # the compiler writes the largest integer where its cost model fails
_MEMORY = re.compile(r"S\((\d+)\)")
_DTYPES = {"pred": "bool", "bf": "bfloat", "f": "float", "s": "int", "u": "uint", "c": "complex"}


_NO_ARRAYS = ("token", "opaque")
ON_CHIP = 1  # the memory space of VMEM on a TPU; 0 is HBM


@dataclass(frozen=True)
class Array:
    """The type of an array, such as `bf16[8,128]{1,0:T(8,128)S(1)}`.

    Attributes:
      dtype: of its elements, by numpy's name.
      bits: of one element.
      memory: the memory space that it lies in; 0 is HBM, see also `ON_CHIP`.
    """

    dtype: str
    shape: tuple[int, ...]
    bits: int
    memory: int = 0

    @property
    def elements(self) -> int:
        """How many elements it has."""
        return math.prod(self.shape)

    @property
    def bytes(self) -> int:
        """Its bytes, without padding."""
        return math.ceil(self.elements * self.bits / 8)


def arrays(type_text: str) -> list[Array]:
    """The arrays of the type in `type_text`; of a tuple all, in its order. Tokens are left out.

    Raises:
      ValueError: the text has something else in it.
    """
    if not _BETWEEN_ARRAYS.fullmatch(_ARRAY.sub("", type_text)):
        raise ValueError(f"{type_text!r} is no type")
    return [_array(*parts) for parts in _ARRAY.findall(type_text) if parts[0] not in _NO_ARRAYS]


def _array(element: str, dims: str, layout: str) -> Array:
    known = _ELEMENT.fullmatch(element)
    if known is None:
        raise ValueError(f"{element!r} is no type of elements")
    letters, bits, variant = known.groups()
    dtype = _DTYPES[letters] + bits + (f"_{variant}" if variant else "")
    shape = tuple(int(d.removeprefix("<=")) for d in dims.split(",") if d)
    memory = _MEMORY.search(layout)
    found = Array(dtype, shape, int(bits or 8), int(memory[1]) if memory else 0)
    if found.elements * found.bits > 8 * _LARGEST:
        raise ValueError(f"{element}[{dims}] is larger than any memory")
    return found


@dataclass(slots=True, eq=False, repr=False)
class Instruction:
    """One line of a computation.

    Attributes:
      name: its name without `%`, which no other instruction of the program has.
      opcode: `fusion`, `all-gather-start`, `while`, ...
      type: the text of its result's type.
      arguments: the text in the parentheses: the operands, or the value of a constant.
      attributes: the text after the parentheses.
      root: whether it is the result of its computation.
      computation: the name of the computation that it stands in.
      operands: the names of the instructions whose results it takes.
    """

    name: str
    opcode: str
    type: str
    arguments: str
    attributes: str
    root: bool
    computation: str
    operands: tuple[str, ...] = field(init=False)

    def __post_init__(self):
        self.operands = tuple(_OPERAND.findall(self.arguments))

    def attribute(self, key: str) -> str | None:
        """The name that `key=%name` in its attributes gives; None without such a key."""
        found = re.search(rf"(?:^|[ ,]){key}=%?([\w.\-]+)", self.attributes)
        return found and found[1]

    @property
    def scope(self) -> str:
        """The JAX name stack that it was traced in; empty where the compiler lost it."""
        found = _OP_NAME.search(self.attributes)
        return found[1] if found else ""

    @property
    def cycles(self) -> int | None:
        """How many cycles the TPU compiler estimates for it; None where it says nothing."""
        if "estimated_cycles" not in self.attributes:
            return None
        cycles = int(matched(_CYCLES, self.attributes)[1])
        return cycles if cycles < _OVERFLOW else None

    @property
    def index(self) -> int:
        """Which part of a tuple a `get-tuple-element` gives."""
        return int(matched(_INDEX, self.attributes)[1])

    @property
    def results(self) -> list[Array]:
        """The arrays that it gives; several where its type is a tuple."""
        return arrays(self.type)

    @property
    def bytes(self) -> int:
        """The bytes of all its results together."""
        return sum(array.bytes for array in self.results)

    def __repr__(self):
        return f"%{self.name} = {self.type} {self.opcode}({self.arguments})"


class Module:
    """A program: its computations and their instructions.

    Attributes:
      computations: for the name of each computation its instructions, in the order they run in.
      instructions: those of all computations, by name.
      name: of the program, such as `jit_step`; empty where the text does not say it.
      entry: the name of the computation that the program begins in; empty where none is found.
      unread: what of the text is not understood, as far as it has been read.
    """

    def __init__(self, text: str):
        self.computations: dict[str, list[Instruction]] = {}
        self.instructions: dict[str, Instruction] = {}
        named = _NAME_OF_MODULE.match(text)
        self.name = named[1] if named else ""
        self.entry = ""
        self.unread = Unread()
        self._named: dict[str, dict[str, Instruction]] = {}
        current = ""
        text = _KERNEL_METADATA.sub(r"kernel_metadata={\1}", text)
        for number, line in enumerate(text.splitlines()):
            if line[:1] != " ":
                header = _HEADER.match(line)
                current = header[2] if header else ""
                if header:
                    self.computations[current], self._named[current] = [], {}
                    self.entry = current if header[1] else self.entry
                elif line.endswith("{"):
                    self.unread.add("computation", line, f"line {number}")
            elif current and (instruction := _parse(line, current)) is not None:
                self.computations[current].append(instruction)
                self._named[current][instruction.name] = instruction
                self.instructions[instruction.name] = instruction
            else:
                opcode = _OPCODE.search(line)
                self.unread.add(opcode[1] if opcode else "line", line, f"line {number}")
        if not self.entry:
            self.unread.add("entry", text[: text.find("\n")] or "no text", "entry")
        self._drop_recursion()

    def _drop_recursion(self) -> None:
        """Drop instructions that call what they are part of: no compiler writes such, and reading
        them would never end."""
        done: set[str] = set()

        def visit(name: str, path: tuple[str, ...]) -> None:
            kept = []
            for i in self.computations[name]:
                called = [one for one in _called(i) if one in self.computations]
                if any(one in path for one in called):
                    self.unread.add(i.opcode, repr(i), i.name)
                    continue
                kept.append(i)
                for one in called:
                    if one not in done:
                        visit(one, (*path, one))
            self.computations[name] = kept
            done.add(name)

        for name in list(self.computations):
            if name not in done:
                visit(name, (name,))

    def read(self, instruction: Instruction, how: Callable[[], T], otherwise: T) -> T:
        """What `how` reads off `instruction`; `otherwise` where that fails, and it is counted."""
        try:
            return how()
        except STRANGE:
            self.unread.add(instruction.opcode, repr(instruction), instruction.name)
            return otherwise

    def root(self, computation: str) -> Instruction:
        """The instruction that is the result of `computation`."""
        roots = [i for i in self.computations[computation] if i.root]
        if len(roots) != 1:
            raise LookupError(f"{computation} has {len(roots)} results")
        return roots[0]

    def named(self, instruction: Instruction, key: str) -> str:
        """The computation that `key=%name` of `instruction` names."""
        name = instruction.attribute(key)
        if name is None or name not in self.computations:
            raise LookupError(f"%{instruction.name} names no computation as its {key}")
        return name

    def operands(self, instruction: Instruction) -> list[Instruction]:
        """The instructions whose results `instruction` takes."""
        beside = self._named[instruction.computation]
        return [beside[name] for name in instruction.operands]

    def origin(self, instruction: Instruction, through: Collection[str]) -> Instruction:
        """What its value comes from: back through first operands while opcodes are in `through`."""
        seen: set[str] = set()
        while instruction.opcode in through and instruction.name not in seen:
            seen.add(instruction.name)
            instruction = self.operands(instruction)[0]
        return instruction

    def called(self, instruction: Instruction) -> list[str]:
        """The computations that an instruction runs once.

        The body of a loop is none of them, nor are the scalar functions of a reduction or a sort.
        """
        opcode = instruction.opcode.removesuffix("-start")
        keys = ["calls", "true_computation", "false_computation"] + (
            ["to_apply"] if opcode in ("call", "async") else []
        )
        found = [self.named(instruction, key) for key in keys if instruction.attribute(key)]
        branches = re.search(r"branch_computations=\{([^}]*)\}", instruction.attributes)
        several = _NAME.findall(branches[1]) if branches else []
        if not self.computations.keys() >= set(several):
            raise LookupError(f"%{instruction.name} has branches that are no computations")
        return found + several

    def trip_count(self, loop: Instruction) -> int | None:
        """How often the body of a `while` runs; None where that cannot be told.

        Most compilers note it. Without a note it is read off the condition `index < constant`, the
        first value of the index and by how much a turn raises it.
        """
        if "known_trip_count" in loop.attributes:
            return _bounded(int(matched(_TURNS, loop.attributes)[1]))
        compare = self.root(self.named(loop, "condition"))
        if compare.opcode != "compare" or "direction=LT" not in compare.attributes:
            return None
        index, limit = self.operands(compare)
        limit = self.constant(limit)
        if limit is None or _INDEX.search(index.attributes) is None:
            return None
        carried = index.index
        initial = self.operands(loop)[0]
        first = 0
        if initial.opcode == "tuple":
            first = self.constant(self.operands(initial)[carried]) or 0
        return _bounded(max(math.ceil((limit - first) / self._increment(loop, carried)), 0))

    def _increment(self, loop: Instruction, carried: int) -> int:
        """By how much a turn raises the index that `loop` carries at position `carried`.

        A loop that the compiler unrolled raises it by 2 or more. 1 where it cannot be read.
        """
        result = self.root(self.named(loop, "body"))
        following = self.operands(result)[carried] if result.opcode == "tuple" else None
        if following is None or following.opcode != "add":
            return 1
        added = [self.constant(one) for one in self.operands(following)]
        return next((value for value in added if value), 1)

    def constant(self, instruction: Instruction) -> int | None:
        """The value of an integer constant, seen through copies; None for anything else."""
        origin = self.origin(instruction, ("copy", "copy-start", "copy-done", "bitcast"))
        is_integer = origin.opcode == "constant" and re.fullmatch(r"-?\d+", origin.arguments)
        return int(origin.arguments) if is_integer else None


def _called(instruction: Instruction) -> list[str]:
    """Every computation that an instruction names, for whatever reason."""
    found = _CALLED.findall(instruction.attributes)
    return [name for one, several in found for name in ([one] if one else _NAME.findall(several))]


def matched(pattern: re.Pattern[str], text: str) -> re.Match[str]:
    """Where `pattern` stands in `text`.

    Raises:
      ValueError: it does not.
    """
    found = pattern.search(text)
    if found is None:
        raise ValueError(f"no {pattern.pattern!r}")
    return found


def _bounded(turns: int) -> int:
    """`turns`; an error where no loop can have so many."""
    if turns > _MOST_TURNS:
        raise ValueError(f"{turns} turns of a loop")
    return turns


def _parse(line: str, computation: str) -> Instruction | None:
    """The instruction in a line of a computation; None where the line has another form."""
    start = _INSTRUCTION.match(line)
    if start is None:
        return None
    opening = start.end() - 1
    closing = line.find(")", opening) + 1
    if not closing or line.find("(", opening + 1, closing) >= 0:
        closing = _closing(line, opening)  # types of operands stand there, with parentheses
    arguments, attributes = line[opening + 1 : closing - 1], line[closing:]
    root = start[1] is not None
    return Instruction(start[2], start[4], start[3], arguments, attributes, root, computation)


def _closing(text: str, start: int) -> int:
    """The position after the parenthesis that closes the one at `start`."""
    depth = 0
    for match in _PARENTHESIS.finditer(text, start):
        depth += 1 if match[0] == "(" else -1
        if depth == 0:
            return match.end()
    return len(text)
