"""Steps and saves between two faults: the closed form is what counting them one by one gives."""

import random

import pytest

from meshdsl.rehearsal.leg import Leg


def by_steps(start, end, step, every, handover, write, last, new):
    """When each step is done, and when each checkpoint is complete, counted one by one."""
    now, free, done, complete = 0.0, 0.0, {}, {}
    for number in range(start + 1, end + 1):
        now += step
        done[number] = now
        if number % every == 0 or (last and number == end):
            now = max(now, free) + handover + (0.0 if complete else new)
            free = complete[number] = now + write
    return done, complete, complete[end] if last else now


@pytest.mark.parametrize("seed", range(40))
def test_a_leg_is_its_steps_and_saves_one_by_one(seed):
    draw = random.Random(seed)
    start = draw.randrange(50)
    how = {
        "start": start,
        "end": start + draw.randrange(1, 60),
        "step": draw.choice([0.5, 2.0]),
        "every": draw.choice([1, 3, 10, 100]),
        "handover": draw.choice([0.0, 0.25, 4.0]),
        "write": draw.choice([0.0, 3.0, 30.0]),
        "new": draw.choice([0.0, 5.0]),
        "last": draw.choice([True, False]),
    }
    leg = Leg(**how)
    done, complete, seconds = by_steps(**how)
    assert leg.seconds == pytest.approx(seconds)
    for number, at in done.items():
        assert leg.done(at) == pytest.approx(number), number
    for at in [draw.uniform(0, seconds) for _ in range(20)]:
        assert int(leg.done(at) + 1e-9) == max([s for s in done if done[s] <= at], default=start)
        assert leg.saved(at) == max([s for s in complete if complete[s] <= at], default=None)
    pending = {number: at for number, at in complete.items() if at > seconds + 1e-9}
    if pending:
        assert leg.writing == pytest.approx(max(pending.items()))
    else:
        assert leg.writing is None
