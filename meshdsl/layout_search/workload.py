"""What a search is for: a step of training, or any function with its arguments."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from meshdsl.layout import Layout
from meshdsl.machine import Target
from meshdsl.predict.compiler.report import CompiledReport
from meshdsl.program.program import Program


class Workload(Protocol):
    """What is laid out.

    Attributes:
      title: in words.
      target: the machine.
      rows: of a batch, for constraints on its microbatches; 0 where there is no such setting.
      choices: the values of each setting that a search may choose, such as those of `model.remat`;
        what needs the least memory comes first.
    """

    title: str
    target: Target
    rows: int
    choices: Mapping[str, Sequence[str]]

    def program(self, layout: Layout, settings: Mapping[str, str]) -> Program:
        """The recorded program under a layout whose mesh has a number for each axis."""
        ...

    def compile(self, layout: Layout, settings: Mapping[str, str]) -> CompiledReport:
        """What the compiler of the machine makes of it."""
        ...


def sizes_of(layout: Layout) -> dict[str, int]:
    """The sizes of a mesh that has a number for each axis."""
    return {axis: int(size) for axis, size in layout.mesh.items()}
