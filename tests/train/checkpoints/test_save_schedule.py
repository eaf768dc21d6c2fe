"""When a checkpoint is due."""

import itertools

import pytest

from meshdsl.train.checkpoints import save_schedule


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


@pytest.mark.parametrize(
    ("every", "minutes", "steps", "seconds", "saved"),
    [
        (3, 0, range(1, 10), lambda now: 10, [3, 6, 9]),
        (0, 0, range(1, 10), lambda now: 10, []),
        (10, 1, range(1, 31), lambda now: 10, [6, 10, 12, 18, 20, 24, 30]),
        # From 300 back to 2: the run is asked at once. From then on steps are slow.
        (0, 10, [*range(1, 301), *range(2, 7)], lambda now: 1 if now < 300 else 60, [6]),
    ],
    ids=["by steps", "never", "by steps and minutes", "goes back"],
)
def test_it_is_due(monkeypatch, every, minutes, steps, seconds, saved):
    now, found = [0.0], []
    monkeypatch.setattr(save_schedule.time, "monotonic", lambda: now[0])
    timer = save_schedule.SaveSchedule(every, minutes)
    for step in steps:
        now[0] += seconds(now[0])
        if timer.due(step):
            found.append(step)
    assert found == saved
