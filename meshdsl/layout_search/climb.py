"""The search itself: from the shipped layouts uphill, one decision at a time.

What the estimate says of a plan is all that counts. The search goes on with the best plan of which
a neighbour is not estimated yet, and ends when there is none, or when its time is over.
"""

from __future__ import annotations

import math
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain, product

from meshdsl.errors import MeshDSLError
from meshdsl.layout import LEVELS, Layout
from meshdsl.layout_search.constraints import Constraints
from meshdsl.layout_search.judge import Judge, rank
from meshdsl.layout_search.neighbours import Neighbours
from meshdsl.layout_search.obeys import broken
from meshdsl.layout_search.plan import Plan, attributes, layout_of, merged
from meshdsl.layout_search.starts import starts
from meshdsl.layout_search.workload import Workload, sizes_of

_BEAM = 4  # of the best layouts the neighbours are looked at
_STARTING = 0.5  # of the time the first estimates may take


class Climb:
    """One search.

    Args:
      budget: bytes of a device that may be used.
      until: when it must end, as `time.monotonic` counts; None for no limit.
      evaluations: how many estimates it may make; None for no limit. With it alone a search finds
        the same each time.

    Attributes:
      judge: has estimated what the search came to.
      dims: the sizes of each dim of the workload, by name.
      ended: whether it ended by itself: each start and each neighbour of the best is estimated.
    """

    def __init__(
        self,
        workload: Workload,
        constraints: Constraints,
        budget: int,
        until: float | None,
        evaluations: int | None,
    ):
        self.workload, self.judge = workload, Judge(workload, budget)
        self._until, self._evaluations = until, evaluations
        self._began, self.ended = time.monotonic(), False
        self.constraints = constraints
        self._choices = _choices(workload, constraints)
        # One batch at a time, and the least memory else.
        least = {n: v[-1] if n == "microbatches" else v[0] for n, v in self._choices.items()}
        self._least = tuple(sorted(least.items()))
        devices = workload.target.devices
        whole = Plan((("data", devices),) if devices > 1 else (), ())
        program = workload.program(layout_of(whole), least)
        sizes: dict[str, dict[int, None]] = defaultdict(dict)
        work: dict[str, float] = defaultdict(float)  # elements of all loops that have a dim
        for op in program.ops:
            for dim in op.dims:
                work[dim.name] += op.count * math.prod(d.size for d in op.dims)
        for one in (*program.ops, *program.arguments):
            for dim in one.dims:
                sizes[dim.name][dim.size] = None
        by_work = sorted(sizes, key=lambda name: -work[name])
        self.dims = {name: tuple(sizes[name]) for name in by_work}
        stored = [d.name for a in program.arguments if a.role != "value" for d in a.dims]
        self._neighbours = Neighbours(
            [name for name in by_work if name in work],
            list(dict.fromkeys(stored)),
            self._choices,
            {name for op in program.ops for name in op.visited},
        )
        nests = (tuple(d for d in op.dims if d.name not in op.unsplit) for op in program.ops)
        self._nests = list(dict.fromkeys(nests))
        self._kept = list(dict.fromkeys(a.dims for a in program.arguments if a.dims))
        self._splits: set[tuple] = set()  # of what was estimated, see `_split`
        self._near: dict[Plan, Iterator[Plan]] = {}
        rounds = list(starts(devices, self.dims, constraints))
        self._first = [plan for plan, _ in rounds[0]]
        self._starts: dict[Plan, str] = {}  # with the first name of each, or none
        for plan, name in chain(*rounds):
            self._starts[plan] = self._starts.get(plan) or name

    def name(self, plan: Plan) -> str:
        """The name of the shipped layout that a plan is, whatever its settings; or empty."""
        return self._starts.get(replace(plan, settings=()), "")

    def breaks(self, layout: Layout, plan: Plan) -> str:
        """The constraint that a layout with the settings of a plan breaks; empty if it obeys."""
        return broken(self.constraints, self.workload.target, layout, dict(plan.settings))

    def ranked(self) -> list[Plan]:
        """What is estimated, the best first."""
        judged = self.judge.judged
        return sorted(judged, key=lambda plan: rank(judged[plan]))

    def run(self) -> None:
        """Search until nothing is left or the time is over; `judge` has what was found."""
        first = (replace(plan, settings=self._least) for plan in self._first)
        later = self._with_all_settings(self._starts)
        while self._may_go_on():
            begins = [first] if self._may_go_on(_STARTING) else []
            sources = chain(begins, self._better(), [first, later])
            plan = next((p for source in sources for p in source if self._is_new(p)), None)
            if plan is None:
                self.ended = True
                return
            self.judge(plan, self.name(plan))

    def _may_go_on(self, share: float = 1.0) -> bool:
        """Whether an estimate may be made, if only a `share` of all may be used so far."""
        done = len(self.judge.judged)
        if not done:
            return True
        if self._evaluations is not None and done >= share * self._evaluations:
            return False
        began, until = self._began, self._until
        return until is None or time.monotonic() < began + share * (until - began)

    def _with_all_settings(self, plans: Iterable[Plan]) -> Iterator[Plan]:
        values = [[(name, value) for value in self._choices[name]] for name, _ in self._least]
        return (replace(plan, settings=each) for plan in plans for each in product(*values))

    def _better(self) -> Iterator[Iterator[Plan]]:
        """Where something better may be: near the best plan first, then near the next ones."""
        beam: dict[Plan, Plan] = {}  # of plans that differ in settings alone the best
        figures = set()  # of those that come to the very same the first
        for plan in self.ranked():
            judged = self.judge.judged[plan]
            if (judged.step, judged.peak) not in figures:
                beam.setdefault(replace(plan, settings=()), plan)
            figures.add((judged.step, judged.peak))
        nearest = [*beam.values()][:_BEAM]
        for best in nearest[:1]:
            yield self._neighbours.small(best)
            yield iter([replace(plan, settings=best.settings) for plan in nearest])
        for plan in nearest:
            yield self._near.setdefault(plan, self._neighbours(plan))

    def _is_new(self, plan: Plan) -> bool:
        """Whether an estimate of a plan would say something: it obeys, and no other runs alike."""
        if plan in self.judge.judged or plan in self.judge.refused:
            return False
        try:
            # One of which two axes do the same is left to the one without.
            layouts = [layout_of(p) for p in (plan, *merged(plan))]
            breaks = [self.breaks(layout, plan) for layout in layouts]
            if breaks[0]:
                self.judge.refused[plan] = f"it does not obey {breaks[0]}"
            elif all(breaks[1:]) and (split := self._split(plan, layouts[0])) not in self._splits:
                self._splits.add(split)
                return True
        except MeshDSLError as error:
            self.judge.refused[plan] = str(error)
        return False

    def _split(self, plan: Plan, layout: Layout) -> tuple:
        """What the law splits under a plan, and how: alike for two plans that run alike.

        Raises:
          MeshDSLError: a dim does not divide.
        """
        sizes, said = sizes_of(layout), []
        for dims in self._nests:
            layout.check_sizes(dims, sizes)
            said.append(tuple(layout.split(dims).items()))
        for dims in self._kept:
            said += [tuple(layout.at_rest(dims, sizes, level).items()) for level in LEVELS]
        how = [(x.dim, x.axis, repr(how)) for x in plan.rules if (how := attributes(x))]
        return plan.sizes, plan.words, plan.settings, tuple(how), tuple(said)


def _choices(workload: Workload, constraints: Constraints) -> Mapping[str, Sequence[str]]:
    """The values of each setting that may be chosen; what has none left is refused by `check`."""
    found = dict(workload.choices)
    allowed = {"model.remat": constraints.remat, "microbatches": constraints.microbatches}
    for name in found.keys() & allowed.keys():
        left = [value for value in found[name] if value in map(str, allowed[name] or ())]
        found[name] = left or found[name]
    return found
