"""A second process that estimates ahead changes nothing of what a search finds."""

import os
import subprocess
import sys
import textwrap
from dataclasses import replace
from typing import cast

import pytest

from meshdsl.layout_search.ahead import Ahead, Request, can_copy
from meshdsl.layout_search.judge import Judge
from meshdsl.layout_search.plan import Plan
from tests.search.sample import FOUND
from tests.search.workloads import workload

ENOUGH = sys.platform == "linux" and len(os.sched_getaffinity(0)) > 1


def fresh(code: str) -> str:
    """What code prints in a process in which JAX has made no devices yet."""
    command = [sys.executable, "-c", textwrap.dedent(code)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_process_with_devices_is_not_copied():
    import jax

    jax.devices()
    assert not can_copy()


@pytest.mark.slow
@pytest.mark.skipif(not ENOUGH, reason="one core, or not Linux")
def test_what_is_found_is_the_same_with_a_second_process():
    out = fresh("""
        from meshdsl.commands.settings import model_values
        from meshdsl.commands.training_workload import TrainingWorkload
        from meshdsl.compiled.topology import compile_only
        from meshdsl.layout_search import outcome
        from meshdsl.layout_search.ahead import can_copy
        from meshdsl.layout_search.constraints import Constraints
        from meshdsl.machine import find_target
        from meshdsl.train.config import Config
        from meshdsl.train.settings import override

        compile_only()
        config = override(Config(), ["model.layers=2"], **model_values("gpt2-124m"), batch=32)

        def found(two):
            assert can_copy() or not two
            workload = TrainingWorkload(config, find_target("v5e:2x4"), "gpt2")
            limits = {"seconds": None, "evaluations": 8}
            return outcome.find(workload, Constraints(), two_processes=two, **limits)

        both = [found(two) for two in (True, False)]
        same = ("best", "second", "frontier", "shipped", "differences", "rejected")
        print(all(getattr(both[0], name) == getattr(both[1], name) for name in same))
    """)
    assert out.split() == ["True"]


@pytest.mark.slow
@pytest.mark.skipif(not ENOUGH, reason="one core, or not Linux")
def test_a_copy_that_dies_or_fails_is_done_without():
    out = fresh("""
        import os, time
        from meshdsl.layout_search.ahead import Ahead, Request
        from meshdsl.layout_search.plan import Plan

        parent = os.getpid()
        requests = [Request(Plan((("a", n),), ())) for n in range(9)]

        def estimate(request):
            number = request.plan.sizes[0][1]
            if os.getpid() != parent:
                time.sleep(0.05)
                if number == 3:
                    raise ValueError
                if number == 5:
                    os._exit(1)
            return f"{number}"

        ahead = Ahead(estimate)
        ahead.expect(requests)
        print(*[ahead.take(r) for r in requests])
        ahead.expect(requests)
        print(*[ahead.take(r) for r in reversed(requests)])
        ahead.close()
    """)
    digits = [str(n) for n in range(9)]
    assert out.split() == digits + digits[::-1]


def test_a_judge_keeps_what_was_estimated_ahead_and_nobody_asked_for():
    class Known:
        def taken(self):
            return {
                Request(refused): "it does not divide",
                Request(new): other,
                Request(old): other,
            }

    refused, new, old = (Plan((("a", n),), ()) for n in range(3))
    one, other = FOUND.best, replace(FOUND.best, step=2 * FOUND.best.step)
    judge = Judge(workload("v5e:2x4"), 2**34, {old: one}, ahead=cast(Ahead, Known()))
    judge.keep_all()
    assert judge.judged == {old: one, new: other}
    assert judge.refused == {refused: "it does not divide"}


@pytest.mark.skipif(not ENOUGH, reason="one core, or not Linux")
def test_all_that_a_copy_has_found_can_be_taken_but_for_what_it_practised_with():
    out = fresh("""
        import time
        from meshdsl.layout_search.ahead import Ahead, Request
        from meshdsl.layout_search.plan import Plan

        first, second = (Request(Plan((("a", n),), ())) for n in range(2))
        ahead = Ahead(lambda request: f"{request.plan.sizes[0][1]}")
        ahead.practise(first)
        ahead.expect([second])
        while not (found := ahead.taken()):
            time.sleep(0.01)
        print(found == {second: "1"}, ahead.taken(), ahead.take(first))
        ahead.close()
    """)
    assert out.split() == ["True", "{}", "0"]
