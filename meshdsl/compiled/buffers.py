"""The largest arrays that a compiled TPU program holds at once, from its text.

The compiler says how much memory a program needs, but not for what. Its text is in the order in which it runs, so what lives at each moment can
be read off it: from where it is made to where it is read for the last time. What is updated in place, and what a loop carries, is one array.
The compiler knows more (it overlaps and splits allocations), so this names what is large and doesn't add up to its figure exactly.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial

from meshdsl.compiled.hlo_text import Array, Instruction, Module
from meshdsl.record.recorder import tag_in

_SAME = (
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
class Held:
    """An array in HBM: its bytes with padding, and the scopes of the instructions that make it and update it."""

    array: Array
    bytes: int
    scopes: list[str]

    @property
    def tail(self) -> str:
        """Of its name stack, for what no recorded op makes: `adamw/mul`."""
        return "/".join(next((scope for scope in self.scopes if scope), "").split("/")[-2:])

    @property
    def tag(self) -> str:
        """Of the recorded op that makes it or fills it; empty where the compiler names none."""
        return next((tag for scope in self.scopes if (tag := tag_in(scope))), "")


@dataclass
class _Moment:
    bytes: int = 0
    held: tuple[Held, ...] = ()


def largest(module: Module, text: str, count: int) -> list[Held]:
    """The `count` largest arrays at the moment of most memory, largest first; without arguments and results that take the memory of arguments.

    Args:
      text: of the module: its first line says which results these are.
    """
    if module.entry not in module.computations:
        return []
    header = text[: text.find("\n")]
    moment, _ = _Walk(module, {int(n) for n in _ALIAS.findall(header)}).run(module.entry, [])
    return sorted(moment.held, key=lambda held: held.bytes, reverse=True)[:count]


class _Walk:
    """`free`: positions of the program's results that cost nothing."""

    def __init__(self, module: Module, free: set[int]):
        self.module, self.free = module, free

    def run(self, computation: str, given: list[Held | None]) -> tuple[_Moment, list[Held | None]]:
        """The moment of most memory beyond `given`, the arrays of the parameter; and the arrays of the result."""
        instructions = self.module.computations[computation]
        done = {i.operands[0]: i for i in instructions if i.opcode.endswith("-done") and i.operands}
        result: list[Held | None] = []
        arrays: dict[str, list[Held | None]] = {}
        inner: dict[str, _Moment] = {}
        made: list[list[Held]] = []
        last: dict[Held, int] = {}
        for at, i in enumerate(instructions):
            read = [
                held for name in i.operands for held in arrays.get(name, ()) if held is not None
            ]
            make = partial(self._made, i, given, arrays, done.get(i.name), inner)
            arrays[i.name] = self.module.read(i, make, [])
            own = [held for held in arrays[i.name] if held is not None]
            made.append([held for held in own if held not in last and held not in given])
            for held in [*read, *own]:
                last[held] = at
            if i.root:
                result = arrays[i.name]
                for held in own:
                    last[held] = len(instructions)
        if computation == self.module.entry:
            free = {held for n, held in enumerate(result) if n in self.free and held is not None}
            made = [[held for held in new if held not in free] for new in made]
        best, live, size = _Moment(), {}, 0
        for at, i in enumerate(instructions):
            for held in made[at]:
                live[held] = None
                size += held.bytes
            within = inner.get(i.name, _Moment())
            if size + within.bytes > best.bytes:
                best = _Moment(size + within.bytes, (*live, *within.held))
            for held in [held for held in live if last[held] <= at]:
                del live[held]
                size -= held.bytes
        return best, result

    def _made(
        self,
        i: Instruction,
        given: list[Held | None],
        arrays: dict[str, list[Held | None]],
        done: Instruction | None,
        inner: dict[str, _Moment],
    ) -> list[Held | None]:
        """The arrays of what `i` gives; of a loop also the moment of most memory in it."""
        if i.opcode == "parameter":
            return given if given else [None] * len(i.results)
        if i.opcode != "while":
            return self._results(i, arrays, done)
        carried = [held for name in i.operands for held in arrays[name]]
        inner[i.name], _ = self.run(self.module.named(i, "body"), carried)
        return carried

    def _results(
        self, i: Instruction, arrays: dict[str, list[Held | None]], done: Instruction | None
    ) -> list[Held | None]:
        operands = [arrays.get(name, []) for name in i.operands]
        flat = [held for one in operands for held in one]
        if i.opcode == "get-tuple-element":
            index = int(re.search(r"index=(\d+)", i.attributes)[1])
            return flat[index : index + 1] if len(flat) > index else _new(i)
        if i.opcode in _SAME:
            return flat
        if done is not None:  # what it starts is there when it is done
            return _new(done) + flat
        if i.opcode.endswith(("-done", "-update")):
            return flat[: len(i.results)] if i.opcode.endswith("-done") else flat
        if i.opcode in ("constant", "after-all"):
            return []
        new = _new(i)
        for n, updated in enumerate(self._updated(i)):
            if updated and n < len(new) and new[n] is not None:
                kept = next(
                    (
                        held
                        for held in flat
                        if held is not None and _alike(held.array, new[n].array)
                    ),
                    None,
                )
                if kept is not None:
                    kept.scopes.append(i.scope)
                    new[n] = kept
        return new

    def _updated(self, i: Instruction) -> Iterable[bool]:
        """For each result whether it is an operand, updated in place."""
        if i.opcode == "dynamic-update-slice":
            return (True,)
        if i.opcode != "fusion":
            return ()
        root = self.module.root(self.module.named(i, "calls"))
        parts = self.module.operands(root) if root.opcode == "tuple" else [root]
        return tuple(self._update(part) for part in parts)

    def _update(self, i: Instruction) -> bool:
        origin = self.module.origin(i, ("bitcast", "convert", "copy"))
        return origin.opcode == "dynamic-update-slice"


def _new(i: Instruction) -> list[Held | None]:
    """Arrays for the results of `i`; None for those that are not in HBM."""
    texts = _TYPE.findall(i.type)
    return [
        Held(array, _padded(array, text), [i.scope]) if not array.memory else None
        for array, text in zip(i.results, texts, strict=False)
    ]


def _alike(a: Array, b: Array) -> bool:
    return a.shape == b.shape and a.dtype == b.dtype


def _padded(array: Array, text: str) -> int:
    """Bytes of an array in whole tiles: the tile covers the minor dims of its layout."""
    tiled = _TILED.search(text)
    if tiled is None:
        return array.bytes
    minor = [array.shape[int(d)] for d in tiled[1].split(",")]
    tile = [int(n) for n in tiled[2].split(",")]
    for place, n in enumerate(reversed(tile)):
        if place < len(minor):
            minor[place] = -(-minor[place] // n) * n
    return math.ceil(math.prod(minor) * array.bits / 8)
