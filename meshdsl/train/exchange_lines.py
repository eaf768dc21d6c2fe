"""What the exchange of workers sends, and when, in lines: for a run, `explain` and `compile`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain

from meshdsl.figures import byte_words, time_words
from meshdsl.machine import Network
from meshdsl.program.collective import Collective, summary
from meshdsl.train.job import Job
from meshdsl.train.local_settings import Local


def sent_by_workers(job: Job) -> list[Sequence[Collective]]:
    """For each fragment, the collectives of its exchange; nothing without workers."""
    if job.local is None:
        return []
    fragments = range(job.config.local.fragments)
    return [job.local.exchange_program(i).collectives for i in fragments]


def exchange_lines(
    settings: Local,
    sent: Sequence[Sequence[Collective]],
    network: Network | None = None,
    step: float | None = None,
) -> list[str]:
    """Lines on the exchange of workers: its bytes on a device, and its time.

    Args:
      sent: what `sent_by_workers` gives.
      network: that of the machine, where it is known.
      step: the seconds of a step, where they are known.
    """
    if not sent:
        return []
    every, fragments = settings.every, settings.fragments
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
        longest = max(sent, key=lambda each: _seconds(each, network))
        seconds, bytes_out = _seconds(longest, network), _sent_between(longest, network)
        what = "the largest fragment" if fragments > 1 else "an exchange"
        if not settings.delay:
            lines.append(f"{head}: all workers wait for it, {time_words(seconds)} for {what}")
        else:
            line = f"it runs beside a step, and is hidden by one of {time_words(seconds)} or more"
            if step and bytes_out:
                rate = f"{bytes_out / step / 1e9:.2g} GB/s"
                line += f"; one of {time_words(step)} hides it where each device has {rate}"
            lines.append(f"{head}: {line}")
    return lines


def _seconds(collectives: Iterable[Collective], network: Network) -> float:
    """How long collectives take, one after the other."""
    return sum(c.count * network.seconds(c.operation, c.axes, c.bytes) for c in collectives)


def _sent_between(collectives: Iterable[Collective], network: Network) -> float:
    """Bytes that each device sends to other slices or nodes in collectives."""
    return sum(c.count * network.sent_between(c.operation, c.axes, c.bytes) for c in collectives)
