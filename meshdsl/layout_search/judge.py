"""What a candidate comes to, by the estimate that `explain` makes of its recorded program."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from meshdsl.errors import MeshDSLError
from meshdsl.estimate.explain import explain
from meshdsl.estimate.explanation import Explanation
from meshdsl.layout_search.ahead import Ahead, Answer, Request
from meshdsl.layout_search.found import Candidate, Judged
from meshdsl.layout_search.plan import Plan, layout_of
from meshdsl.layout_search.workload import Workload
from meshdsl.machine import Target
from meshdsl.machine.at_hand import mesh_on

# The share of the memory that an estimate must leave free. Of 29 compiled programs the compiler's
# peak was at most 7% above the estimate; see *How much memory to leave free* in
# benchmarks/RESULTS.md.
MARGIN = 0.1


@dataclass
class Judge:
    """Estimates candidates, each once.

    Attributes:
      budget: bytes of a device that may be used.
      judged: what was estimated, in the order in which it was.
      refused: why a plan cannot be used, for those that cannot.
      ahead: a second process that estimates what is expected; None where there is none.
    """

    workload: Workload
    budget: int
    judged: dict[Plan, Judged] = field(default_factory=dict)
    refused: dict[Plan, str] = field(default_factory=dict)
    ahead: Ahead | None = None

    @property
    def target(self) -> Target:
        return self.workload.target

    def __call__(self, plan: Plan, shipped: str = "") -> Judged | None:
        """The estimate of a plan; None where the law or an op refuses it.

        Args:
          shipped: the name of the shipped layout that it is.
        """
        if plan in self.refused:
            return None
        if plan not in self.judged:
            request = Request(plan, shipped)
            self._keep(plan, self.ahead.take(request) if self.ahead else self.estimate(request))
        return self.judged.get(plan)

    def keep_all(self) -> None:
        """Add what a second process has estimated and nobody has asked for."""
        for request, answer in self.ahead.taken().items() if self.ahead else ():
            if self.is_new(request.plan):
                self._keep(request.plan, answer)

    def _keep(self, plan: Plan, answer: Answer) -> None:
        if isinstance(answer, str):
            self.refused[plan] = answer
        else:
            self.judged[plan] = answer

    def practise(self, plan: Plan) -> None:
        """Let the second process make its first trace, of a plan that nobody asks for."""
        if self.ahead:
            self.ahead.practise(Request(plan))

    def expect(self, requests: Iterable[Request]) -> None:
        """Say which plans it will probably be asked for next, so that they may be begun."""
        if self.ahead:
            self.ahead.expect([r for r in requests if self.is_new(r.plan)])

    def is_new(self, plan: Plan) -> bool:
        """Whether nothing is known of a plan."""
        return plan not in self.judged and plan not in self.refused

    def estimate(self, request: Request) -> Answer:
        """What a plan comes to, or why it cannot be used."""
        try:
            layout = layout_of(request.plan, request.shipped or "layout")
            mesh_on(self.target, layout)
            program = self.workload.program(layout, dict(request.plan.settings))
            explanation = explain(program, target=self.target)
        except MeshDSLError as error:
            return str(error)
        candidate = Candidate(layout, request.plan.settings, request.shipped)
        return self._judged(candidate, explanation)

    def _judged(self, candidate: Candidate, explanation: Explanation) -> Judged:
        time, peak = explanation.time, explanation.memory.peak
        assert time is not None
        return Judged(
            candidate=candidate,
            step=time.step,
            peak=peak,
            compute=time.compute,
            exposed=time.exposed,
            axes=explanation.axes,
            fits=peak <= (1 - MARGIN) * self.budget,
        )


def rank(judged: Judged) -> tuple[bool, float, int]:
    """A key that sorts by time those that fit, and then by memory those that do not."""
    if judged.fits:
        return False, judged.step, judged.peak
    return True, float(judged.peak), judged.peak
