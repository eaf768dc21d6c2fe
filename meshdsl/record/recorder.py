"""The record of a lowered program: one entry per op, with the moves that the law asked for.

Ops are recorded while the program is traced. Each collective carries its op's tag (`md.loss.12`) in its JAX name stack,
through differentiation and compiling, so anything found later in a jaxpr or in HLO leads back to a line of the
user's code.
"""

from __future__ import annotations

import itertools
import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cache

from meshdsl.dims import Dims
from meshdsl.tensor import notation

_TAG = re.compile(r"\bmd\.\w+\.\d+\b")
_USERS = ("meshdsl.layers", "meshdsl.models")
_OUTSIDE = (
    "meshdsl.train",
    "meshdsl.commands",
)  # what calls the program; the user's model is inside
_MACHINERY = ("meshdsl.", "jax.", "jax._src", "contextlib", "functools", "flax.")
_LINES = 2


@dataclass(frozen=True)
class Move:
    """A change of split.

    Attributes:
      operation: `all_gather`, `psum`, `psum_scatter`, `all_to_all`, `ppermute`, `pmax`, or the free ones `slice`, `vary`,
        `hold` (a whole copy is at hand) and, into a pending sum, `place` and `mask`.
      backward: the collective that it is in the backward pass; empty when that is free.
      bytes: bytes per device of one execution: the larger of what goes in and what comes out.
      why: the rule that asked for it.
      backward_bytes: of the backward pass, where gradients are summed in another dtype; 0 for as many as `bytes`.
    """

    operation: str
    axes: tuple[str, ...]
    bytes: int
    why: str
    backward: str = ""
    backward_bytes: int = 0


_numbers = itertools.count()


def op_count() -> int:
    """A number above those of all ops so far, and below those of all ops to come."""
    return next(_numbers)


@dataclass
class Op:
    """One op: its loop nest with the splits of its dims, its moves, the enclosing loops and the user's lines.

    `lines` are files and lines, the innermost first. `waste` is the work on padding as a fraction of the work on elements: 0 where every dim divides.
    """

    tag: str
    name: str
    dims: Dims
    axes: tuple[tuple[str, ...], ...]
    lines: tuple[tuple[str, int], ...]
    loops: tuple[tuple[str, int], ...]
    waste: float = 0.0
    moves: list[Move] = field(default_factory=list)
    number: int = field(default_factory=lambda: next(_numbers))  # in order over all recorders

    def aside(self) -> Op:
        """The same op with a list of moves of its own, for code that runs again or elsewhere."""
        return replace(self, moves=[])

    @property
    def source(self) -> tuple[str, int]:
        """File and line of the user's code, the innermost."""
        return self.lines[0] if self.lines else ("", 0)

    @property
    def count(self) -> int:
        """How often one call of the program runs this op."""
        total = 1
        for _, n in self.loops:
            total *= n
        return total

    def __str__(self):
        return f"{self.name}{notation(self.dims, self.axes)}"


class Recorder:
    """Collects the ops of one trace. `name` is that of the lowered function; without `lines` nobody will ask for the user's."""

    def __init__(self, name: str, *, lines: bool = True):
        self.name = name
        self._lines = lines
        self.ops: list[Op] = []
        self.names: set[str] = set()  # of every dim seen
        self._loops: tuple[tuple[str, int], ...] = ()
        self._again: Iterator[Op] | None = None  # see `once`

    def begin(self, name: str, dims: Dims, axes, waste: float = 0.0) -> Op:
        if self._again is not None and (again := next(self._again, None)) is not None:
            return again.aside()
        op = Op(
            f"md.{self.name}.{len(self.ops)}",
            name,
            dims,
            axes,
            _users_lines() if self._lines else (),
            self._loops,
            waste,
        )
        self.ops.append(op)
        self.names.update([d.name for d in dims])
        return op

    def forget(self, since: int) -> None:
        """Drop the ops recorded after `op_count` gave `since`: they were traced only to be looked at."""
        self.ops = [op for op in self.ops if op.number < since]

    @contextmanager
    def once(self, ops: list[Op]):
        """Record code that JAX may trace more than once, and record it once.

        Args:
          ops: empty at first, and filled with the ops that are recorded inside. Given again, the
            same ops are handed out again, in their order, and nothing is recorded.
        """
        if not ops:
            start = len(self.ops)
            yield
            ops += self.ops[start:]
            return
        before, self._again = self._again, iter(ops)
        try:
            yield
        finally:
            self._again = before

    @contextmanager
    def repeated(self, what: str, count: int):
        """Ops recorded inside run `count` times for each time that this block does."""
        before, self._loops = self._loops, (*self._loops, (what, count))
        try:
            yield
        finally:
            self._loops = before


def tag_in(scope: str) -> str | None:
    """The tag that stands innermost in a JAX name stack or HLO op_name; None where there is none."""
    found = _TAG.findall(scope)
    return found[-1] if found else None


def where(op: Op) -> str:
    """The lines of the user's model that an op comes from, the outermost first: `attention.py:53 linear.py:30`."""
    return " ".join(f"{os.path.basename(file)}:{line}" for file, line in reversed(op.lines))


def _users_lines() -> tuple[tuple[str, int], ...]:
    """File and line of the innermost frames of layers, models and the user's code, innermost first.

    At most two: a line of `linear.py` says little without the line of the layer that calls it.
    """
    found = []
    frame = sys._getframe(3)
    while frame is not None and len(found) < _LINES:
        kind = _kind_of(frame.f_globals.get("__name__", ""))
        if kind == "user":
            found.append((frame.f_code.co_filename, frame.f_lineno))
        elif kind == "outside":
            break
        frame = frame.f_back
    return tuple(found)


@cache
def _kind_of(module: str) -> str:
    """Whose code a module is: the `user`'s, `machinery`, or what stands `outside` of programs."""
    if module.startswith(_USERS) or not module.startswith(_MACHINERY):
        return "user"
    return "outside" if module.startswith(_OUTSIDE) else "machinery"
