"""A process that stands still or dies is named by another, and one that ends is not missed."""

import os
import signal
import time

import pytest

from tests.hosts.test_hosts import COLLECTIVE, JOINED, begin, finish

FAST = """
    from meshdsl.hosts import heartbeat
    heartbeat._BEAT = 0.2
"""
SAYS = (
    "process {} has died or cannot be reached: no sign of life for {} s; the run ends with exit "
    "code 75, and can be resumed"
)


@pytest.mark.slow
@pytest.mark.parametrize("still", [1, 0])
def test_a_process_that_stands_still_is_missed(still):
    both, other = begin(FAST, JOINED, "print('here', flush=True); time.sleep(60)"), 1 - still
    assert [process.stdout.readline() for process in both] == ["here\n"] * 2
    both[still].send_signal(signal.SIGSTOP)
    began = time.monotonic()
    assert both[other].wait(60) == 75 and time.monotonic() - began < 20
    assert both[other].stderr.read() == f"process {other}: {SAYS.format(still, 1.8)}\n"
    both[still].kill()


@pytest.mark.slow
def test_an_error_that_comes_of_the_death_of_another_process_names_it():
    dies = """
    total(ones).block_until_ready()
    if me == 1:
        import os, signal
        os.kill(os.getpid(), signal.SIGKILL)
    for _ in range(1000):
        float(total(ones))
        time.sleep(0.01)
    """
    found = finish(begin(FAST, JOINED, COLLECTIVE, dies))
    assert [code for code, _, _ in found] == [75, -signal.SIGKILL], found
    assert "Traceback" not in found[0][2] and SAYS.format(1, 0.6) in found[0][2], found[0][2]


@pytest.mark.slow
def test_a_process_that_has_ended_is_not_missed():
    found = finish(begin(FAST, JOINED, "time.sleep(0.1 if me else 4)"))
    assert found == [(0, "", "")] * 2, os.linesep.join(map(str, found))


@pytest.mark.parametrize("slurm", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_the_death_of_process_0_is_one_sentence_of_each_other_process(slurm, monkeypatch):
    if slurm:  # with a proxy too, for other machines
        monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
        monkeypatch.setenv("no_proxy", "localhost")
    begun = "float(total(ones)); print('here', flush=True); time.sleep(60)"
    both = begin(JOINED, COLLECTIVE, begun, slurm=slurm)
    assert [process.stdout.readline() for process in both] == ["here\n"] * 2
    both[0].kill()
    began = time.monotonic()
    assert both[1].wait(60) == 75 and time.monotonic() - began < 20
    reported = both[1].stderr.read().splitlines()
    assert [line for line in reported if "JAX detected proxy variable" not in line] == [
        "process 1: process 0 has died or cannot be reached: its connection broke (Connection "
        "refused); the run ends with exit code 75, and can be resumed"
    ]
