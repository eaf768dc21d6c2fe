"""The search itself: from the shipped layouts uphill, one decision at a time.

What the estimate says of a plan is all that counts. The search goes on with the best plan of which
a neighbour is not estimated yet, and ends when there is none, or when its time is over.
"""

from __future__ import annotations

import math
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, product

from meshdsl.errors import MeshDSLError
from meshdsl.layout import LEVELS, Layout
from meshdsl.layout_search.constraints import Constraints
from meshdsl.layout_search.judge import Judge, rank
from meshdsl.layout_search.neighbours import Neighbours
from meshdsl.layout_search.obeys import Obeys
from meshdsl.layout_search.plan import Plan, layout_of, merged
from meshdsl.layout_search.starts import starts
from meshdsl.layout_search.workload import Workload, sizes_of

_BEAM = 4  # of the best layouts the neighbours are looked at
_STARTING = 0.5  # of the time the first estimates may take


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


class Climb:
    """One search.

    Attributes:
      judge: has estimated what the search came to.
      dims: the sizes of each dim of the workload, by name.
      ended: whether it ended by itself: each start and each neighbour of the best is estimated.
    """

    def __init__(self, workload: Workload, constraints: Constraints, judge: Judge, limits: Limits):
        self.workload, self.constraints, self.judge = workload, constraints, judge
        self.limits, self.began, self.ended = limits, time.monotonic(), False
        self.obeys = Obeys(constraints, workload.target)
        self.choices = _choices(workload, constraints)
        # One batch at a time, and the least memory else.
        first = {n: v[-1] if n == "microbatches" else v[0] for n, v in self.choices.items()}
        self._first = tuple(sorted(first.items()))
        devices = workload.target.devices
        whole = Plan((("data", devices),) if devices > 1 else (), ())
        program = workload.program(layout_of(whole), first)
        sizes: dict[str, dict[int, None]] = defaultdict(dict)
        work: dict[str, float] = defaultdict(float)  # elements of all loops that have a dim
        for op in program.ops:
            for dim in op.dims:
                work[dim.name] += op.count * math.prod(d.size for d in op.dims)
        for dims in (x.dims for x in (*program.ops, *program.arguments)):
            for dim in dims:
                sizes[dim.name][dim.size] = None
        by_work = sorted(sizes, key=lambda name: -work[name])
        self.dims = {name: tuple(sizes[name]) for name in by_work}
        stored = [d.name for a in program.arguments if a.role != "value" for d in a.dims]
        self._neighbours = Neighbours(
            [name for name in by_work if name in work],
            list(dict.fromkeys(stored)),
            self.choices,
            {name for op in program.ops for name in op.visited},
        )
        nests = (tuple(d for d in op.dims if d.name not in op.unsplit) for op in program.ops)
        self._nests = list(dict.fromkeys(nests))
        self._kept = list(dict.fromkeys(a.dims for a in program.arguments if a.dims))
        self._splits: set[tuple] = set()  # of what was estimated, see `_split`
        self._near: dict[Plan, Iterator[Plan]] = {}
        first_round, *rounds = starts(devices, self.dims, constraints)
        self._starts = [s.plan for s in first_round], [s.plan for some in rounds for s in some]
        # Of several names the first.
        named = reversed([s for some in (first_round, *rounds) for s in some if s.name])
        self._names = {start.plan: start.name for start in named}

    def name(self, plan: Plan) -> str:
        """The name of the shipped layout that a plan is, whatever its settings; or empty."""
        return self._names.get(replace(plan, settings=()), "")

    def ranked(self) -> list[Plan]:
        """What is estimated, the best first."""
        judged = self.judge.judged
        return sorted(judged, key=lambda plan: rank(judged[plan]))

    def run(self) -> None:
        """Search until nothing is left or the time is over; `judge` has what was found."""
        first = (replace(plan, settings=self._first) for plan in self._starts[0])
        later = self._with_all_settings(chain(*self._starts))
        while self.limits.left(self.judge) or not self.judge.judged:
            begins = self.limits.left(self.judge, _STARTING, self.began) or not self.judge.judged
            sources = chain([first] if begins else [], self._better(), [first, later])
            plan = next((p for source in sources for p in source if self._is_new(p)), None)
            if plan is None:
                self.ended = True
                return
            self.judge(plan, self.name(plan))

    def _with_all_settings(self, plans: Iterable[Plan]) -> Iterator[Plan]:
        values = [[(name, value) for value in self.choices[name]] for name, _ in self._first]
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
            broken = [self.obeys.broken(layout, dict(plan.settings)) for layout in layouts]
            if broken[0]:
                self.judge.refused[plan] = f"it does not obey {broken[0]}"
            elif all(broken[1:]) and (split := self._split(plan, layouts[0])) not in self._splits:
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
        how = [(x.dim, x.axis, x.attributes) for x in plan.lines if x.attributes]
        return plan.sizes, plan.words, plan.settings, tuple(how), tuple(said)


def _choices(workload: Workload, constraints: Constraints) -> Mapping[str, Sequence[str]]:
    """The values of each setting that may be chosen; what has none left is refused by `check`."""
    found = dict(workload.choices)
    allowed = {"model.remat": constraints.remat, "microbatches": constraints.microbatches}
    for name in found.keys() & allowed.keys():
        if (some := allowed[name]) is not None:
            left = [value for value in found[name] if value in map(str, some)]
            found[name] = left or found[name]
    return found
