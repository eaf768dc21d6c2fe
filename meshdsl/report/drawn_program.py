"""A program that a notebook draws."""

from __future__ import annotations

from meshdsl.record.program import Program
from meshdsl.report.explain import explain
from meshdsl.report.page import program_html


class DrawnProgram(Program):
    """As `Program`; in a notebook it shows what `explain` says of it."""

    def _repr_html_(self) -> str:
        return program_html(explain(self))
