"""Estimates the time of one step on a target from the program's kernels; nothing is compiled.

Kernels run on the compute stream; `kernel_order` says in which order, and `kernel_time` how long
each takes. A collective starts in its turn, as soon as the one before it is finished, what it reads
is there, and the links of its axes are free. What uses its result waits for it, and kernels between
run meanwhile, unless `collective_timing` says that the device waits. The step ends when everything
that it started has finished.

A turn of a loop ends when everything that it started has finished. The second turn of a loop stands
for all that follow.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from meshdsl.estimate.explanation import Span, TimeView
from meshdsl.estimate.kernels import Buffer, Graph, Kernel, Loop
from meshdsl.estimate.time.collective_timing import CollectiveTiming, collective_timing
from meshdsl.estimate.time.kernel_order import scheduled
from meshdsl.estimate.time.kernel_time import is_fused, kernel_seconds
from meshdsl.machine import Chip, Network, Target
from meshdsl.machine.streams import Streams, lanes_of, stream_of
from meshdsl.record.collective import Collective
from meshdsl.record.recorder import tag_in


def step_time(
    graph: Graph, target: Target, network: Network, model_flops: float, model_flops_full: float
) -> TimeView:
    """The time of one step of `graph`.

    Args:
      network: of the target under the program's mesh.
      model_flops: of the model on one device in one step, causal attention counted half.
      model_flops_full: the same with attention in full.
    """
    simulation = _Simulation(target.chip, network)
    simulation.run_to_end(graph.kernels, 1, 1)
    return TimeView(
        compute=simulation.compute,
        communication=simulation.communication,
        step=simulation.streams.now,
        serial=simulation.compute + simulation.communication,
        exposed=simulation.exposed,
        model_flops=model_flops,
        model_flops_full=model_flops_full,
        peak_flops=target.chip.flops,
        spans=tuple(simulation.spans),
        fused=simulation.fused,
    )


def seconds_by_tag(view: TimeView) -> dict[tuple[str, str], float]:
    """Seconds that each op computes in each phase: `{(tag, phase): seconds}`.

    The tag of what belongs to no op is empty.
    """
    found: dict[tuple[str, str], float] = {}
    for span in view.spans:
        if span.stream == "compute":
            key = (span.tag, span.phase)
            found[key] = found.get(key, 0.0) + (span.end - span.start) * span.repeats
    return found


@dataclass
class _Simulation:
    """Runs kernels on the streams of a device and counts the seconds.

    Two counts go through all methods: what is simulated once counts `weight` times in the sums, and
    has a span with `repeats`, or none if that is 0.
    """

    chip: Chip
    network: Network
    streams: Streams = field(default_factory=Streams)
    spans: list[Span] = field(default_factory=list)
    compute: float = 0.0
    fused: float = 0.0
    communication: float = 0.0
    exposed: float = 0.0
    _moved: float = 0.0
    _seconds: dict[int, float] = field(default_factory=dict)
    _timings: dict[int, CollectiveTiming] = field(default_factory=dict)
    _orders: dict[int, list[Kernel]] = field(default_factory=dict)

    def run(self, kernels: Sequence[Kernel], weight: int, repeats: int) -> None:
        """Runs `kernels` once."""
        for kernel in self._scheduled(kernels):
            self._run_kernel(kernel, weight, repeats)

    def run_to_end(self, kernels: Sequence[Kernel], weight: int, repeats: int) -> None:
        """Runs `kernels` once, and waits for the collectives that they start."""
        self.run(kernels, weight, repeats)
        self._wait_for((b for k in kernels if k.collective for b in k.writes), weight)

    def _scheduled(self, kernels: Sequence[Kernel]) -> list[Kernel]:
        """A block of kernels in the order in which they run."""
        if id(kernels) not in self._orders:
            order = scheduled(kernels, self._seconds_of, self._is_asynchronous)
            self._orders[id(kernels)] = order
        return self._orders[id(kernels)]

    def _seconds_of(self, kernel: Kernel) -> float:
        """Seconds of a kernel, of a loop and of branches with one kernel after the other."""
        if kernel.collective is not None:
            return self._timing(kernel, kernel.collective).seconds
        if id(kernel) not in self._seconds:
            self._seconds[id(kernel)] = self._compute_seconds(kernel)
        return self._seconds[id(kernel)]

    def _compute_seconds(self, kernel: Kernel) -> float:
        if kernel.loop is not None:
            return kernel.loop.length * math.fsum(map(self._seconds_of, kernel.loop.kernels))
        if kernel.branches:
            return max(math.fsum(map(self._seconds_of, branch)) for branch in kernel.branches)
        return kernel_seconds(kernel, self.chip)

    def _run_kernel(self, kernel: Kernel, weight: int, repeats: int) -> None:
        if kernel.collective is not None:
            self._communicate(kernel, kernel.collective, weight, repeats)
            return
        self._wait_for(kernel.reads, weight)
        if kernel.loop is not None:
            self._run_loop(kernel, kernel.loop, weight, repeats)
        elif kernel.branches:
            self.run(max(kernel.branches, key=self._seconds_alone), weight, repeats)
        else:
            self._compute(kernel, weight, repeats)

    def _compute(self, kernel: Kernel, weight: int, repeats: int) -> None:
        seconds = self._seconds_of(kernel)
        start, end = self.streams.compute(seconds)
        self.compute += seconds * weight
        self.fused += seconds * weight * is_fused(kernel)
        for buffer in kernel.writes:
            self.streams.events[id(buffer)] = end
        self._show("compute", kernel, start, end, repeats)

    def _communicate(
        self, kernel: Kernel, collective: Collective, weight: int, repeats: int
    ) -> None:
        result, timing = kernel.writes[0], self._timing(kernel, collective)
        lanes = lanes_of(collective, self.network)
        if timing.zero_filled:
            width = result.bytes // max(math.prod(result.shape), 1)
            start, end = self.streams.compute(timing.filling_seconds(self.chip, width))
            self.compute += (end - start) * weight
            self._show("compute", kernel, start, end, repeats)
        if timing.asynchronous:
            self._wait_until(self._moved, weight)
            ready = max([self.streams.now, *(self._when(buffer) for buffer in kernel.reads)])
            start, end = self.streams.launch(id(result), lanes, timing.seconds, ready)
            self._moved = end
        else:
            self._wait_for(kernel.reads, weight)
            start, end = self.streams.communicate(lanes, timing.seconds)
            self.exposed += timing.seconds * weight
        self.communication += timing.seconds * weight
        self._show(stream_of(collective), kernel, start, end, repeats)

    def _timing(self, kernel: Kernel, collective: Collective) -> CollectiveTiming:
        if id(kernel) not in self._timings:
            self._timings[id(kernel)] = collective_timing(collective, self.network)
        return self._timings[id(kernel)]

    def _is_asynchronous(self, kernel: Kernel) -> bool:
        """Whether the kernel is a collective that runs while the device computes."""
        collective = kernel.collective
        return collective is not None and self._timing(kernel, collective).asynchronous

    def _run_loop(self, kernel: Kernel, loop: Loop, weight: int, repeats: int) -> None:
        begin = self.streams.now
        if loop.length:
            self.run_to_end(loop.kernels, weight, repeats * loop.length)
        if loop.length > 1:
            second = self.streams.now
            self.run_to_end(loop.kernels, weight * (loop.length - 1), 0)
            self.streams.skip((loop.length - 2) * (self.streams.now - second))
        for buffer in kernel.writes:
            self.streams.events[id(buffer)] = self.streams.now
        self._show("loops", kernel, begin, self.streams.now, repeats)

    def _seconds_alone(self, kernels: tuple[Kernel, ...]) -> float:
        """Seconds of `kernels` if nothing else runs."""
        alone = _Simulation(self.chip, self.network, _seconds=self._seconds, _timings=self._timings)
        alone.run_to_end(kernels, 1, 0)
        return alone.streams.now

    def _wait_for(self, buffers: Iterable[Buffer], weight: int) -> None:
        self._wait_until(max((self._when(buffer) for buffer in buffers), default=0.0), weight)

    def _wait_until(self, moment: float, weight: int) -> None:
        self.exposed += self.streams.wait(moment) * weight

    def _when(self, buffer: Buffer) -> float:
        """When a buffer is there; 0 for what no kernel made."""
        return self.streams.events.get(id(buffer), 0.0)

    def _show(self, stream: str, kernel: Kernel, start: float, end: float, repeats: int) -> None:
        if repeats and end > start:
            tag = tag_in(kernel.scope) or ""
            self.spans.append(
                Span(stream, kernel.primitive, start, end, kernel.phase, tag, repeats)
            )
