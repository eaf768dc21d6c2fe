"""What a program will do, read off its record and its jaxpr: no device, no compiler."""

from meshdsl.estimate.explanation import Explanation
from meshdsl.report.explain import explain

__all__ = ["Explanation", "explain"]
