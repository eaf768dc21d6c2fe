"""Which processes are slow, by what they measure of their steps."""

import json

import numpy as np
import pytest

from meshdsl.train.watch import pace
from meshdsl.train.watch.events import Events, read_events
from meshdsl.train.watch.pace import Pace, Report, report_of, slow


def reports_of(rng, hosts, device, own, spread, slower=None, steps=60):
    """What hosts report that go in step: each step takes as long as the slowest of all.

    Args:
      device: seconds of a step on the devices.
      own: seconds of a host's own work, in the mean.
      spread: of its logarithm, from step to step.
      slower: what the own work of some hosts is multiplied by.
    """
    work = own * rng.lognormal(0.0, spread, (steps, hosts))
    for host, factor in (slower or {}).items():
        work[:, host] *= factor
    took = np.maximum(work.max(1), device * rng.lognormal(0.0, 0.02, steps))
    return {
        host: report_of(f"host-{host}", list(zip(took, took - work[:, host], strict=True)))
        for host in range(hosts)
    }


EQUAL = {
    "devices are the slowest": dict(device=1.0, own=0.2, spread=0.3),
    "input is the slowest": dict(device=0.2, own=1.0, spread=0.05),
    "now the one and now the other": dict(device=1.0, own=1.0, spread=0.5),
    "input is slow now and then": dict(device=1.0, own=0.1, spread=1.5),
}


@pytest.mark.parametrize("hosts", [2, 3, 8, 64])
@pytest.mark.parametrize("kind", EQUAL)
def test_equal_hosts_are_not_slow_whatever_chance_does(kind, hosts):
    rng = np.random.default_rng(0)
    drawn = [slow(reports_of(rng, hosts, **EQUAL[kind])) for _ in range(200)]
    assert sum(map(bool, drawn)) <= 1


@pytest.mark.parametrize("hosts", [2, 3, 8, 64])
def test_a_host_whose_devices_wait_for_it_is_named(hosts):
    rng = np.random.default_rng(0)
    for _ in range(50):
        found = slow(reports_of(rng, hosts, 1.0, 0.2, 0.3, {1: 8.0}))
        assert list(found) == [1]
    assert found[1].startswith("its devices wait for it 1.")


def test_two_slow_hosts_of_eight_are_named_and_one_that_holds_up_nobody_is_not():
    rng = np.random.default_rng(0)
    found = slow(reports_of(rng, 8, 1.0, 0.1, 0.1, {2: 15.0, 5: 15.0, 7: 5.0}))
    assert set(found) == {2, 5}


def test_workers_that_do_not_go_in_step_are_told_apart_by_their_steps():
    reports = {i: Report("a", 1.0 + 0.01 * i, 0.0, 0.0) for i in range(4)}
    assert not slow(reports)
    reports[3] = Report("a", 1.3, 0.0, 0.0)
    assert slow(reports) == {3: "its steps take 1.3 s, those of others 1 s"}


def test_a_change_of_verdict_is_said_once(tmp_path, monkeypatch):
    others = {"1": Report("b", 1.0, 0.5, 0.0)}
    monkeypatch.setattr(pace.store, "count", lambda: 2)
    monkeypatch.setattr(pace.store, "put_again", lambda key, value: stored.update({"0": value}))
    monkeypatch.setattr(pace.store, "values_below", lambda key: stored)
    monkeypatch.setattr(pace, "INTERVAL", 0.0)
    said, stored = [], {}
    events = Events(tmp_path / "events.jsonl")
    with events:
        events._file = (tmp_path / "events.jsonl").open("w", buffering=1)
        seen = Pace(said.append, events)
        metrics = []
        for step in range(1, 121):
            one = others["1"] if step < 70 else Report("b", 1.0, 0.0, 0.0)
            stored["1"] = json.dumps(vars(one))
            metrics.append(seen.step(step, 1.0, 0.9))
    assert said == [
        "process 1 (b) is slow: its devices wait for it 0.5 s of each step of 1 s, those of "
        "others 0 s",
        "no process is slow any more",
    ]
    found = read_events(tmp_path / "events.jsonl")
    assert [(each["event"], each["step"], each["hosts"]) for each in found] == [
        ("slow", 20, ["b"]),
        ("slow", 80, []),
    ]
    assert metrics[18] == {} and metrics[19] == {"slow_processes": 1}
    assert metrics[-1] == {"slow_processes": 0}


def test_a_run_of_one_process_tells_nothing():
    assert Pace(print, Events()).step(1, 1.0, 0.0) == {}
