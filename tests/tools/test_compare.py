"""Layouts side by side: the best first, and why the others are not."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from meshdsl.predict.compiler.report import ChipMemory
from meshdsl.predict.explanation import Estimate
from meshdsl.tools.compare import Row, best_first, side_by_side, table
from tests.tools.test_compiled_text import REPORT

FAST = Row("fsdp", "data=64", True, 2**30, 2**34, 0.5, 0.5, 0.1, (("data", 10**9),))
SLOW = Row("tensor", "model=64", True, 2**31, 2**34, 1.5, 0.2, 0.6, (("model", 10**10),))
LARGE = Row("data", "data=64", False, 2**35, 2**34, 0.4, 0.6, 0.0)
LARGER = Row("zero1", "data=64", False, 2**36, 2**34, 0.3, 0.6, 0.0)
BROKEN = Row("mine", "", error="rule 2: no dim `heds`")


def test_what_fits_comes_first_and_the_fastest_of_it():
    assert best_first([BROKEN, LARGER, SLOW, LARGE, FAST]) == [FAST, SLOW, LARGE, LARGER, BROKEN]


def test_the_table_says_by_how_much_something_does_not_fit_and_what_is_wrong_with_the_rest():
    lines = table([FAST, LARGE, BROKEN]).splitlines()
    said = [" ".join(line.split()) for line in lines]
    assert said[:2] == [
        "layout mesh fits peak step MFU exposed collectives by axis by",
        "fsdp data=64 yes 1.00 GiB 500 ms 50.0% 10% data 953.7 MiB estimate",
    ]
    assert "no, by 16.00 GiB" in lines[2]
    assert lines[3].endswith("rule 2: no dim `heds`")


def test_what_the_compiler_judged_stands_before_what_is_estimated():
    judged = replace(SLOW, by="compiler")
    assert best_first([FAST, judged, LARGE]) == [judged, FAST, LARGE]


@pytest.mark.parametrize("peak, shown", [(2**30, 2**30), (None, 2**31)])
def test_of_what_is_compiled_it_shows_the_peak_as_explain_does(peak, shown):
    memory = ChipMemory(needed=2**31, capacity=2**34, peak=peak)
    report = replace(REPORT, memory=memory)
    assert Row.compiled("fsdp", {"data": 8, "model": 2}, report).peak == shown


def test_whether_it_fits_may_not_be_known():
    assert table([Row("fsdp", "data=8", fits=None, peak=2**30)]).splitlines()[1].split()[2] == "?"


def unsure(name, step, peak=2**30, **deviations):
    estimate = Estimate(step, deviations)
    return replace(FAST, layout=name, step=step, peak=peak, estimate=estimate)


UNSURE = [unsure("fsdp", 0.5, a=0.05), unsure("zero1", 0.52, b=0.05), unsure("data", 0.53, a=0.05)]


def test_where_the_estimate_cannot_tell_which_is_faster_it_says_what_to_compile():
    last = table([*UNSURE, LARGE]).splitlines()[-1]
    assert last == (
        "The order of these 2 is within what the estimate is good for: fsdp, zero1. Compile them: "
        "--compile 2 (in Python compiled=2)"
    )
    same = [replace(UNSURE[0], mesh="data=8 model=8"), replace(UNSURE[1], layout="fsdp")]
    assert ": fsdp data=8 model=8, fsdp data=64. Compile" in table(same)
    assert len(table([UNSURE[0], UNSURE[2], SLOW]).splitlines()) == 4  # nothing to say


def test_what_is_compiled_is_the_best_and_then_the_likeliest_to_be_faster(monkeypatch):
    compiled = {"fsdp": 0.6, "zero1": 0.55}
    estimates = [*UNSURE, unsure("ulysses", 0.51, a=0.051)]

    def explained(case):
        return next(row for row in estimates if row.layout == case.layout), case.layout

    def judged(row, analysis):
        assert analysis == row.layout
        return replace(row, by="compiler", step=compiled[row.layout])

    monkeypatch.setattr("meshdsl.tools.compare._estimated", explained)
    monkeypatch.setattr("meshdsl.tools.compare._compiled", judged)
    cases: Any = [SimpleNamespace(layout=row.layout) for row in estimates]
    assert [row.layout for row in side_by_side(cases, 1)] == ["fsdp", "ulysses", "zero1", "data"]
    left = table(side_by_side(cases, 1)).splitlines()[-1]
    assert left.startswith("Not compiled, and perhaps faster within what the estimate is good for")
    assert left.endswith(": zero1. Compile them: --compile 2 (in Python compiled=2)")
    rows = side_by_side(cases, 2)
    assert [(row.layout, row.by) for row in rows[:2]] == [
        ("zero1", "compiler"),
        ("fsdp", "compiler"),
    ]
    assert rows[0].to_dict()["estimated"] == 0.52
    assert rows[0].to_dict()["uncertainty"] == pytest.approx(0.05)


def test_a_machine_without_figures_has_no_times():
    row = Row("fsdp", "data=8", fits=True, peak=2**20)
    assert table([row]).splitlines()[1].split() == "fsdp data=8 yes 1.0 MiB none estimate".split()
