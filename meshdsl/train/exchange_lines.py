"""What the exchange of workers sends, and when, in lines: for a run, `explain` and `compile`."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain

from meshdsl.figures import byte_words, time_words
from meshdsl.machine import Network
from meshdsl.program.collective import Collective, summary
from meshdsl.train.job import Job


def exchange_lines(job: Job, network: Network | None = None) -> list[str]:
    """Lines on the exchange of a job with workers: its bytes on a device, and its time.

    Args:
      network: that of the machine, where it is known.
    """
    assert job.local is not None
    settings = job.config.local
    every, fragments = settings.every, settings.fragments
    sent = [job.local.exchange_program(i).collectives for i in range(fragments)]
    head = f"exchange of {settings.workers} workers every {every} steps"
    head += f", in {fragments} fragments" if fragments > 1 else ""
    if not any(sent):
        return [f"{head}: nothing is sent, because every device has all workers"]
    lines = []
    for (operation, axes), (count, size) in summary(chain(*sent)).items():
        each = byte_words(size / every)
        line = f"{operation}({', '.join(axes)}) {count} x, {byte_words(size)}; {each} per step"
        if network is not None:
            same = [c for c in chain(*sent) if (c.operation, c.axes) == (operation, axes)]
            took = _seconds(same, network)
            lies = "; ".join(f"`{axis}`: {network.describe(axis)}" for axis in axes)
            line += f"; {time_words(took)}, {time_words(took / every)} per step; {lies}"
        lines.append(f"{head}: {line}")
    if network is not None and (fragments > 1 or settings.delay):
        longest = time_words(max(_seconds(each, network) for each in sent))
        what = "the largest fragment" if fragments > 1 else "an exchange"
        wait = f"all workers wait for it, {longest} for {what}"
        beside = f"it runs beside a step, and is hidden by one of {longest} or more"
        lines.append(f"{head}: {beside if settings.delay else wait}")
    return lines


def _seconds(collectives: Iterable[Collective], network: Network) -> float:
    """How long collectives take, one after the other."""
    return sum(c.count * network.seconds(c.operation, c.axes, c.bytes) for c in collectives)
