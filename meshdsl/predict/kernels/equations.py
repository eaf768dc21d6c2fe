"""The program of one device as equations on values: what `flatten` makes of a jaxpr."""

from __future__ import annotations

import dataclasses
import itertools
import math
from dataclasses import dataclass, field
from typing import Any

BARRIER = "optimization_barrier"  # the primitive of equations that stand for one

_numbers = itertools.count()


@dataclass(eq=False)
class Value:
    """An array of one device.

    Attributes:
      shape: on one device.
      dtype: NumPy's name.
      bytes: on one device.
      parts: of a global array, into how many parts each of its dims is split; None inside of a
        `shard_map`, where arrays are local.
      base: the value whose memory this is, seen with other dims; None if it has memory of its own.
      transposed: whether it is that memory with its dims in another order.
      host: whether it stands in the memory of the host.
      equation: the one that makes it; None for an input.
      name: of an argument of the program, its path.
      number: counts values in the order in which they are made.
    """

    shape: tuple[int, ...]
    dtype: str
    bytes: int
    parts: tuple[int, ...] | None = None
    base: Value | None = None
    transposed: bool = False
    host: bool = False
    equation: Equation | None = None
    name: str = ""
    number: int = field(default_factory=lambda: next(_numbers))

    @property
    def size(self) -> int:
        """The number of elements."""
        return math.prod(self.shape)

    def copy(self) -> Value:
        """A value that looks the same, with memory of its own."""
        return dataclasses.replace(self, base=None, transposed=False, number=next(_numbers))


@dataclass(eq=False)
class Equation:
    """An equation of a jaxpr, with the values of one device in place of its variables.

    Attributes:
      inputs: the operands; None for a literal.
      eqn: the equation of the jaxpr.
      blocks: of a loop its body, and after it the condition of a `while`; of a `cond` its branches.
      body_start: the position in `inputs` of the first that the body or the branches are given. The
        first `constants` of these are used as they are, the next `carried` go from turn to turn,
        and the rest are stacks of which each turn is given a slice.
    """

    primitive: str
    inputs: list[Value | None]
    outputs: list[Value]
    scope: str
    eqn: Any
    blocks: list[Block] = field(default_factory=list)
    body_start: int = 0
    constants: int = 0
    carried: int = 0

    @property
    def operands(self) -> list[Value]:
        """The inputs that are no literals."""
        return [value for value in self.inputs if value is not None]


@dataclass(eq=False)
class Block:
    """Equations in program order: a whole program, the body of a loop, or a branch.

    An output is None where it is a literal.
    """

    inputs: list[Value]
    equations: list[Equation]
    outputs: list[Value | None]


def original(value: Value) -> Value:
    """The value whose memory `value` is; itself if it has memory of its own."""
    while value.base is not None:
        value = value.base
    return value


def view(source: Value, value: Value) -> Value:
    """Makes `value` the memory of `source`, seen with other dims; returns it."""
    value.base, value.transposed = original(source), source.transposed
    return value
