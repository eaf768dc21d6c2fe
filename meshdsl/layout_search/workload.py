"""What a search is for: a step of training, or any function with its arguments."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from meshdsl.layout import Layout
from meshdsl.machine import Target
from meshdsl.predict.compiler.report import CompiledReport
from meshdsl.program.program import Program


@dataclass(frozen=True)
class Workload:
    """What is laid out.

    Attributes:
      title: in words.
      target: the machine.
      program: the recorded program under a layout, whose mesh has a number for each axis, and
        with settings of the run.
      compile: what the compiler of the machine makes of the program, under the same.
      rows: of a batch, for constraints on its microbatches; 0 where there is no such setting.
      choices: the values of each setting that a search may choose, such as those of `model.remat`;
        what needs the least memory comes first.
    """

    title: str
    target: Target
    program: Callable[[Layout, Mapping[str, str]], Program]
    compile: Callable[[Layout, Mapping[str, str]], CompiledReport]
    rows: int = 0
    choices: Mapping[str, Sequence[str]] = field(default_factory=dict)


def sizes_of(layout: Layout) -> dict[str, int]:
    """The sizes of a mesh that has a number for each axis."""
    return {axis: int(size) for axis, size in layout.mesh.items()}
