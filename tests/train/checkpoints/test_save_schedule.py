"""When a checkpoint is due."""

import itertools

import pytest

from meshdsl.train.checkpoints import save_schedule


@pytest.mark.parametrize(("every", "saved"), [(3, [3, 6, 9]), (0, [])])
def test_every_so_many_steps_or_never(every, saved):
    due = save_schedule.SaveSchedule(every=every).due
    assert [step for step in range(1, 10) if due(step)] == saved


@pytest.mark.parametrize(("pace", "first"), [(0.5, 0.5), (20.0, 60.0), (0.01, 1.0), (400.0, 400.0)])
def test_every_so_many_minutes_at_any_pace_and_rarely_asked(monkeypatch, pace, first):
    now, looks = [100.0], itertools.count()
    monkeypatch.setattr(save_schedule.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(save_schedule, "first_does", lambda make: (next(looks), make())[1])
    timer, saved, steps = (
        save_schedule.SaveSchedule(every=0, minutes=10),
        [],
        int(3600 / min(pace, 60)),
    )
    for step in range(1, steps + 1):
        now[0] += first if step == 1 else pace
        if timer.due(step):
            saved.append(now[0] - 100)
    gaps = [b - a for a, b in itertools.pairwise([0.0, *saved])]
    assert all(600 <= gap <= 600 + 2 * pace for gap in gaps)
    assert len(saved) >= min(steps * pace, 3600) // (600 + 2 * pace) - 1
    assert next(looks) <= min(steps, 40 * (len(saved) + 1))


def test_a_run_that_goes_back_is_asked_at_once(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(save_schedule.time, "monotonic", lambda: now[0])
    timer, saved = save_schedule.SaveSchedule(every=0, minutes=10), []
    for step in [*range(1, 301), *range(2, 100)]:  # from 300 back to 2; from then on steps are slow
        now[0] += 1 if now[0] < 300 else 60
        if timer.due(step):
            saved.append((step, now[0]))
    assert saved[0] == (6, 600)


def test_both_together(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(save_schedule.time, "monotonic", lambda: now[0])
    timer, saved = save_schedule.SaveSchedule(every=10, minutes=1), []
    for step in range(1, 31):
        now[0] += 10
        if timer.due(step):
            saved.append(step)
    assert saved == [6, 10, 12, 18, 20, 24, 30]
