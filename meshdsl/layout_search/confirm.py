"""What the compiler of a machine says of the best that a search has found."""

from __future__ import annotations

from dataclasses import replace

from meshdsl.errors import MeshDSLError
from meshdsl.figures import byte_words
from meshdsl.layout_search.found import Found, Judged, frontier_of
from meshdsl.layout_search.judge import rank
from meshdsl.layout_search.workload import Workload
from meshdsl.predict.time.uncertainty import close


def confirmed(found: Found, workload: Workload, count: int) -> Found:
    """The same search, with its best candidates judged by the compiler.

    The best by the estimate is compiled first, then whatever is likeliest to be faster than the
    best so far, until `count` of them fit or none is within the estimate's uncertainty of the best.
    Where the uncertainty is not known they come in the order of their estimates. Of two or more one
    is the best shipped layout, so that the best is not slower than that. What the compiler refuses,
    or says does not fit, is not recommended.

    Raises:
      MeshDSLError: the compiler is not installed, or refuses all candidates.
    """
    passed, refused, waiting = _likeliest_compiled(found, workload, count)
    if not passed:
        raise MeshDSLError(
            f"search: the compiler refuses all {len(refused)} candidates; of the first one: "
            + refused[0].refused
        )
    best, *others = sorted(passed, key=rank)
    by_candidate = {id(j.candidate): j for j in (*passed, *refused)}
    # Below the least memory of what was compiled there is but the estimate to go by.
    sure = frontier_of(passed)
    left = [j for j in found.frontier if id(j.candidate) not in by_candidate]
    # Figures of the compiler and of the estimate do not stand side by side where they need not.
    unlike = [j for j in others if j.candidate.layout != best.candidate.layout]
    shipped = found.shipped
    return replace(
        found,
        best=best,
        second=next(iter([*unlike, *others]), found.second),
        frontier=(*(j for j in left if j.peak < sure[0].peak), *sure),
        shipped=by_candidate.get(id(shipped.candidate), shipped) if shipped else None,
        differences=found.differences if best.candidate is found.best.candidate else (),
        rejected=(*refused, *(j for j in found.rejected if id(j.candidate) not in by_candidate)),
        compiled=len(by_candidate),
        fitting=tuple(waiting),
        close=tuple(close(waiting, passed)),
    )


def _likeliest_compiled(
    found: Found, workload: Workload, count: int
) -> tuple[list[Judged], list[Judged], list[Judged]]:
    """What was compiled and fits, what was compiled and does not, and what was not compiled."""
    near = [found.best, found.second, *found.frontier, *found.rejected, found.shipped]
    unique = {id(j.candidate): j for j in (*near, *found.fitting) if j is not None and j.fits}
    waiting = sorted(unique.values(), key=rank)
    passed: list[Judged] = []
    refused: list[Judged] = []
    while len(passed) < count:
        shipped = found.shipped if count > 1 and found.shipped in waiting else None
        if shipped and passed and len(passed) == count - 1:
            judged = shipped
        elif passed and passed[0].estimate and passed[0].estimate.deviations:
            judged = next(iter(close(waiting, passed)), shipped)
        else:
            judged = next((j for j in waiting if j in near), None)
        if judged is None:
            break
        waiting.remove(judged)
        compiled = _compiled(judged, found.budget, workload)
        (passed if compiled.fits else refused).append(compiled)
    return passed, refused, waiting


def _compiled(judged: Judged, budget: int, workload: Workload) -> Judged:
    """What the compiler says of a candidate."""
    candidate = judged.candidate
    try:
        report = workload.compile(candidate.layout, dict(candidate.settings))
    except MeshDSLError as error:
        return replace(judged, judge="compiler", fits=False, refused=str(error))
    peak, time = report.memory.needed, report.time or judged
    fits = report.fits is not False and peak <= budget
    refused = "" if fits else f"it needs {byte_words(peak)}"
    figures = {"step": time.step, "compute": time.compute, "exposed": time.exposed}
    return replace(judged, judge="compiler", peak=peak, fits=fits, refused=refused, **figures)
