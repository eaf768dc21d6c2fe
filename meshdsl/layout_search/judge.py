"""What a candidate comes to, by the estimate that `explain` makes of its recorded program."""

from __future__ import annotations

import math

from meshdsl.errors import MeshDSLError
from meshdsl.layout_search.found import Candidate, Judged
from meshdsl.layout_search.plan import Plan, layout_of
from meshdsl.layout_search.workload import Workload
from meshdsl.machine.target import mesh_on
from meshdsl.predict.explain import explain

# The share of the memory that an estimate must leave free. Of 29 compiled programs the compiler's
# peak was at most 7% above the estimate; see *How much memory to leave free* in
# benchmarks/RESULTS.md.
MARGIN = 0.1
SAME = 1e-3  # a step that differs by this share is the same


class Judge:
    """Estimates plans, each once.

    Args:
      budget: bytes of a device that may be used.

    Attributes:
      judged: what was estimated, in the order in which it was.
      refused: why a plan cannot be used, for those that cannot.
    """

    def __init__(self, workload: Workload, budget: int):
        self.workload, self.budget = workload, budget
        self.judged: dict[Plan, Judged] = {}
        self.refused: dict[Plan, str] = {}

    def __call__(self, plan: Plan, shipped: str = "") -> Judged | None:
        """The estimate of a plan; None where the law or an op refuses it.

        Args:
          shipped: the name of the shipped layout that it is.
        """
        if plan not in self.judged and plan not in self.refused:
            try:
                self.judged[plan] = self._estimate(plan, shipped)
            except MeshDSLError as error:
                self.refused[plan] = str(error)
        return self.judged.get(plan)

    def _estimate(self, plan: Plan, shipped: str) -> Judged:
        target, layout = self.workload.target, layout_of(plan, shipped or "layout")
        mesh_on(target, layout)
        found = explain(self.workload.program(layout, dict(plan.settings)), target=target)
        time, peak = found.time, found.memory.peak
        assert time is not None
        fits = peak <= (1 - MARGIN) * self.budget
        candidate = Candidate(layout, plan.settings, shipped)
        figures = (time.step, peak, time.compute, time.exposed)
        return Judged(candidate, *figures, found.axes, fits, estimate=time.estimate)


def rank(judged: Judged) -> tuple[bool, int, int, float]:
    """A key that sorts by time those that fit, and then by memory those that do not.

    Of those with the same time a shipped layout is best, and then the one with the fewest rules.
    """
    counted = judged.step if judged.fits else judged.peak
    rules = 0 if judged.candidate.shipped else len(judged.candidate.layout.parsed)
    return not judged.fits, round(math.log(counted or 1e-12) / SAME), rules, counted
