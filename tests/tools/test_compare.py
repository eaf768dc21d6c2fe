"""Layouts side by side: the best first, and why the others are not."""

from dataclasses import replace

import pytest

from meshdsl.predict.compiler.report import ChipMemory
from meshdsl.tools.compare import Row, best_first, table
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


def test_a_machine_without_figures_has_no_times():
    row = Row("fsdp", "data=8", fits=True, peak=2**20)
    assert table([row]).splitlines()[1].split() == "fsdp data=8 yes 1.0 MiB none estimate".split()
