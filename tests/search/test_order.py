"""The estimate puts layouts into the order of the TPU compiler, as far as that was asked."""

import json

import pytest

from benchmarks.estimate_order import SAID, Order, find
from benchmarks.workloads import WORKLOADS

pytestmark = pytest.mark.slow
COMPILED = json.loads(SAID.read_text())
ENOUGH = 12


# `8b 2k`, of the same model as `8b 8k`, is left to the benchmark.
@pytest.mark.parametrize("name", ["8b 8k", "gpt2 v5e", "experts"])
def test_the_order_is_that_of_the_compiler(name):
    """Of every second way, as estimates take long; the benchmark has all."""
    workload = WORKLOADS[name]
    ways = [way for way in workload.ways if way in COMPILED[name]][::2]
    found = [find(name, workload, way, SAID, None, compiled_only=True) for way in ways]
    order = Order([each for each in found if each is not None])
    assert len(order.found) >= ENOUGH
    assert order.spearman >= 0.9 and order.regret <= 0.05 and not order.wrongly_fit
