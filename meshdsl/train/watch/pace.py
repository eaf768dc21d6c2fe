"""Slow hosts, found without a collective: each process says now and then what held it up.

Processes that train together take each step in the same time, that of the slowest. What tells them
apart is what they wait for. The host of a process reads a batch and starts a step while its devices
compute the step before, and then waits for them. Where it comes so late that they were done before
and the host has nothing to wait for, its own work (input, Python) held up its devices, and with
them those of all others, which do wait. Processes with workers of their own (`local.workers`) do
not go in step, so their times may differ too.

Every INTERVAL seconds each process puts what it measured since then into the store that the
processes share, and process 0 compares. So a step asks nothing of the network.
"""

from __future__ import annotations

import json
import math
import socket
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from itertools import count

from meshdsl.hosts import store
from meshdsl.train.watch.events import Events
from meshdsl.train.watch.step_timer import IDLE

INTERVAL = 60.0  # seconds that a report is about, at least
_STEPS = 20  # and steps
_SHARE = 0.1  # of a step: what is less holds up nobody who would want to know
_APART = 5.0  # so many standard deviations from the others, by what most of them differ
_CHANCE = 4.0  # and so many standard errors of what was measured
_NORMAL = 1.4826  # times the median of deviations: the standard deviation of normal numbers
_runs = count()  # of the runs in this process: the same in all processes


@dataclass(frozen=True)
class Report:
    """What a process measured of some steps, in seconds.

    Attributes:
      host: the name of its machine.
      step: the median of the time of a step, input included.
      late: the mean of the time of the host's own work, of steps in which it did not wait for its
        devices; a step in which it did counts as 0.
      error: the standard error of that mean.
    """

    host: str
    step: float
    late: float
    error: float


def report_of(host: str, steps: Sequence[tuple[float, float]]) -> Report:
    """The report of a process.

    Args:
      steps: for each the seconds that it took, and those in which the host waited for the devices.
    """
    late = [took - waited if waited < IDLE * took else 0.0 for took, waited in steps]
    error = statistics.stdev(late) / math.sqrt(len(late)) if len(late) > 1 else math.inf
    return Report(host, statistics.median(took for took, _ in steps), statistics.mean(late), error)


def slow(reports: Mapping[int, Report]) -> dict[int, str]:
    """The processes that are slower than the others, and why, in words.

    A process is slow by what it exceeds the median of all by: at least a tenth of a step, more than
    most of them differ, and more than chance explains.

    Args:
      reports: by the numbers of processes.
    """
    if len(reports) < 2:
        return {}
    step, step_apart = _usual([one.step for one in reports.values()])
    late, late_apart = _usual([one.late for one in reports.values()])
    error = statistics.median_low([one.error for one in reports.values()])
    found = {}
    for process, one in reports.items():
        chance = _CHANCE * math.hypot(one.error, error)
        if one.late - late > max(_SHARE * step, late_apart, chance):
            found[process] = (
                f"its devices wait for it {one.late:.2g} s of each step of {one.step:.2g} s, "
                f"those of others {late:.2g} s"
            )
        elif one.step - step > max(_SHARE * step, step_apart):
            found[process] = f"its steps take {one.step:.2g} s, those of others {step:.2g} s"
    return found


def _usual(values: Sequence[float]) -> tuple[float, float]:
    """The median of some values, and by how much most of them may differ from it.

    Of two values the median is the lower one, so that the higher one can be out of line.
    """
    middle = statistics.median_low(values)
    apart = statistics.median_low([abs(value - middle) for value in values])
    return middle, _APART * _NORMAL * apart


class Pace:
    """What the processes of a run tell each other of their steps, and which of them are slow.

    In a run of one process it does nothing. Where other processes are slow than before, process 0
    says so in a line and in an event.

    Args:
      say: prints a line.
      events: where what happens to the run is written.
    """

    def __init__(self, say: Callable[[str], None], events: Events):
        self._say, self._events = say, events
        self._key = f"pace/{next(_runs)}"
        self._alone = store.count() == 1
        self._steps: list[tuple[float, float]] = []
        self._since = time.monotonic()
        self._named: set[int] = set()
        self._told = False

    def step(self, number: int, took: float, waited: float) -> dict[str, int]:
        """Take what a step measured.

        Args:
          number: of the step.
          took: seconds of the step, input included.
          waited: seconds of these in which the host waited for the devices.

        Returns:
          In process 0, once processes have been compared: the metric `slow_processes`, how many.
        """
        if self._alone:
            return {}
        self._steps.append((took, waited))
        if len(self._steps) >= _STEPS and time.monotonic() - self._since >= INTERVAL:
            with suppress(RuntimeError):  # the store is gone: JAX ends this process
                self._report(number)
            self._steps, self._since = [], time.monotonic()
        return {"slow_processes": len(self._named)} if self._told else {}

    def _report(self, number: int) -> None:
        mine = report_of(socket.gethostname(), self._steps)
        store.put_again(f"{self._key}/{store.index()}", json.dumps(asdict(mine)))
        if store.first():
            found = store.values_below(self._key)
            self._judge(number, {int(i): Report(**json.loads(one)) for i, one in found.items()})

    def _judge(self, number: int, reports: Mapping[int, Report]) -> None:
        why = slow(reports)
        self._told = True
        if set(why) == self._named:
            return
        self._named = set(why)
        for process, words in why.items():
            self._say(f"process {process} ({reports[process].host}) is slow: {words}")
        if not why:
            self._say("no process is slow any more")
        hosts = [reports[process].host for process in why]
        self._events.write("slow", number, processes=list(why), hosts=hosts)
