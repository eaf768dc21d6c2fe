"""A run meets faults on paper: what formulas say of simple ones, and what is true of all."""

from math import exp, expm1
from statistics import fmean

import pytest

from meshdsl import MeshDSLError
from meshdsl.rehearsal.closed_form import daly, young
from meshdsl.rehearsal.faults import Faults, Trace
from meshdsl.rehearsal.options import Rehearsal
from meshdsl.rehearsal.run import Option, Restart, Run, Stretch
from meshdsl.rehearsal.simulate import simulate

RESTART = Restart(detect=10, replace=20, start=30, compile=20, first=0)
RUN = Run((Stretch(20_000, 2.0),), handover=30, write=0, restore=40, restart=RESTART)
SLICES = Run(
    (Stretch(6_000, 2.0), Stretch(4_000, 3.0)),
    *(1.0, 200.0, 60.0, 20.0, 10.0),
    restart=Restart(first=600),
    hosts=1024,
    slices=4,
)
FAULTS = Faults(mtbf=7200, slice_mtbf=86400)


def goodput(run, option, faults, traces=40):
    """Over some traces; all losses together are the time that is lost."""
    outcomes = [simulate(run, option, Trace(faults, run.hosts, seed)) for seed in range(traces)]
    for outcome in outcomes:
        assert outcome.seconds == pytest.approx(outcome.work + sum(outcome.losses.values()))
        assert min(outcome.losses.values()) > -1e-6
    return outcomes[0].work / fmean(outcome.seconds for outcome in outcomes)


def expected_seconds(
    work: float, interval: float, save: float, restart: float, mtbf: float
) -> float:
    """How long a run takes in the mean, Daly's equation 20.

    Faults come during restarts too. A checkpoint is complete when steps go on.

    Args:
      work: seconds of its steps.
      interval: seconds of steps between two checkpoints.
      save: seconds of a checkpoint.
      restart: seconds from a fault until steps go on.
      mtbf: mean seconds between faults.
    """
    segments = work / interval
    return mtbf * exp(restart / mtbf) * expm1((interval + save) / mtbf) * segments


@pytest.mark.parametrize("factor", [0.3, 1.0, 3.0])
def test_a_run_with_one_kind_of_fault_takes_what_daly_says(factor):
    mtbf = 3600.0
    every = RUN.every(factor * daly(RUN.handover, mtbf))
    work = RUN.work(RUN.steps)
    wanted = expected_seconds(work, 2.0 * every[0], RUN.handover, RUN.restarting, mtbf)
    assert work / goodput(RUN, Option(every), Faults(mtbf=mtbf), 150) == pytest.approx(wanted, 0.02)


def test_the_best_interval_is_near_that_of_young_and_daly():
    faults = Faults(mtbf=3600)
    traces = tuple(Trace(faults, 1, seed) for seed in range(40))
    rehearsal = Rehearsal(RUN, faults, traces, 1, (200,))
    found = rehearsal.best_interval(())
    assert young(30, 3600) == pytest.approx(464.8, 1e-3)
    assert daly(30, 3600) == pytest.approx(444.9, 1e-3)
    assert 444.9 / 2 < found < 444.9 * 2


def test_without_faults_only_the_start_and_saves_take_time():
    run = Run((Stretch(100, 2.0),), 3.0, 5.0, 7.0, restart=Restart(first=11))
    found = simulate(run, Option((30,)), Trace(Faults(), 1, 0))
    assert found.seconds == 11 + 200 + 3 * 3.0 + 3.0 + 5.0
    assert found.goodput == 200 / found.seconds and found.faults == 0


def test_goodput_rises_with_the_time_between_faults():
    found = [goodput(SLICES, Option((100, 67)), Faults(mtbf=m)) for m in (1800, 7200, 1e5, 1e9)]
    assert found == sorted(found) and found[-1] > 0.95


@pytest.mark.parametrize("fewer", [False, True])
@pytest.mark.parametrize("memory", [(), (20, 15)])
def test_spare_slices_and_going_on_with_fewer_cost_no_goodput(memory, fewer):
    every = SLICES.every(300)
    found = [goodput(SLICES, Option(every, memory, n, fewer), FAULTS) for n in range(3)]
    assert found == sorted(found)
    waiting = [goodput(SLICES, Option(every, memory, n, False), FAULTS) for n in range(3)]
    assert all(a >= b for a, b in zip(found, waiting, strict=True))


def test_copies_in_memory_lose_fewer_steps_where_they_outlive_the_fault():
    every = SLICES.every(300)
    store, memory = (
        simulate(SLICES, Option(every, copies), Trace(Faults(mtbf=7200), 1024, 3))
        for copies in ((), (20, 15))
    )
    assert memory.losses["lost steps"] < store.losses["lost steps"] / 3
    # The one slice is gone, and all copies with it; a run of one host has no neighbour.
    for hosts, faults in ((8, Faults(slice_mtbf=7200, slice_back=600)), (1, Faults(mtbf=7200))):
        run = Run((Stretch(10_000, 2.0),), 0.0, 200.0, 60.0, hosts=hosts)
        same = [simulate(run, Option((100,), copies), Trace(faults, 1, 3)) for copies in ((), (9,))]
        assert same[0] == same[1] and same[0].faults


def test_a_run_that_comes_no_further_is_given_up():
    with pytest.raises(MeshDSLError, match="hardly comes further: after 50 times"):
        simulate(RUN, Option((20_000,)), Trace(Faults(mtbf=1000), 1, 0))


def test_a_trace_is_the_same_for_all_that_meet_it_and_for_more_slices():
    trace = Trace(FAULTS, 8, 7)
    events = [event for _, event in zip(range(200), trace.events(2), strict=False)]
    assert events == [event for _, event in zip(range(200), trace.events(2), strict=False)]
    assert events == sorted(events)
    more = [event for _, event in zip(range(400), trace.events(3), strict=False)]
    assert [event for event in more if event.slice < 2][:200] == events
    per_host = Trace(Faults(host_mtbf=8 * 7200, slice_mtbf=86400), 8, 7)
    assert next(per_host.events(2)) == events[0]
