"""Every public op once: how to draw arguments for it, what it promises, and its counterpart in Mesh-TensorFlow.

`tests/test_every_op.py` runs each entry under random layouts, and `docs/ops.md` is generated from the same entries
(`python -m tests.catalogue`), so neither can forget an op. One module a family; each has a list `ENTRIES`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol

import meshdsl as md


class Draw(Protocol):
    """Where the arguments of an example come from: hypothesis in the test, fixed choices in the docs."""

    def dims(self, *names: str, low: int = 0) -> tuple[md.Dim, ...]:
        """Dims of drawn sizes, of at least `low`. Names are letters, of which random layouts have rules."""

    def tensor(self, *dims: md.Dim, low: float = -1.0, high: float = 1.0) -> md.Tensor:
        """Random float32 numbers between `low` and `high`, with the dims in a drawn order."""

    def integers(self, *dims: md.Dim, below: int) -> md.Tensor:
        """Random int32 numbers from 0 to `below`."""

    def integer(self, low: int, high: int) -> int:
        """A whole number, both ends included."""

    def pick(self, *options):
        """One of the options."""


class Case(NamedTuple):
    """A function of Tensors, what to call it with, and the dims of these that the op works along."""

    fn: Callable
    args: tuple
    along: tuple[md.Dim, ...] = ()


class Entry(NamedTuple):
    """One op.

    Attributes:
      op: its public name: `cumsum`, `random.normal`.
      example: draws a Case.
      local: what each device computes, for the docs.
      promise: forward collectives that it may run when a dim that it works along is split, such as ("ppermute",); the moves that
        the law makes of operands and results are not meant.
      mesh_tensorflow: the class of Mesh-TensorFlow that does the same and what that forbids; "" where it has none.
      gradients: whether the example has gradients worth comparing.
      floats: whether it takes real floating-point numbers only.
    """

    op: str
    example: Callable[[Draw], Case]
    local: str
    promise: tuple[str, ...] = ()
    mesh_tensorflow: str = ""
    gradients: bool = True
    floats: bool = False
