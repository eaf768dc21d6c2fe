"""What the exchange of workers sends, and when, in lines: for a run, `explain` and `compile`."""

from __future__ import annotations

from meshdsl.figures import byte_words, time_words
from meshdsl.machine import Network
from meshdsl.program.collective import summary
from meshdsl.train.job import Job


def exchange_lines(job: Job, network: Network | None = None) -> list[str]:
    """Lines on the exchange of a job with workers: its bytes on a device, and its time.

    Args:
      network: that of the machine, where it is known.
    """
    assert job.local is not None
    every, workers = job.config.local.every, job.config.local.workers
    collectives = job.local.exchange_program().collectives
    head = f"exchange of {workers} workers every {every} steps"
    if not collectives:
        return [f"{head}: nothing is sent, because every device has all workers"]
    lines = []
    for (operation, axes), (count, size) in summary(collectives).items():
        each = byte_words(size / every)
        line = f"{operation}({', '.join(axes)}) {count} x, {byte_words(size)}; {each} per step"
        if network is not None:
            same = [c for c in collectives if (c.operation, c.axes) == (operation, axes)]
            took = sum(c.count * network.seconds(operation, axes, c.bytes) for c in same)
            lies = "; ".join(f"`{axis}`: {network.describe(axis)}" for axis in axes)
            line += f"; {time_words(took)}, {time_words(took / every)} per step; {lies}"
        lines.append(f"{head}: {line}")
    return lines
