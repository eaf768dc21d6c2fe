"""What a search has found, put together: the best, what it is worth, and what was not taken."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Iterator
from dataclasses import replace

from meshdsl.errors import MeshDSLError
from meshdsl.layout import LEVELS, Rule
from meshdsl.layout_search.check import check, nothing_fits
from meshdsl.layout_search.climb import Climb
from meshdsl.layout_search.constraints import Constraints
from meshdsl.layout_search.found import Difference, Found, Judged, frontier_of
from meshdsl.layout_search.judge import MARGIN, SAME, Judge, rank
from meshdsl.layout_search.plan import Plan, attributes, layout_of
from meshdsl.layout_search.text import line_words
from meshdsl.layout_search.workload import Workload
from meshdsl.predict.time.uncertainty import close

_SHARE = 0.85  # of the time goes to the search; the rest to what its result is worth
_REJECTED = 6


def find(
    workload: Workload,
    constraints: Constraints,
    *,
    seconds: float | None = 10.0,
    evaluations: int | None = None,
    began: float | None = None,
) -> Found:
    """The layout under which a step of `workload` is fastest, of those that obey `constraints`.

    Args:
      seconds: that the search may take; None for no limit.
      evaluations: how many estimates the search may make, before those that say what its result is
        worth. With it, and without `seconds`, a search finds the same each time.
      began: when the search began, as `time.monotonic` counts; by default now.

    Raises:
      MeshDSLError: no layout that obeys can be used at all.
    """
    began = time.monotonic() if began is None else began
    target = workload.target
    budget = min((x for x in (constraints.memory, target.chip.hbm) if x), default=sys.maxsize)
    until = None if seconds is None else began + _SHARE * seconds
    climb = Climb(workload, constraints, budget, until, evaluations)
    check(constraints, workload, climb.dims)
    climb.run()
    judged = climb.judge.judged
    if not judged:
        raise _of_no_use(climb)
    if not any(one.fits for one in judged.values()):
        raise nothing_fits(constraints, target, min(judged.values(), key=lambda one: one.peak))
    return _found(climb, None if seconds is None else began + seconds, began)


def _of_no_use(climb: Climb) -> MeshDSLError:
    """The error of a search in which no plan could be estimated."""
    title, target = climb.workload.title, climb.workload.target
    if reasons := list(climb.judge.refused.values()):
        return MeshDSLError(
            f"search: no layout that obeys can be used for {title}; of the first one that was "
            f"tried: {reasons[0]}"
        )
    sizes = ", ".join(f"`{dim}`={'/'.join(map(str, n))}" for dim, n in climb.dims.items())
    return MeshDSLError(
        f"search: no dim of {title} divides over the {target.devices} devices of {target}; its "
        f"dims are {sizes}"
    )


def _found(climb: Climb, until: float | None, began: float) -> Found:
    judge, judged = climb.judge, climb.judge.judged
    while True:
        # What is estimated to say what the best is worth may be better still.
        best = climb.ranked()[0]
        shipped = _shipped(climb, best)
        differences = tuple(_differences(climb, best, shipped, until)) if shipped else ()
        if climb.ranked()[0] == best:
            break
    mine = judged[best]
    bare = lambda plan: replace(plan, settings=(), words=())
    unlike = [j for p, j in judged.items() if j.fits and bare(p) != bare(best)]
    fitting = _unlike([j for j in judged.values() if j.fits])
    second = min((j for j in unlike if not _same(j, mine)), key=rank, default=None)
    return Found(
        title=climb.workload.title,
        target=str(climb.workload.target),
        budget=judge.budget,
        margin=MARGIN,
        best=mine,
        second=second,
        frontier=frontier_of(judged.values()),
        shipped=judged[shipped] if shipped else None,
        differences=differences,
        rejected=_rejected(judge, mine, second),
        explained=len(judged),
        compiled=0,
        seconds=time.monotonic() - began,
        ended=climb.ended,
        fitting=fitting,
        close=tuple(close(fitting, [mine])),
    )


def _shipped(climb: Climb, best: Plan) -> Plan | None:
    """The best of the shipped layouts that fit, also with the settings of the best plan."""
    named = [plan for plan in climb.ranked() if climb.name(plan)]
    for plan in named[:1]:
        _estimate(climb, replace(plan, settings=best.settings))
    fitting = (p for p in climb.ranked() if climb.name(p) and climb.judge.judged[p].fits)
    return next(fitting, None)


def _estimate(climb: Climb, plan: Plan) -> Judged | None:
    """The estimate of a plan that obeys."""
    try:
        breaks = climb.breaks(layout_of(plan), plan)
    except MeshDSLError:
        return None
    return None if breaks else climb.judge(plan, climb.name(plan))


def _same(one: Judged, other: Judged) -> bool:
    """Whether nobody would see a difference: neither in time nor in memory."""
    near = lambda a, b: abs(a - b) <= SAME * b
    return near(one.step, other.step) and near(one.peak, other.peak)


def _unlike(some: Iterable[Judged], known: Iterable[Judged] = ()) -> tuple[Judged, ...]:
    """Those that are like none of the `known`; of those that come to the same, the first."""
    found: list[Judged] = []
    for j in some:
        if not any(_same(j, one) for one in (*known, *found)):
            found.append(j)
    return tuple(found)


def _rejected(judge: Judge, best: Judged, second: Judged | None) -> tuple[Judged, ...]:
    """What is nearest to the best and was not taken: what is faster first, then what is not."""
    shown = [best, *([second] if second else [])]
    others = sorted(_unlike(judge.judged.values(), shown), key=lambda judged: judged.step)
    faster = [j for j in others if not j.fits and j.step < best.step][: _REJECTED // 2]
    slower = [j for j in others if j.fits and j.step >= best.step]
    return (*faster, *slower[: _REJECTED - len(faster)])


# -- what the differences are worth --------------------------------------------------------------


def _differences(climb: Climb, best: Plan, base: Plan, until: float | None) -> Iterator[Difference]:
    """Each difference between two plans, undone alone."""
    mine = climb.judge.judged[best]
    for words, added, undone in _undone(best, base):
        if undone is None:
            yield Difference(words, added, None, why="it goes with the axes of the mesh")
            continue
        late = until is not None and time.monotonic() > until
        judged = climb.judge.judged.get(undone) if late else _estimate(climb, undone)
        if judged is not None:
            yield Difference(words, added, judged.step - mine.step, judged.peak - mine.peak)
            continue
        idle = [axis for axis, _ in undone.sizes if not undone.of(axis)]
        why = climb.judge.refused.get(undone, "there was no time to estimate it")
        why = f"without it `{idle[0]}` splits nothing" if idle else why
        yield Difference(words, added, None, why=why)


def _undone(best: Plan, base: Plan) -> Iterator[tuple[str, bool, Plan | None]]:
    """The differences between two plans, as words, and the best with each of them undone."""
    mine = dict(best.sizes)
    if mine != dict(base.sizes):
        yield f"mesh {' '.join(f'{axis}={size}' for axis, size in best.sizes)}", True, None
    for level in LEVELS:
        ours, others = best.at(level), base.at(level)
        for x in (x for x in ours if x not in others):
            yield _words(x), True, best.with_list(level, [y for y in ours if y != x])
        for x in (x for x in others if x not in ours):
            yield _words(x), False, best.with_list(level, [*ours, x]) if x.axis in mine else None
        order = [x for x in others if x in ours]
        if order != [x for x in ours if x in others]:
            swap = iter(order)
            undone = best.with_list(level, [next(swap) if y in order else y for y in ours])
            yield f"order of {level}", True, undone
    ours, theirs = dict(best.words), dict(base.words)
    for word in dict.fromkeys((*ours, *theirs)):
        if (one := ours.get(word)) != (other := theirs.get(word)):
            yield f"{word} = {one or other}", one is not None, best.with_word(word, other)
    for name, value in best.settings:
        if value != (other := dict(base.settings)[name]):
            yield f"{name}={value}", True, best.with_setting(name, other)


def _words(rule: Rule) -> str:
    """A rule as a layout file has it, with its list where that is not `rules`."""
    text = line_words({"rule": f"{rule.dim} -> {rule.axis}", **attributes(rule)})
    return text if rule.level == "rules" else f"{rule.level}: {text}"
