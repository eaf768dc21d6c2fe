"""What a compiler says of a search's best goes before what the estimate said."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from meshdsl.errors import MeshDSLError
from meshdsl.layout_search.confirm import confirmed
from meshdsl.layout_search.found import as_dict
from meshdsl.layout_search.text import describe
from meshdsl.predict.explanation import Estimate
from tests.search.sample import BEST, FOUND, FSDP, GIB, SHIPPED, SMALL


def compiler(says):
    """A workload whose compiler says of a mesh how many GiB and seconds, or what it refuses."""

    def compile(layout, settings):
        said = says[dict(layout.mesh).get("data", 1), dict(settings)["model.remat"]]
        if isinstance(said, str):
            raise MeshDSLError(said)
        needed, step = said
        time = SimpleNamespace(step=step, compute=step, exposed=0.0)
        return SimpleNamespace(
            memory=SimpleNamespace(needed=int(needed * GIB)), fits=True, time=time
        )

    workload: Any = SimpleNamespace(compile=compile)
    return workload


CONTEXT, TENSOR, PLAIN = (32, "none"), (16, "full"), (64, "full")


def test_the_fastest_by_the_compiler_is_the_best():
    says = {CONTEXT: (40, 2.1), TENSOR: (11, 2.05), PLAIN: (22, 2.2)}
    found = confirmed(FOUND, compiler(says), 3)
    assert found.best.candidate is SMALL.candidate and found.best.judge == "compiler"
    assert found.second is not None and found.second.candidate is BEST.candidate
    assert found.compiled == 3 and found.differences == ()
    assert found.shipped is not None and found.shipped.step == 2.2
    assert [j.step for j in found.frontier] == [2.05]  # the other is slower and larger


def test_the_best_shipped_layout_is_among_two_that_are_compiled():
    found = confirmed(FOUND, compiler({CONTEXT: (40, 2.3), PLAIN: (22, 2.2)}), 2)
    assert found.best.candidate is FSDP and found.compiled == 2
    # What was not compiled stands where it needs less memory than all that was.
    assert [(j.judge, j.step) for j in found.frontier] == [("estimate", 2.026), ("compiler", 2.2)]
    text = describe(found)
    assert "it is the shipped layout fsdp" in text and "`estimate` are not compiled" in text


def test_what_the_compiler_refuses_is_not_recommended():
    says = {CONTEXT: "out of memory", TENSOR: (97, 2.0), PLAIN: (22, 2.2)}
    found = confirmed(FOUND, compiler(says), 1)
    assert found.best.candidate is FSDP and found.compiled == 3
    said = [(j.judge, j.refused) for j in found.rejected[:2]]
    assert said == [("compiler", "out of memory"), ("compiler", "it needs 97.00 GiB")]
    assert all(j.candidate.layout != BEST.candidate.layout for j in found.frontier)


def test_figures_of_different_judges_are_not_held_against_each_other():
    found = confirmed(FOUND, compiler({CONTEXT: (40, 2.1)}), 1)
    assert found.second is SMALL and found.shipped is SHIPPED
    text = describe(found)
    rows = text.partition("collectives by axis")[2].splitlines()[1:4]
    assert [line.count("%") for line in rows] == [0, 1, 1]  # of memory, and not of time
    assert "compiler: fits" in rows[0] and "estimate: " in rows[1]


def unsure(judged, **deviations):
    return replace(judged, estimate=Estimate(judged.step, deviations))


def test_compilations_go_to_what_may_be_faster_and_end_where_nothing_may():
    best, small, shipped = unsure(BEST, a=0.1), unsure(SMALL, a=0.1, b=0.01), unsure(SHIPPED, c=0.3)
    found = replace(FOUND, best=best, second=None, frontier=(), rejected=(), shipped=None)
    found = replace(found, fitting=(best, small, shipped), close=(shipped,))
    assert "1 other may be faster, within what the estimate is good for: --compile K" in describe(
        found
    )
    says = {CONTEXT: (40, 2.4), PLAIN: (22, 2.3)}
    got = confirmed(found, compiler(says), 5)
    # The third has most in common with the best, and is 26 ms slower, give or take 10.
    assert got.compiled == 2 and got.best.candidate is FSDP and got.close == ()
    text = describe(got)
    assert "not compiled: the other 1 that fit, each slower by more than the estimate" in text
    assert as_dict(got)["best"]["uncertainty"] == 0.3 and as_dict(got)["best"]["estimated"] == 2.2
    once = confirmed(found, compiler(says), 1)
    assert [j.candidate for j in once.close] == [FSDP]
    assert "1 other may be faster, within what the estimate is good for: not compiled" in describe(
        once
    )


def test_where_the_compiler_refuses_all_it_is_an_error():
    says = dict.fromkeys((CONTEXT, TENSOR, PLAIN), "no")
    with pytest.raises(MeshDSLError, match="the compiler refuses all 3 candidates; of the first"):
        confirmed(replace(FOUND, rejected=()), compiler(says), 2)
