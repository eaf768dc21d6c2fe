"""What a search has found, put together: the best, what it is worth, and what was not taken."""

from __future__ import annotations

import gc
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from meshdsl.errors import MeshDSLError
from meshdsl.figures import byte_words, time_words
from meshdsl.layout import LEVELS
from meshdsl.layout_search.ahead import Ahead, Request, can_copy
from meshdsl.layout_search.conflicts import Facts, Least, check, nothing_fits
from meshdsl.layout_search.constraints import Constraints
from meshdsl.layout_search.descent import Descent, Limits
from meshdsl.layout_search.found import Difference, Found, Judged, Rejected, frontier_of
from meshdsl.layout_search.judge import MARGIN, Judge, rank
from meshdsl.layout_search.plan import Line, Plan, layout_of, merged
from meshdsl.layout_search.text import layout_words, line_words
from meshdsl.layout_search.workload import Workload

_SHARE = 0.8  # of the time goes to the search; the rest to what its result is worth
_REJECTED = 6
_COMPARED = 2  # shipped layouts are estimated with the settings of the best
_FEW = 8  # estimates tell how much memory is enough, and
_SOON = 3.0  # seconds in which they are made; one of them in any case
_OBJECTS = 100_000  # that Python makes before it looks for garbage
_NOT_ALONE = {"microbatches", "rounds"}  # attributes that are no detail of how a rule is followed
_SAME = 1e-3  # a step that differs by this share is the same


def find(
    workload: Workload,
    constraints: Constraints,
    *,
    seconds: float | None = 10.0,
    evaluations: int | None = None,
    began: float | None = None,
    two_processes: bool = False,
) -> Found:
    """The layout under which a step of `workload` is fastest, of those that obey `constraints`.

    Args:
      seconds: that the search may take; None for no limit.
      evaluations: how many full estimates the search may make, before those that say what its
        result is worth. With it, and without `seconds`, a search finds the same each time.
      began: when the search began, as `time.monotonic` counts; by default now.
      two_processes: whether a copy of this process may help. JAX must not have made its devices.

    Raises:
      MeshDSLError: no layout that obeys can be used at all.
    """
    began = time.monotonic() if began is None else began
    judge = Judge(workload, _budget(workload, constraints))
    if two_processes and can_copy():
        judge.ahead = Ahead(judge.estimate)
    try:
        with _rarely_collected():
            return _found(judge, constraints, seconds, evaluations, began)
    finally:
        if judge.ahead:
            judge.ahead.close()


def _found(
    judge: Judge,
    constraints: Constraints,
    seconds: float | None,
    evaluations: int | None,
    began: float,
) -> Found:
    workload = judge.workload
    until = None if seconds is None else began + _SHARE * seconds
    search = Descent(workload, constraints, judge, Limits(until, evaluations))
    remats = tuple(workload.choices.get("model.remat", ()))
    facts = Facts(workload.target, search.dims, remats, workload.rows)
    check(constraints, facts)
    search.run()
    if not any(judged.fits for judged in judge.judged.values()):
        if reasons := list(dict.fromkeys(judge.refused.values())) if not judge.judged else []:
            raise MeshDSLError(
                f"search: no layout that obeys can be used for {workload.title}; of the first one "
                f"that was tried: {reasons[0]}"
            )
        if not judge.judged and constraints == Constraints(axes=constraints.axes):
            sizes = ", ".join(f"`{dim}`={'/'.join(map(str, n))}" for dim, n in search.dims.items())
            raise MeshDSLError(
                f"search: no dim of {workload.title} divides over the {workload.target.devices} "
                f"devices of {workload.target}; its dims are {sizes}"
            )
        raise nothing_fits(constraints, facts, lambda some: _least(workload, some))
    outcome = _Outcome(search, None if seconds is None else began + seconds)
    best, base, differences = outcome.settled()
    return outcome.found(best, base, differences, began)


@contextmanager
def _rarely_collected() -> Iterator[None]:
    """Python looks for garbage less often: traces make many objects, and hardly any cycles."""
    before = gc.get_threshold()
    gc.set_threshold(_OBJECTS, *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)


def _budget(workload: Workload, constraints: Constraints) -> int:
    """Bytes of a device that may be used."""
    known = [x for x in (constraints.memory, workload.target.chip.hbm) if x]
    return min(known) if known else sys.maxsize


def _least(workload: Workload, constraints: Constraints) -> Least | None:
    """The least memory that is found to be enough under some constraints, by a few estimates."""
    judge = Judge(workload, _budget(workload, constraints))
    until = time.monotonic() + _SOON
    Descent(workload, constraints, judge, Limits(until, _FEW)).run()
    if not judge.judged:
        return None
    least = min(judge.judged.values(), key=lambda judged: judged.peak)
    return Least(int(least.peak / (1 - MARGIN)), layout_words(least.candidate))


class _Outcome:
    """Reads a search that has ended. What must be estimated for that is estimated."""

    def __init__(self, search: Descent, until: float | None):
        self.search, self.judge, self.until = search, search.judge, until

    def best(self) -> Plan:
        judged = self.judge.judged
        return min(judged, key=lambda plan: (rank(judged[plan]), len(plan.lines)))

    def settled(self) -> tuple[Plan, Plan | None, tuple[Difference, ...]]:
        """The best plan, the best shipped one, and what their differences are worth.

        What is estimated to say so may turn out to be better still: then it is the best.
        """
        while True:
            best = self._pruned(self.best())
            base = self._shipped(best)
            if base is not None and self._as_good(base, best):
                best = base  # a layout that has a name says more
            differences = () if base is None else tuple(self._differences(best, base))
            if not self._better(self.best(), best):
                return best, base, differences

    def _as_good(self, one: Plan, other: Plan) -> bool:
        """Whether a plan has the settings of another, and nobody would see a difference."""
        judged = self.judge.judged
        return one.settings == other.settings and _same(judged[one], judged[other])

    def _better(self, one: Plan, other: Plan) -> bool:
        """Whether a plan is better by more than rules that change nothing make up."""
        judged = self.judge.judged
        mine, theirs = judged[one], judged[other]
        if mine.fits and theirs.fits:
            return mine.step < theirs.step * (1 - 2 * _SAME)
        return rank(mine) < rank(theirs) and mine.fits != theirs.fits

    def _pruned(self, best: Plan) -> Plan:
        """A plan without the rules and axes that change nothing; each removal is estimated.

        But for one after which a device computes for longer than a step takes with the rule.
        """
        shorter = self._without_idle_lines(best)
        judged = self._estimate(shorter)
        if judged is not None and _same(judged, self.judge.judged[best]):
            best = shorter
        for line in best.lines:
            without = best.with_lines(line.level, [x for x in best.at(line.level) if x != line])
            mine = self.judge.judged[best]
            known = without in self.judge.judged
            if not known and self.search.bound(without) > mine.step * (1 + _SAME):
                continue
            judged = self._estimate(without)
            if judged is None or judged.fits != mine.fits:
                continue
            if judged.step <= mine.step * (1 + _SAME) and judged.peak <= mine.peak * (1 + _SAME):
                best = without
        for fewer_axes in merged(best):
            judged, mine = self._estimate(fewer_axes), self.judge.judged[best]
            if judged is not None and judged.fits and judged.step <= mine.step * (1 + _SAME):
                return self._pruned(fewer_axes)
        return best

    def _without_idle_lines(self, plan: Plan) -> Plan:
        """A plan without what it says that nothing follows: the law does the same without it.

        A shipped layout stays as it is.
        """
        if self.search.name(plan):
            return plan
        for line in reversed(plan.lines):
            plan = self._shorter(plan, line, [])
        for line in plan.lines:
            for name in sorted(dict(line.attributes).keys() - _NOT_ALONE):
                plan = self._shorter(plan, line, [line.with_attribute(name, None)])
        for word, _ in plan.words:
            said_less = plan.with_word(word, None)
            plan = said_less if self._runs_alike(said_less, plan) else plan
        return plan

    def _shorter(self, plan: Plan, line: Line, instead: list[Line]) -> Plan:
        """A plan with other lines in the place of one, if it runs alike; else the same plan."""
        lines = [y for x in plan.at(line.level) for y in (instead if x == line else [x])]
        shorter = plan.with_lines(line.level, lines)
        return shorter if self._runs_alike(shorter, plan) else plan

    def _runs_alike(self, one: Plan, other: Plan) -> bool:
        if self.until is not None and time.monotonic() > self.until:
            return False
        return self._may_use(one) and self.search.same(one, other)

    def _simplified(self, judged: Judged) -> Judged:
        """A candidate without what it says that nothing follows, as one that was estimated."""
        plan = next(p for p, j in self.judge.judged.items() if j is judged)
        shorter = self._without_idle_lines(plan)
        if shorter == plan:
            return judged
        layout = layout_of(shorter, judged.candidate.layout.name)
        return replace(judged, candidate=replace(judged.candidate, layout=layout))

    def _shipped(self, best: Plan) -> Plan | None:
        """The best of the shipped layouts, with the settings of the best plan if it fits so."""
        judged = self.judge.judged
        known = sorted((p for p in judged if self.search.name(p)), key=lambda p: rank(judged[p]))
        bare = dict.fromkeys(replace(p, settings=()) for p in known)
        for plan in list(bare)[:_COMPARED]:
            self._estimate(replace(plan, settings=best.settings))
        fitting = [p for p in judged if self.search.name(p) and judged[p].fits]
        return min(fitting, key=lambda p: rank(judged[p]), default=None)

    def found(
        self, best: Plan, base: Plan | None, differences: tuple[Difference, ...], began: float
    ) -> Found:
        search, judge = self.search, self.judge
        judged, mine = judge.judged, judge.judged[best]
        others = [
            j for p, j in judged.items() if j.fits and not _alike(p, best) and not _same(j, mine)
        ]
        second = min(others, key=rank, default=None)
        return Found(
            title=search.workload.title,
            target=str(search.workload.target),
            budget=judge.budget,
            margin=MARGIN,
            best=mine,
            second=None if second is None else self._simplified(second),
            frontier=tuple(
                one if one is mine else self._simplified(one)
                for one in frontier_of(judged.values())
            ),
            shipped=None if base is None else judged[base],
            differences=differences,
            rejected=tuple(self._rejected(mine, second)),
            priced=search.priced,
            explained=len(judged),
            compiled=0,
            seconds=time.monotonic() - began,
            ended=search.ended,
        )

    def _estimate(self, plan: Plan) -> Judged | None:
        """The estimate of a plan that obeys, if it is known or there is time for it."""
        if plan not in self.judge.judged:
            if self.until is not None and time.monotonic() > self.until:
                return None
            if not self._may_use(plan):
                return None
        return self.judge(plan, self.search.name(plan))

    def _may_use(self, plan: Plan) -> bool:
        try:
            return self.search.obeys(layout_of(plan), dict(plan.settings))
        except MeshDSLError:
            return False

    # -- what the differences are worth -----------------------------------------------------------

    def _differences(self, best: Plan, base: Plan) -> Iterator[Difference]:
        """Each difference between two plans, undone alone."""
        undone_alone = list(_undone(best, base))
        expected = [plan for *_, plan in undone_alone if plan is not None and self._may_use(plan)]
        self.judge.expect(Request(plan, self.search.name(plan)) for plan in expected)
        for words, added, undone in undone_alone:
            if undone is None:
                yield Difference(words, added, None, why="it goes with the axes of the mesh")
                continue
            judged, mine = self._estimate(undone), self.judge.judged[best]
            if judged is None:
                idle = [axis for axis, _ in undone.sizes if not undone.of(axis)]
                why = self.judge.refused.get(undone, "there was no time to estimate it")
                why = f"without it `{idle[0]}` splits nothing" if idle else why
                yield Difference(words, added, None, why=why)
                continue
            longer = judged.step - mine.step
            yield Difference(words, added, longer, judged.peak - mine.peak)

    def _rejected(self, best: Judged, second: Judged | None) -> Iterator[Rejected]:
        """What is nearest to the best and was not taken: what is faster first, then what is not."""
        judge = self.judge
        others: list[Judged] = []
        for j in judge.judged.values():  # of those that come to the same, the first
            shown = (best, *([second] if second else []), *others)
            if not any(_same(j, one) for one in shown):
                others.append(j)
        faster = sorted((j for j in others if not j.fits and j.step < best.step), key=_step)
        slower = sorted((j for j in others if j.fits and j.step >= best.step), key=_step)
        allowed = (1 - MARGIN) * judge.budget
        for j in faster[: _REJECTED // 2]:
            over = byte_words(int(j.peak - allowed))
            yield Rejected(j, f"does not fit, by {over} with what must stay free")
        for j in slower[: _REJECTED - min(len(faster), _REJECTED // 2)]:
            yield Rejected(j, f"slower by {time_words(j.step - best.step)}")


def _step(judged: Judged) -> float:
    return judged.step


def _alike(one: Plan, other: Plan) -> bool:
    """Whether two plans split the same, whatever else they say."""
    return replace(one, settings=(), words=()) == replace(other, settings=(), words=())


def _same(one: Judged, other: Judged) -> bool:
    """Whether nobody would see a difference: neither in time nor in memory."""
    near = lambda a, b: abs(a - b) <= _SAME * b
    return near(one.step, other.step) and near(one.peak, other.peak)


def _undone(best: Plan, base: Plan) -> Iterator[tuple[str, bool, Plan | None]]:
    """The differences between two plans, as words, and the best with each of them undone."""
    mine, theirs = dict(best.sizes), dict(base.sizes)
    if mine != theirs:
        words = " ".join(f"{axis}={size}" for axis, size in best.sizes)
        yield f"mesh {words}", True, None
    for level in LEVELS:
        ours, others = best.at(level), base.at(level)
        for x in ours:
            if x not in others:
                undone = best.with_lines(level, [y for y in ours if y != x])
                yield _words(x), True, undone
        for x in others:
            if x not in ours:
                there = x.axis in mine
                yield _words(x), False, best.with_lines(level, [*ours, x]) if there else None
        kept = [x for x in ours if x in others]
        if kept != [x for x in others if x in ours]:
            order = [x for x in others if x in ours]
            swap = iter(order)
            yield (
                f"order of {'rules' if level == 'rules' else level}",
                True,
                best.with_lines(level, [next(swap) if y in order else y for y in ours]),
            )
    for word in dict.fromkeys((*dict(best.words), *dict(base.words))):
        ours_said, theirs_said = dict(best.words).get(word), dict(base.words).get(word)
        if ours_said != theirs_said:
            said = ours_said or theirs_said
            yield f"{word} = {said}", ours_said is not None, best.with_word(word, theirs_said)
    for name, value in best.settings:
        other = dict(base.settings)[name]
        if value != other:
            yield f"{name}={value}", True, best.with_setting(name, other)


def _words(line: Line) -> str:
    """A line as a layout file has it, with its list where that is not `rules`."""
    rule = f"{line.dim} -> {line.axis}"
    said = dict(line.attributes)
    if "microbatches" in said:
        dim, count = said["microbatches"]
        said["microbatches"] = {dim: count}
    text = line_words({"rule": rule, **said} if said else rule)
    return text if line.level == "rules" else f"{line.level}: {text}"
