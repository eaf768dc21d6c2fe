"""Measures the devices that are there, within a time."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from meshdsl import hosts
from meshdsl.calibration.subjects import OPERATIONS, collective, computations, meshes, sizes
from meshdsl.calibration.timing import Spread, Subject, Timer

_SAMPLE = 0.01  # seconds of a sample, at least
_LONGEST = 0.2  # seconds of one turn: larger collectives are left out
_FEWEST, _MOST_ROUNDS = 3, 15
_SHARE = 0.6  # of the time, until which programs are compiled; the rest is for samples
_SENT = 2**24  # bytes of a device, for transfers from and to its host


@dataclass(frozen=True)
class Measured:
    """What was measured.

    Attributes:
      times: of each subject, for one turn.
      call: of a call of a program.
      to_device, to_host: bytes/s between a device and its host, while all devices do the same.
      seconds: that all of it took.
    """

    times: tuple[tuple[Subject, Spread], ...]
    call: Spread
    to_device: float
    to_host: float
    seconds: float


def measure(
    devices: Sequence[Any],
    seconds: float,
    say: Callable[[str], None],
    *,
    clock: Callable[[], float] = time.perf_counter,
) -> Measured:
    """Time everything on these devices.

    Args:
      devices: those of a process together.
      seconds: how long it may take. Products, passes and three sizes of each collective are timed
        in any case.
      say: called with a line about what is done.
      clock: what counts the seconds.
    """
    start = clock()

    def passed() -> float:
        return hosts.first_does(lambda: clock() - start)

    nodes = len({device.process_index for device in devices})
    say(f"compiling programs for {len(devices)} devices")
    timers = [Timer(s, devices, _SAMPLE, clock) for s in computations(devices[0].platform)]
    forms = meshes(len(devices), nodes)
    slow: dict[tuple[str, str], list[tuple[float, float]]] = {}
    for number, bytes in enumerate(sizes()):
        for form, mesh in forms.items():
            for operation in OPERATIONS:
                if number >= _FEWEST and passed() > _SHARE * seconds:
                    break
                known = slow.setdefault((operation, form), [])
                if _expected(known, bytes) > _LONGEST:
                    continue
                subject = collective(operation, form, mesh, bytes)
                timers.append(Timer(subject, devices, _SAMPLE, clock))
                known.append((subject.size, timers[-1].one_turn))
    say(f"timing {len(timers)} programs in turns")
    rounds, round_seconds = 0, 0.0
    while rounds < _FEWEST or (passed() + round_seconds < seconds and rounds < _MOST_ROUNDS):
        before = passed()
        for timer in timers:
            timer.sample()
        rounds, round_seconds = rounds + 1, passed() - before
    (kernel,) = (timer for timer in timers if timer.subject.kind == "kernel")
    return Measured(
        times=tuple((timer.subject, timer.spread()) for timer in timers),
        call=Spread.of(kernel.calls),
        **_transfers(devices),
        seconds=passed(),
    )


def _expected(known: Sequence[tuple[float, float]], bytes: float) -> float:
    """Seconds that a size is likely to take at least, by the times of smaller ones."""
    below = sorted(point for point in known if point[0] < bytes)[-2:]
    if len(below) < 2:
        return below[0][1] if below else 0.0
    (b0, t0), (b1, t1) = below
    return t1 + max(t1 - t0, 0.0) / (b1 - b0) * (bytes - b1)


def _transfers(devices: Sequence[Any]) -> dict[str, float]:
    """Bytes/s from and to the host of a device, all devices of this process at once."""
    here = [device for device in devices if device.process_index == jax.process_index()]
    array = np.ones(_SENT // 4, np.float32)
    there: list[float] = []
    back: list[float] = []
    for _ in range(5):
        start = time.perf_counter()
        sent = jax.block_until_ready([jax.device_put(array, device) for device in here])
        there.append(time.perf_counter() - start)
        # What JAX has copied to the host once it keeps, so the arrays are those of this turn.
        start = time.perf_counter()
        for each in sent:
            np.array(each, copy=True)
        back.append(time.perf_counter() - start)
    bytes = _SENT * len(here)
    return {
        "to_device": bytes / sorted(there)[2] / len(here),
        "to_host": bytes / sorted(back)[2] / len(here),
    }
