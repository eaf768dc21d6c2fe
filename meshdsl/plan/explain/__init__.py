"""What a program will do, read off its record and its jaxpr: no device, no compiler."""

from meshdsl.plan.explain.explanation import Explanation
from meshdsl.plan.explain.views import explain

__all__ = ["Explanation", "explain"]
