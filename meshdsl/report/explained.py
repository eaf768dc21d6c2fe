"""An explanation that prints itself as text and draws itself in a notebook."""

from __future__ import annotations

from typing import Any

from meshdsl.estimate.explain import explain
from meshdsl.estimate.explanation import Explanation
from meshdsl.record.program import Program
from meshdsl.report.explanation_text import describe
from meshdsl.report.page import program_html


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
