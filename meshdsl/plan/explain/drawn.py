"""A program that a notebook draws."""

from __future__ import annotations

from meshdsl.plan.explain.views import explain
from meshdsl.plan.page import program_html
from meshdsl.plan.program import Program


class DrawnProgram(Program):
    """As `Program`; in a notebook it shows what `explain` says of it."""

    def _repr_html_(self) -> str:
        return program_html(explain(self))
