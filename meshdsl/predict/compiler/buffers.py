"""The largest arrays that a compiled TPU program holds at once, read off its text.

The compiler says how much memory a program needs, but not for what. Its text is in the order in
which it runs, so what lives at each moment can be read off it: an array lives from where it is made
to where it is read for the last time. What is updated in place, and what a loop carries, is one
array. The compiler knows more (it overlaps and splits allocations), so this names what is large and
does not add up to its figure exactly.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial

from meshdsl.predict.compiler.hlo_text import Array, Instruction, Module
from meshdsl.predict.memory.peak import fullest
from meshdsl.program.recorder import tag_in

# Instructions whose result is in the memory of their operands.
_SAME_MEMORY = (
    "bitcast",
    "opt-barrier",
    "get-tuple-element",
    "tuple",
    "while",
    "add-dependency",
    "optimization-barrier",
)
_TYPE = re.compile(r"\w+\[[\d,<=]*\](?:\{[^{}]*\})?")
_ALIAS = re.compile(r"\{(\d+)\}: \(\d+, \{[\d,]*\}, (?:may|must)-alias\)")
_TILED = re.compile(r"\{([\d,]+):T\((\d+(?:,\d+)*)\)")


@dataclass(frozen=True, eq=False)
class Buffer:
    """An array in HBM.

    Attributes:
      array: its type.
      bytes: with the padding of its tiles.
      scopes: the name stacks of the instructions that make it and that update it.
    """

    array: Array
    bytes: int
    scopes: list[str]

    @property
    def scope_end(self) -> str:
        """The end of its name stack, such as `adamw/mul`: a name for what no recorded op makes."""
        return "/".join(next((scope for scope in self.scopes if scope), "").split("/")[-2:])

    @property
    def tag(self) -> str:
        """The tag of the recorded op that makes or fills it; empty where none is named."""
        return next((tag for scope in self.scopes if (tag := tag_in(scope))), "")


# The arrays of a value, in the order of its tuple: None for one whose memory is not counted,
# because it is not in HBM or is an argument of the program.
_Value = Sequence[Buffer | None]


@dataclass
class _Moment:
    """What lives at one moment, and its bytes."""

    bytes: int = 0
    buffers: tuple[Buffer, ...] = ()


def largest_buffers(module: Module, text: str, count: int) -> list[Buffer]:
    """The `count` largest arrays at the moment of most memory, the largest first.

    Arguments of the program are left out, and so are results that take the memory of arguments.

    Args:
      text: that of the module. Its first line says which results those are.
    """
    if module.entry not in module.computations:
        return []
    header = text[: text.find("\n")]
    aliased = {int(n) for n in _ALIAS.findall(header)}
    moment, _ = _Walk(module, aliased).computation(module.entry, [])
    return sorted(moment.buffers, key=lambda buffer: buffer.bytes, reverse=True)[:count]


class _Walk:
    """A walk through a program that finds its moment of most memory.

    Args:
      aliased: the positions of the program's results that take the memory of arguments.
    """

    def __init__(self, module: Module, aliased: set[int]):
        self.module, self.aliased = module, aliased

    def computation(self, name: str, given: _Value) -> tuple[_Moment, _Value]:
        """The moment of most memory while a computation runs, and the arrays of its result.

        Args:
          given: the arrays of its parameter; they are not counted.
        """
        instructions = self.module.computations[name]
        done = {i.operands[0]: i for i in instructions if i.opcode.endswith("-done") and i.operands}
        result: _Value = []
        values: dict[str, _Value] = {}
        inner: dict[str, _Moment] = {}  # the moments of most memory inside of loops
        made: list[list[Buffer]] = []  # for each instruction the arrays that come to life
        last: dict[Buffer, int] = {}  # the position of the instruction that uses it last
        for at, i in enumerate(instructions):
            used = [buffer for one in i.operands for buffer in _counted(values.get(one, ()))]
            read = partial(self._value, i, given, values, done.get(i.name), inner)
            values[i.name] = self.module.read(i, read, [])
            value = _counted(values[i.name])
            made.append([b for b in value if b not in last and b not in given])
            for buffer in [*used, *value]:
                last[buffer] = at
            if i.root:
                result = values[i.name]
                for buffer in value:
                    last[buffer] = len(instructions)
        if name == self.module.entry:
            free = {buffer for n, buffer in enumerate(result) if n in self.aliased}
            made = [[buffer for buffer in one if buffer not in free] for one in made]
        within = [inner.get(i.name, _Moment()) for i in instructions]
        lives = [(buffer, at, last[buffer]) for at, new in enumerate(made) for buffer in new]
        sizes = [(buffer.bytes, begin, end) for buffer, begin, end in lives]
        most, at = fullest(sizes, [moment.bytes for moment in within]) if within else (0, 0)
        live = (buffer for buffer, begin, end in lives if begin <= at <= end)
        return (_Moment(most, (*live, *within[at].buffers)) if most else _Moment()), result

    def _value(
        self,
        i: Instruction,
        given: _Value,
        values: dict[str, _Value],
        done: Instruction | None,
        inner: dict[str, _Moment],
    ) -> _Value:
        """The arrays of what `i` gives; of a loop its moment of most memory is put into `inner`.

        Args:
          done: where `i` starts something, the instruction that waits for its end.
        """
        if i.opcode == "parameter":
            return given if given else [None] * len(i.results)
        if i.opcode != "while":
            return self._result(i, values, done)
        carried = [buffer for one in i.operands for buffer in values[one]]
        inner[i.name], _ = self.computation(self.module.named(i, "body"), carried)
        return carried

    def _result(
        self, i: Instruction, values: dict[str, _Value], done: Instruction | None
    ) -> _Value:
        """The arrays of what anything but a parameter and a loop gives."""
        flat = [buffer for one in i.operands for buffer in values.get(one, [])]
        if i.opcode == "get-tuple-element":
            return flat[i.index : i.index + 1] if len(flat) > i.index else _new(i)
        if i.opcode in _SAME_MEMORY:
            return flat
        if done is not None:  # the memory of the result is taken when it is started
            return _new(done) + flat
        if i.opcode.endswith(("-done", "-update")):
            return flat[: len(i.results)] if i.opcode.endswith("-done") else flat
        if i.opcode in ("constant", "after-all"):
            return []
        new = _new(i)
        for n, in_place in enumerate(self._updated(i)):
            made = new[n] if in_place and n < len(new) else None
            if made is not None and (updated := _like(made, flat)) is not None:
                updated.scopes.append(i.scope)
                new[n] = updated
        return new

    def _updated(self, i: Instruction) -> Iterable[bool]:
        """For each result of `i` whether it is an operand that is updated in place."""
        if i.opcode == "dynamic-update-slice":
            return (True,)
        if i.opcode != "fusion":
            return ()
        root = self.module.root(self.module.named(i, "calls"))
        parts = self.module.operands(root) if root.opcode == "tuple" else [root]
        return tuple(self._is_update(part) for part in parts)

    def _is_update(self, i: Instruction) -> bool:
        origin = self.module.origin(i, ("bitcast", "convert", "copy"))
        return origin.opcode == "dynamic-update-slice"


def _counted(value: _Value) -> list[Buffer]:
    return [buffer for buffer in value if buffer is not None]


def _new(i: Instruction) -> list[Buffer | None]:
    """Arrays for the results of `i`; None for those that are not in HBM."""
    texts = _TYPE.findall(i.type)
    return [
        Buffer(array, _padded(array, text), [i.scope]) if not array.memory else None
        for array, text in zip(i.results, texts, strict=False)
    ]


def _like(made: Buffer, operands: Iterable[Buffer | None]) -> Buffer | None:
    """The first of the `operands` with the shape and the dtype of `made`."""
    wanted = made.array.shape, made.array.dtype
    for buffer in operands:
        if buffer is not None and (buffer.array.shape, buffer.array.dtype) == wanted:
            return buffer
    return None


def _padded(array: Array, text: str) -> int:
    """The bytes of an array in whole tiles; a tile covers the minor dims of its memory layout."""
    tiled = _TILED.search(text)
    if tiled is None:
        return array.bytes
    minor = [array.shape[int(d)] for d in tiled[1].split(",")]
    tile = [int(n) for n in tiled[2].split(",")]
    for position, n in enumerate(reversed(tile)):
        if position < len(minor):
            minor[position] = -(-minor[position] // n) * n
    return math.ceil(math.prod(minor) * array.bits / 8)
