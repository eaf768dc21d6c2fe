"""The estimate puts layouts into the order of the TPU compiler, as far as that was asked."""

import json

import pytest

from benchmarks.estimate_order import SAID, Found, Order, find
from benchmarks.workloads import WORKLOADS
from meshdsl.predict.explanation import Estimate

COMPILED = json.loads(SAID.read_text())
ENOUGH = 7


def way(name, estimated, replayed, **deviations):
    """A way with its seconds by the estimate and by the compiler."""
    estimate = Estimate(estimated, deviations)
    return Found(name, estimated, 0.0, 0.0, 1, True, 0.0, replayed=replayed, estimate=estimate)


def test_it_says_how_honest_the_uncertainty_is_and_what_is_worth_compiling():
    order = Order([way("a", 1.0, 1.15, x=0.1), way("b", 1.02, 1.05, y=0.1), way("c", 2, 2, x=0.2)])
    assert order.within == "67%, 100%; 67%, 100%"  # a is off by 1.5, and by 1.5 more than c
    assert [f.way for f in order.worth_compiling] == ["a", "b"]
    assert order.regret == pytest.approx(1.15 / 1.05 - 1) and order.regret_compiled == 0


@pytest.mark.slow
@pytest.mark.parametrize("name", ["8b 2k"])
def test_the_order_is_that_of_the_compiler(name):
    workload = WORKLOADS[name]
    ways = [way for way in workload.ways if way in COMPILED[name]]
    found = [find(name, workload, way, None, compiled_only=True) for way in ways]
    order = Order([each for each in found if each is not None])
    assert len(order.found) >= ENOUGH
    assert order.spearman >= 0.9 and order.regret <= 0.05 and not order.wrongly_fit
