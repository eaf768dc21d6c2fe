"""Records the ops of a program while it is traced, each with the moves that the law asks for.

Each op has a tag, such as `md.loss.12`. It stands in the JAX name stack of all that the op computes
and moves, through differentiation and compiling, so that anything found later in a jaxpr or in HLO
leads back to the op and to a line of the user's code.
"""

from __future__ import annotations

import itertools
import math
import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from functools import cache, lru_cache

from meshdsl.dims import Dim, Dims
from meshdsl.splits.pipeline import Schedule
from meshdsl.tensor import notation

_TAG = re.compile(r"\b(md\.\w+\.)(\d+)\b")
_LATER = re.compile(r"\bmd\+(\d+)\b")  # see `later`
# Whose code a frame of the stack is, by its module. Layers and models are as good as the user's own
# code. What calls the program stands outside of the user's model: no line of it says anything.
_USERS = ("meshdsl.layers.", "meshdsl.models.")
_OUTSIDE = ("meshdsl.train.", "meshdsl.commands.", "meshdsl_cli.")
_MACHINERY = ("meshdsl.", "jax.", "contextlib.", "functools.", "flax.", "optax.")
Lines = tuple[tuple[str, int], ...]  # files and lines of the user's code, the innermost first
_QUOTED: ContextVar[Lines] = ContextVar("quoted", default=())  # see `with_lines`
_LINES = 2  # how many lines an op has: `linear.py` says little without the layer that calls it


@dataclass(frozen=True)
class Move:
    """A change of split that the law asks for on the way into or out of an op.

    Attributes:
      operation: `all_gather`, `psum`, `psum_scatter`, `all_to_all`, `ppermute`, `pmax`, or one that
        moves nothing: `slice`, `vary`, `hold` (nothing in the forward pass), `follow` (the gradient
        of a part goes round a ring with it), or `place` and `mask`, which make a pending sum.
      axes: the mesh axes that it goes over.
      bytes: of one execution on one device: the larger of what goes in and what comes out.
      why: the rule that asked for it.
      backward: the collective that it is in the backward pass; empty if that moves nothing.
      backward_bytes: of the backward pass, where gradients are summed in another dtype; 0 means as
        many as `bytes`.
      count: how often it is made in one execution of the op, and in one of its backward pass.
    """

    operation: str
    axes: tuple[str, ...]
    bytes: int
    why: str
    backward: str = ""
    backward_bytes: int = 0
    count: int = 1


_numbers = itertools.count()


def next_op_number() -> int:
    """A number above those of all ops so far, and below those of all ops to come."""
    return next(_numbers)


@dataclass(slots=True)
class Op:
    """One op of a program, in one place of the user's code.

    Attributes:
      tag: its name in JAX's name stacks.
      name: such as `einsum`.
      dims: of its loop nest.
      axes: for each of the dims, the axes that split it.
      lines: files and lines of the user's code that it comes from, the innermost first.
      loops: the loops around it with their lengths, the outermost first: `(("layers", 32),)`.
      waste: the work on padding as a fraction of the work on elements; 0 if every dim divides.
      moves: the changes of split that it takes.
      kernel: which of several kernels it runs, such as `splash`; empty where it has no choice.
      needed: the share of its FLOPs that the model needs: of causal attention a half is enough,
        and a kernel may compute all of it.
      lacks: the kernels that it would have preferred, each with what it cannot do of this op.
      unsplit: names of the dims of which it needs all elements on each device.
      visited: names of the dims whose parts stay where they are, and are sent elements of other
        operands, if a rule with `move = "exchange"` splits them.
      schedule: of a pipeline, which stage works on what, when.
      spent: the axes over which it is mapped by an `over`, so that no dim of it can have them.
      number: counts through the ops of all recorders, in the order in which they were begun.
    """

    tag: str
    name: str
    dims: Dims
    axes: tuple[tuple[str, ...], ...]
    lines: Lines
    loops: tuple[tuple[str, int], ...]
    waste: float = 0.0
    moves: list[Move] = field(default_factory=list)
    kernel: str = ""
    needed: float = 1.0
    lacks: tuple[tuple[str, str], ...] = ()
    unsplit: tuple[str, ...] = ()
    visited: tuple[str, ...] = ()
    schedule: Schedule | None = None
    spent: frozenset[str] = frozenset()
    number: int = field(default_factory=next_op_number)

    def aside(self) -> Op:
        """A copy with a list of moves of its own, for code of the op that runs more than once."""
        return replace(self, moves=[])

    @property
    def source(self) -> tuple[str, int]:
        """File and line of the user's code that calls it; the innermost of `lines`."""
        return self.lines[0] if self.lines else ("", 0)

    @property
    def count(self) -> int:
        """How often the op runs in one call of the program."""
        total = 1
        for _, n in self.loops:
            total *= n
        return total

    def __str__(self):
        return f"{self.name}{notation(self.dims, self.axes)}"


class Recorder:
    """Collects the ops of one trace.

    Attributes:
      name: of the lowered function; tags contain it.
      ops: in the order in which they were begun.
      names: of all dims that appeared in a loop nest.
    """

    def __init__(self, name: str):
        self.name = name
        self.ops: list[Op] = []
        self.names: set[str] = set()
        self._loops: tuple[tuple[str, int], ...] = ()
        self._again: Iterator[Op] | None = None  # see `once`
        self._turns: dict[str, int] = {}  # see `in_turns`
        self._spent: frozenset[str] = frozenset()  # see `spending`

    def begin(self, name: str, dims: Dims, axes, waste: float = 0.0) -> Op:
        """Records an op; its moves are added to `Op.moves` as they are made."""
        if self._again is not None and (again := next(self._again, None)) is not None:
            return again.aside()
        if self._turns:
            dims, axes = self._of_one_turn(dims, axes)
        op = Op(
            f"md.{self.name}.{len(self.ops)}",
            name,
            dims,
            axes,
            _user_lines(),
            self._loops,
            waste,
            spent=self._spent,
        )
        self.ops.append(op)
        self.names.update([d.name for d in dims])
        return op

    def _of_one_turn(self, dims: Dims, axes) -> tuple[Dims, tuple[tuple[str, ...], ...]]:
        """`dims` with their sizes in one turn, and the axes of the mesh that split them."""
        cut = lambda split: math.prod(self._turns.get(axis, 1) for axis in split)
        sizes = [d.size // cut(split) for d, split in zip(dims, axes, strict=True)]
        left = [tuple(axis for axis in split if axis not in self._turns) for split in axes]
        return tuple(Dim(d.name, n) for d, n in zip(dims, sizes, strict=True)), tuple(left)

    def forget(self, since: int) -> None:
        """Drops the ops recorded after `next_op_number` gave `since`.

        For what is traced only to learn something of it, and is traced again later.
        """
        self.ops = [op for op in self.ops if op.number < since]

    @contextmanager
    def once(self, ops: list[Op]):
        """Records the ops of code once, though JAX may trace it more than once.

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
    def in_turns(self, axis: str, count: int):
        """Ops recorded inside of this `with` see one of `count` parts of what `axis` splits.

        They are recorded with dims of the size that is left, and without the axis.
        """
        before, self._turns = self._turns, {**self._turns, axis: count}
        try:
            yield
        finally:
            self._turns = before

    @contextmanager
    def spending(self, axes: frozenset[str]):
        """Ops recorded inside of this `with` are mapped over these axes, all that are spent."""
        before, self._spent = self._spent, axes
        try:
            yield
        finally:
            self._spent = before

    @contextmanager
    def not_repeated(self):
        """Ops recorded inside of this `with` run once, outside of the innermost loop."""
        before = self._loops, self._turns
        self._loops, self._turns = self._loops[:-1], {}
        try:
            yield
        finally:
            self._loops, self._turns = before

    @contextmanager
    def repeated(self, what: str, count: int):
        """Ops recorded inside of this `with` run `count` times, in a loop that is called `what`."""
        before, self._loops = self._loops, (*self._loops, (what, count))
        try:
            yield
        finally:
            self._loops = before


def tag_in(scope: str) -> str | None:
    """The innermost tag in a JAX name stack or an `op_name` of HLO; None if there is none."""
    found = _TAG.findall(scope)
    if not found:
        return None
    prefix, number = found[-1]
    if "md+" not in scope:
        return prefix + number
    further = _LATER.findall(_one_name(scope[: scope.rindex(prefix + number)]))
    return f"{prefix}{int(number) + sum(map(int, further))}"


def _one_name(scope: str) -> str:
    """The beginning of a name, of several that a compiler has put together.

    It writes `a/(b/c:d/e)` for what it has made of `a/b/c` and `a/d/e`. Here `a/(b/c:d/` becomes
    `a/(d/`.
    """
    kept, depth, skips = [], 0, False
    for sign in reversed(scope):
        depth += (sign == ")") - (sign == "(")
        if depth < 0:
            depth, skips = 0, False
        skips = skips or (sign == ":" and depth == 0)
        if not skips:
            kept.append(sign)
    return "".join(reversed(kept))


def later(count: int) -> str:
    """A name for a name stack: the ops in it are those of the tags in it, and `count` further.

    For code that ops share with earlier ones, whose tags it carries, see `lowering.repeats`.
    """
    return f"md+{count}"


@lru_cache(maxsize=256)  # several equations of one op follow each other
def without_numbers(scope: str) -> tuple[str, tuple[int, ...]]:
    """A name stack without the numbers of the ops in its tags, and these numbers."""
    return _TAG.sub(r"\1", scope), tuple([int(number) for _, number in _TAG.findall(scope)])


def source_of(op: Op) -> str:
    """The lines of the user's code that an op comes from: `attention.py:53 linear.py:30`.

    The outermost line is first.
    """
    return " ".join(f"{os.path.basename(file)}:{line}" for file, line in reversed(op.lines))


@contextmanager
def with_lines(lines: Lines):
    """Ops recorded inside of this `with` come from these lines, and not from those that run.

    For code of the user's that is not running any more, as that of a jaxpr. No lines change
    nothing.
    """
    before = _QUOTED.set(lines or _QUOTED.get())
    try:
        yield
    finally:
        _QUOTED.reset(before)


def _user_lines() -> Lines:
    """File and line of the innermost frames of layers, models and the user's code.

    At most `_LINES` of them, the innermost first.
    """
    if quoted := _QUOTED.get():
        return quoted
    found = []
    frame = sys._getframe(3)  # beyond this function, `Recorder.begin` and what calls it
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
    name = f"{module}."
    if name.startswith(_OUTSIDE):
        return "outside"
    is_users = name.startswith(_USERS) or not name.startswith(_MACHINERY)
    return "user" if is_users else "machinery"
