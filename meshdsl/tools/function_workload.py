"""A function of Tensors with its arguments, for a search to lay out."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from meshdsl.layout import Layout
from meshdsl.layout_search.workload import sizes_of
from meshdsl.lowering.lower import Lowered
from meshdsl.machine import Target
from meshdsl.mesh import abstract_mesh
from meshdsl.predict.compiler.report import CompiledReport
from meshdsl.program.program import Program


class FunctionWorkload:
    """A function of Tensors with its arguments.

    Args:
      lowered: the function, under any layout on any mesh.
      args: of one call; `ShapeDtypeStruct`s will do.
      compile: called with a layout, compiles the function for the target.
    """

    def __init__(
        self,
        lowered: Lowered,
        args: tuple,
        target: Target,
        title: str,
        compile: Callable[[Layout], CompiledReport],
    ):
        self.target, self.title, self.rows = target, title, 0
        self.choices: Mapping[str, Sequence[str]] = {}
        self._lowered, self._args, self._compile = lowered, args, compile

    def program(self, layout: Layout, settings: Mapping[str, str]) -> Program:
        return self._on(layout).program(*self._args)

    def compile(self, layout: Layout, settings: Mapping[str, str]) -> CompiledReport:
        return self._compile(layout)

    def _on(self, layout: Layout) -> Lowered:
        return self._lowered.on(abstract_mesh(sizes_of(layout), self.target.chip.kind), layout)
