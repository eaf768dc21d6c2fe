"""Where the time of a run went: what is in events and metrics sums to all of it."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshdsl import MeshDSLError
from meshdsl.train.config import Log
from meshdsl.train.startup import Startup
from meshdsl.train.watch.events import Events, lost, read_events
from meshdsl.train.watch.goodput import CAUSES, goodput, goodput_of
from meshdsl.train.watch.metrics_file import MetricsFile, last_line, read_metrics
from meshdsl.train.watch.step_timer import BESIDE
from tests.train.watch.runs import measured, watch


class Clock:
    """The times of a run that is not run."""

    def __init__(self, folder):
        self.now, self.folder = 1000.0, folder
        self.events = folder / "events.jsonl"

    def event(self, event, at=None, **values):
        line = {"time": self.now if at is None else at, "event": event, **values}
        with self.events.open("a") as file:
            file.write(json.dumps(line) + "\n")

    def start(self, done, seconds, down=0.0):
        """A start that goes on after `done`, and its first step."""
        self.now += down
        seen = last_line(self.folder / "metrics.jsonl") or {"time": None}
        at = {"written": self.now + seconds / 2, "seen": seen["time"]}
        self.event("start", step=done, steps=99, **at)
        self.now += seconds
        metrics = MetricsFile(self.folder / "metrics.jsonl", done)
        if metrics.dropped:
            self.event("lost", at=self.now - seconds / 2, step=done, **lost(metrics.dropped))
        each = {"startup_import_seconds": seconds / 4, "startup_first_step_seconds": seconds * 0.75}
        whole = {"startup_seconds": seconds, **each}
        self.event("first_step", step=done + 1, **whole)
        metrics.write({"step": done + 1, "time": self.now, "seconds": seconds / 4, **whole})
        return metrics

    def step(self, metrics, step, seconds, **values):
        self.now += seconds + sum(value for key, value in values.items() if key.endswith("seconds"))
        line = {"step": step, "time": self.now, "seconds": seconds, "step_seconds": seconds}
        metrics.write(line | {"wait_seconds": seconds / 2} | values)


def test_time_is_told_apart_by_causes(tmp_path):
    clock = Clock(tmp_path)
    metrics = clock.start(0, 8.0)
    clock.step(metrics, 2, 2.0)
    clock.step(metrics, 3, 2.0, checkpoint_seconds=0.5)
    clock.step(metrics, 4, 2.0, validation_seconds=0.25)
    metrics.close()
    clock.now += 1.0  # of the step that the kill cut off
    metrics = clock.start(2, 4.0, down=5.0)  # the first of its steps is 3
    clock.step(metrics, 4, 3.0, input_seconds=1.0)
    clock.step(metrics, 5, 0.1, input_seconds=1.0, wait_seconds=0.0)
    clock.step(metrics, 6, 3.0, skipped=1.0)
    clock.now += 1.5
    clock.event("end", step=6, reason="finished", checkpoint_seconds=0.5)
    found = goodput(tmp_path)
    expected = {
        "start": 12.0,
        "down": 6.0,  # the step that was cut off left no sign
        "lost": 4.0,  # steps 3 and 4 of the first start
        "checkpoint": 1.0,
        "validation": 0.25,
        "input": 1.0,
        "skipped": 3.0,
        "rest": 1.0,
    }
    assert {cause: found.losses[cause] for cause in expected} == pytest.approx(expected)
    assert found.good == pytest.approx(2.0 + 4.0 + 0.1)
    assert found.wall == pytest.approx(clock.now - 1000.0)
    assert found.share == pytest.approx(found.good / found.wall)
    assert (found.starts, found.steps, found.lost_steps) == (2, 6, 2)
    assert found.start_parts == pytest.approx({"import": 3.0, "first_step": 9.0})


def test_a_start_without_a_step_is_unfinished_until_its_last_sign_or_now(tmp_path):
    clock = Clock(tmp_path)
    clock.event("start", step=0, steps=9, written=1002.0)
    assert goodput(tmp_path).start_parts == {"unfinished": 2.0}
    assert goodput(tmp_path, now=1007.0).losses["start"] == 7.0


seconds = st.floats(0.0, 100.0)
beside = st.dictionaries(st.sampled_from([f"{what}_seconds" for what in BESIDE]), seconds)
steps_of_start = st.lists(st.tuples(seconds, beside, st.booleans()), max_size=6)


a_start = st.tuples(st.floats(0.01, 100.0), seconds, steps_of_start, st.integers(0, 8))


@given(st.lists(a_start, min_size=1, max_size=5))
def test_all_that_is_lost_and_what_is_not_sum_to_the_time_of_the_run(tmp_path_factory, starts):
    clock, last, done = Clock(tmp_path_factory.mktemp("run")), 0.0, 0
    for down, starting, steps, back in starts:
        done = max(0, done - back)
        last = clock.now + down
        metrics = clock.start(done, starting, down)
        done += 1
        for spent, values, skipped in steps:
            done += 1
            clock.step(metrics, done, spent, **values, **({"skipped": 1.0} if skipped else {}))
        metrics.close()
    found = goodput(clock.folder)
    assert last <= clock.now and set(found.losses) == set(CAUSES)
    assert all(value >= 0 for value in (found.good, *found.losses.values()))
    assert found.good + sum(found.losses.values()) == pytest.approx(found.wall, abs=1e-6)
    first = read_events(clock.events)[0]["time"]
    assert found.wall == pytest.approx(clock.now - first, abs=0.01 * (len(starts) + 1))
    assert found.steps == len(list(read_metrics(clock.folder / "metrics.jsonl")))


numbers = st.one_of(st.floats(), st.integers(-(10**20), 10**20), st.text(max_size=3), st.none())
names = st.sampled_from(
    "seconds checkpoint_seconds steps seen written startup_import_seconds".split()
)
any_event = st.tuples(
    st.floats(0, 1e6),
    st.sampled_from("start first_step lost rollback checkpoint end other".split()),
    st.dictionaries(names, numbers),
).map(lambda found: {**found[2], "time": found[0], "event": found[1]})
metric = st.sampled_from("time seconds step_seconds input_seconds wait_seconds skipped".split())
any_line = st.dictionaries(metric, st.floats()).map(lambda values: {"step": 1, **values})


@given(st.lists(any_event), st.lists(any_line), st.none() | st.floats(0, 1e7))
def test_whatever_was_written_the_sum_holds_and_nothing_is_negative(events, lines, now):
    found = goodput_of(events, lines, now)
    assert (found is None) == (not [each for each in events if each["event"] == "start"])
    if found:
        assert all(value >= 0 for value in (found.good, *found.losses.values()))
        assert found.good + sum(found.losses.values()) == pytest.approx(found.wall)


def test_a_run_without_a_start_has_none(tmp_path):
    with pytest.raises(MeshDSLError) as error:
        goodput(tmp_path)
    assert str(error.value) == (
        f"{tmp_path}: has no goodput, because no event says when it was started"
    )


def events_of(path, ends=None):
    """The events of a run of 4 steps, which goes back to step 2 once."""
    startup = Startup(already=1.0)
    with Events(path / "events.jsonl") as events:
        events.started(startup, 0, 8, path / "metrics.jsonl", processes=1)
        with watch(path, log=Log(), startup=startup, events=events) as seen:
            for step in (1, 2, 3, 4):
                seen.step(step, measured(step))
                if step == 2:
                    seen.settle()
                    with seen.spent("checkpoint"):
                        pass
            seen.rewind(2)
            for step in (3, 4):
                seen.step(step, measured(step))
            seen.settle()
            with seen.spent("validation"):
                pass
        if ends:
            raise ends
        events.end("finished", 0.5)
    return read_events(path / "events.jsonl")


def test_a_run_writes_what_happens_to_it(tmp_path):
    found = events_of(tmp_path)
    assert [(each["event"], each.get("step")) for each in found] == [
        ("start", 0), ("first_step", 1), ("checkpoint", 2), ("rollback", 2), ("end", 4),
    ]  # fmt: skip
    start, first, _, back, end = found
    assert start["steps"] == 8 and start["written"] - start["time"] == pytest.approx(1.0, abs=0.9)
    assert first["startup_seconds"] == pytest.approx(first["time"] - start["time"], abs=0.1)
    assert (back["steps"], back["last"]) == (2, 4) and back["seconds"] >= 0
    assert end["reason"] == "finished" and end["checkpoint_seconds"] >= 0.5
    spent = goodput(tmp_path)
    assert (spent.steps, spent.lost_steps) == (4, 2) and spent.losses["start"] >= 1.0


def test_an_error_is_how_a_run_ends(tmp_path):
    with pytest.raises(MeshDSLError):
        events_of(tmp_path, MeshDSLError("no\n room"))
    end = read_events(tmp_path / "events.jsonl")[-1]
    assert (end["reason"], end["error"], end["step"]) == ("MeshDSLError", "no room", 4)


def test_half_a_line_that_a_kill_left_spoils_no_other(tmp_path):
    path = tmp_path / "events.jsonl"
    path.write_text('{"time": 1.0, "event": "start", "step": 0}\n{"time": 2.0, "eve')
    with Events(path) as events:
        events.started(Startup(), 3, 8, tmp_path / "none")
    assert [each["step"] for each in read_events(path)] == [0, 3]


def test_a_start_that_begins_nothing_and_other_processes_write_nothing(tmp_path):
    with Events(tmp_path / "events.jsonl"), Events() as other:
        other.started(Startup(), 0, 8, tmp_path / "none")
        other.end("finished")
    assert not list(tmp_path.iterdir())
