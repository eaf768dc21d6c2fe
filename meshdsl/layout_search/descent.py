"""The search itself: from the shipped layouts downhill, one decision at a time.

Of all neighbours of the best plans a rough price says which are worth an estimate (`price`); the
estimates of plans that are alike correct that price; what the estimate says is what counts. The
search ends when no neighbour of the best plans is better, or when its time is over.
"""

from __future__ import annotations

import math
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice

from meshdsl.errors import MeshDSLError
from meshdsl.estimate.explain import explain
from meshdsl.layout_search.ahead import Request
from meshdsl.layout_search.constraints import Constraints
from meshdsl.layout_search.judge import MARGIN, Judge, rank
from meshdsl.layout_search.neighbours import Neighbours
from meshdsl.layout_search.obeys import Obeys
from meshdsl.layout_search.plan import Plan, layout_of, merged
from meshdsl.layout_search.price import Price, Pricer, distance
from meshdsl.layout_search.starts import starts
from meshdsl.layout_search.workload import Workload

_NEAR = 1.15  # a shipped layout that computes for so many times the best step is left out
_BEAM = 8  # of the best plans the neighbours are looked at, the best first
_PRICED_AT_ONCE = 24  # neighbours that are priced before some of them are estimated
_PRICED_FIRST = 8  # that are priced before a second process begins with the most promising
_AT_ONCE = 3  # that are estimated before prices are corrected again
_PROMISING = 1.02  # a price so many times the best is worth an estimate: it is rough
_STARTING = 0.5  # of the time the first estimates may take
_EXPECTED = 6  # of the next plans are said to a second process, see `ahead`


@dataclass
class Limits:
    """How long a search may go on.

    Attributes:
      until: as `time.monotonic` counts; None for no limit.
      evaluations: how many estimates may be made; None for no limit. With it alone a search finds
        the same each time.
    """

    until: float | None = None
    evaluations: int | None = None

    def left(self, judge: Judge, share: float = 1.0, began: float = 0.0) -> bool:
        """Whether an estimate may be made, if only a `share` of all may be used so far."""
        done = len(judge.judged)
        if self.evaluations is not None and done >= share * self.evaluations:
            return False
        return self.until is None or time.monotonic() < began + share * (self.until - began)


class Descent:
    """One search.

    Attributes:
      judge: has estimated what the search found worth it.
      dims: the sizes of each dim of the workload, by name.
      ended: whether it ended by itself: no neighbour of the best plans is better.
    """

    def __init__(self, workload: Workload, constraints: Constraints, judge: Judge, limits: Limits):
        self.workload, self.constraints, self.judge = workload, constraints, judge
        self.limits, self.began, self.ended = limits, time.monotonic(), False
        self.obeys = Obeys(constraints, workload.target)
        self.choices = _choices(workload, constraints)
        self._pure: dict[Plan, str] = {}
        self._prices: dict[Plan, Price | None] = {}
        self._bounds: dict[Plan, float] = {}
        self._expanded: set[Plan] = set()

        devices = workload.target.devices
        whole = Plan((("data", devices),) if devices > 1 else (), ())
        judge.practise(replace(whole, settings=tuple(sorted(self._first().items()))))
        program = workload.program(layout_of(whole), self._first())
        explanation = explain(program, target=workload.target)
        self._pricer = Pricer(program, explanation, workload.target)
        self.dims: dict[str, tuple[int, ...]] = _sizes_by_name(
            [op.dims for op in program.ops] + [a.dims for a in program.arguments]
        )
        work: dict[str, float] = defaultdict(float)
        for op, view in zip(program.ops, explanation.ops, strict=False):
            for dim in op.dims:
                work[dim.name] += math.fsum(view.seconds.values())
        self._largest = sorted(work, key=lambda name: -work[name])
        stored = dict.fromkeys(
            d.name for a in program.arguments if a.role != "value" for d in a.dims
        )
        visited = {name for op in program.ops for name in op.visited}
        self._neighbours = Neighbours(self._largest, list(stored), self.choices, visited)

    @property
    def priced(self) -> int:
        """How many layouts were priced."""
        return len(self._prices)

    def name(self, plan: Plan) -> str:
        """The name of the shipped layout that a plan is, whatever its settings; or empty."""
        return self._pure.get(replace(plan, settings=()), "")

    def run(self) -> None:
        """Search until nothing is better or the time is over; `judge` has what was found."""
        self._start()
        while self.limits.left(self.judge):
            plan = self._next()
            if plan is None:
                self.ended = True
                return
            self._expand(plan)
        if self.limits.evaluations is None:
            self.judge.keep_all()

    def _next(self) -> Plan | None:
        """The best plan that was not gone on from; of plans that differ in settings alone the best.

        None where the best plans of all have been gone on from.
        """
        layouts: set[Plan] = set()
        for plan in self._ranked():
            layout = replace(plan, settings=())
            if layout in layouts:
                continue
            if len(layouts) == _BEAM:
                return None
            layouts.add(layout)
            if plan not in self._expanded:
                return plan
        return None

    # -- the beginning --------------------------------------------------------------------------

    def _first(self) -> dict[str, str]:
        """The settings that a search begins with."""
        return {name: _begin(name, values) for name, values in self.choices.items()}

    def _start(self) -> None:
        """Estimates shipped layouts, those that are often best first, each on one mesh at first.

        Those that compute for much longer than the best so far are left out.
        """
        settings = tuple(sorted(self._first().items()))
        begin = list(starts(self.workload.target.devices, self.dims, self.constraints))
        waiting = [replace(start.plan, settings=settings) for start in begin]
        for start in begin:
            if start.pure:
                self._pure.setdefault(replace(start.plan, settings=()), start.name)
        while waiting:
            if self.judge.judged and not self.limits.left(self.judge, _STARTING, self.began):
                return
            plan = waiting.pop(0)
            if self._too_slow(self.bound(plan), _NEAR):
                continue
            usable = (p for p in waiting if not self._too_slow(self.bound(p), _NEAR))
            self._expect([plan, *islice(usable, _EXPECTED)])
            self.judge(plan, self.name(plan))

    def _expect(self, plans: Sequence[Plan]) -> None:
        self.judge.expect(Request(plan, self.name(plan)) for plan in plans)

    # -- downhill -------------------------------------------------------------------------------

    def _expand(self, plan: Plan) -> None:
        """Estimates those neighbours of a plan that promise to be better.

        Other settings and exchanges come first, without a promise: a price knows nothing of what is
        recomputed, nor of the rows for which a device makes room. All others are priced in the
        order of what they compute at least. The first that is better is gone on from at once.
        """
        self._expanded.add(plan)
        before = self._best()
        others = [
            p
            for p in (*self._other_settings(plan), *self._neighbours.exchanges(plan))
            if self.judge.is_new(p) and self._allowed(p)
        ]
        self._expect(others)
        for one in others:
            if not self.limits.left(self.judge):
                return
            judged = self.judge(one, self.name(one))
            if self._best() != before:
                return
            if judged is not None and rank(judged) < rank(self.judge.judged[plan]):
                return  # its turn comes with these settings, if it is still among the best
        near = sorted(
            ((bound, n) for n in self._neighbours(plan) if (bound := self.bound(n)) < math.inf),
            key=lambda pair: pair[0],
        )
        waiting: list[Plan] = []
        for i, (bound, one) in enumerate(near, 1):
            if self._too_slow(bound) or not self.limits.left(self.judge):
                break
            if self._price(one) is not None and not self._known(one):
                waiting.append(one)
            if i % _PRICED_FIRST == 0:
                self._expect([p for p in self._sorted(waiting)[:_AT_ONCE] if self._promising(p)])
            if i % _PRICED_AT_ONCE == 0:
                waiting = self._estimate_some(waiting)
                if self._best() != before:
                    return
        while waiting and self.limits.left(self.judge):
            fewer = self._estimate_some(waiting)
            if self._best() != before or len(fewer) == len(waiting):
                return
            waiting = fewer

    def _other_settings(self, plan: Plan) -> Iterator[Plan]:
        """The settings to try with the layout of a plan: those of the best plan are enough."""
        best = self._best()
        if best is None or plan == best or not self.judge.judged[best].fits:
            yield from self._neighbours.settings(plan)
        elif plan.settings != best.settings:
            alike = replace(plan, settings=best.settings)
            yield alike
            if (judged := self.judge.judged.get(alike)) is None or not judged.fits:
                yield from self._neighbours.settings(plan)

    def _estimate_some(self, waiting: list[Plan]) -> list[Plan]:
        """Estimates the most promising; returns the others."""
        waiting = self._sorted(waiting)
        batch = [one for one in waiting[:_AT_ONCE] if self._promising(one)]
        self._expect(batch)
        for one in batch:
            if self.limits.left(self.judge) and not self._known(one):
                self.judge(one, self.name(one))
        return [one for one in waiting if one not in batch]

    def _sorted(self, waiting: list[Plan]) -> list[Plan]:
        """Plans that are priced, the most promising first."""
        return sorted(waiting, key=self._order)

    def bound(self, plan: Plan) -> float:
        """Seconds that a plan takes at least; infinite for one that may not be used."""
        if not self.judge.is_new(plan) or not self._allowed(plan):
            return math.inf
        return self._ops_alone(plan) * self._more_than_ops(plan.settings)

    def _ops_alone(self, plan: Plan) -> float:
        if plan not in self._bounds:
            self._bounds[plan] = self._pricer.bound(layout_of(plan))
        return self._bounds[plan]

    def _more_than_ops(self, settings: tuple[tuple[str, str], ...]) -> float:
        """How many times as long as its ops a step computes at least with some settings.

        It is what the estimates say that were made with them: some values are computed again.
        """
        known = self.judge.judged
        ratios = [
            known[p].compute / self._ops_alone(p)
            for p in known
            if p.settings == settings and 0 < self._ops_alone(p) < math.inf
        ]
        return min(ratios, default=1.0)

    def _too_slow(self, bound: float, near: float = _PROMISING) -> bool:
        best = self._best()
        if bound == math.inf or best is None or not self.judge.judged[best].fits:
            return bound == math.inf
        return bound > near * self.judge.judged[best].step

    def _known(self, plan: Plan) -> bool:
        """Whether a plan that runs alike was estimated."""
        return any(self.same(known, plan) for known in self.judge.judged)

    def same(self, one: Plan, other: Plan) -> bool:
        """Whether two plans run alike: the law splits and moves the same under both."""
        if one.settings != other.settings or one.sizes != other.sizes:
            return False
        prices = [self._price(plan) for plan in (one, other)]
        return None not in prices and len({p.signature for p in prices if p}) == 1

    def _best(self) -> Plan | None:
        ranked = self._ranked()
        return ranked[0] if ranked else None

    def _ranked(self) -> list[Plan]:
        judged = self.judge.judged
        return sorted(judged, key=lambda plan: rank(judged[plan]))

    def _allowed(self, plan: Plan) -> bool:
        """Whether a plan obeys. One of which two axes do the same is left to the one without."""
        try:
            if any(self.obeys(layout_of(fewer), dict(plan.settings)) for fewer in merged(plan)):
                return False
            return self.obeys(layout_of(plan), dict(plan.settings))
        except MeshDSLError as error:
            self.judge.refused[plan] = str(error)
            return False

    # -- prices ---------------------------------------------------------------------------------

    def _price(self, plan: Plan) -> Price | None:
        """The rough price of a plan; None where the law or an op refuses it."""
        # What is computed again are ops that are there in any case.
        key = replace(plan, settings=tuple(s for s in plan.settings if s[0] != "model.remat"))
        if key not in self._prices:
            layout = layout_of(plan)
            try:
                ops = self.workload.ops(layout, dict(plan.settings))
                self._prices[key] = self._pricer.price(layout, ops)
            except MeshDSLError as error:
                self.judge.refused[plan] = str(error)
                self._prices[key] = None
        return self._prices[key]

    def _guess(self, plan: Plan) -> tuple[float, float]:
        """Seconds and peak of a plan, by its price and by what the nearest estimate said."""
        price = self._price(plan)
        assert price is not None
        known = self.judge.judged
        apart = lambda p: (p.settings != plan.settings, distance(p, plan))
        nearest = min(known, key=apart, default=None)
        if nearest is None or (theirs := self._price(nearest)) is None:
            return price.step, price.at_rest
        said = known[nearest]
        step = price.step * said.step / theirs.step if theirs.step else price.step
        live = max(said.peak - theirs.at_rest, 0.0)
        share = price.live / theirs.live if theirs.live else 1.0
        return step, price.at_rest + live * share

    def _order(self, plan: Plan) -> tuple[bool, float]:
        """As `rank`, of a plan that is not estimated."""
        step, peak = self._guess(plan)
        fits = peak <= (1 - MARGIN) * self.judge.budget
        return (False, step) if fits else (True, peak)

    def _promising(self, plan: Plan) -> bool:
        """Whether a plan may be better than the best that was estimated."""
        best = self._best()
        if best is None:
            return True
        judged = self.judge.judged[best]
        step, peak = self._guess(plan)
        if not judged.fits:
            return peak < _PROMISING * judged.peak
        return step < _PROMISING * judged.step and peak < 1.3 * self.judge.budget


def _choices(workload: Workload, constraints: Constraints) -> Mapping[str, Sequence[str]]:
    """The values of each setting that may be chosen."""
    found = dict(workload.choices)
    if constraints.remat is not None and "model.remat" in found:
        # Where none is left the constraint is refused later, by `conflicts.check`.
        left = [v for v in found["model.remat"] if v in constraints.remat]
        found["model.remat"] = left or found["model.remat"]
    if constraints.microbatches is not None and "microbatches" in found:
        allowed = {str(n) for n in constraints.microbatches}
        found["microbatches"] = [v for v in found["microbatches"] if v in allowed]
    return found


def _begin(name: str, values: Sequence[str]) -> str:
    """The value that a search begins with: one batch at a time, and the least memory else."""
    return values[-1] if name == "microbatches" else values[0]


def _sizes_by_name(lists: Iterable) -> dict[str, tuple[int, ...]]:
    found: dict[str, dict[int, None]] = defaultdict(dict)
    for dims in lists:
        for dim in dims:
            found[dim.name][dim.size] = None
    return {name: tuple(sizes) for name, sizes in found.items()}
