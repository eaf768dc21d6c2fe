"""An explanation that prints itself as text and draws itself in a notebook."""

from __future__ import annotations

from typing import Any

from meshdsl.predict.explain import explain
from meshdsl.predict.explanation import Explanation
from meshdsl.program.program import Program
from meshdsl.tools.explanation_text import describe
from meshdsl.tools.page import program_html


class Explained(Explanation):
    """An explanation that prints itself as text and draws itself in a notebook."""

    @classmethod
    def of(cls, program: Program, **options: Any) -> Explained:
        """What one call of `program` does on one device; `options` are those of `explain`."""
        return cls(**vars(explain(program, **options)))

    def __str__(self) -> str:
        return describe(self)

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return program_html(self)
