"""The time of one step on a target, estimated from the program's kernels: nothing is compiled.

The compute stream runs the kernels in program order (`timing_kernels.seconds` says how long each takes). A collective starts on the links of its axes
as soon as what it reads is there and the links are free (`timing_moves` says which do); what uses its result waits for it, and later kernels that
don't need it run meanwhile. In the body of a loop a collective starts with the turn at the earliest, and at the end of a turn everything that it started
is waited for. A loop's second turn stands for all that follow.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from meshdsl.estimate.explanation import Span, TimeView
from meshdsl.estimate.kernels import Buffer, Graph, Kernel
from meshdsl.estimate.time.collective_timing import Movement, movement
from meshdsl.estimate.time.kernel_time import seconds
from meshdsl.machine import Network, Target
from meshdsl.machine.streams import Streams, lanes_of, stream_of
from meshdsl.record.recorder import tag_in


def estimate(
    graph: Graph, target: Target, network: Network, model_flops: float, model_flops_full: float
) -> TimeView:
    """The time of one step of `graph`.

    Args:
      network: that of the target under the program's mesh.
      model_flops, model_flops_full: of the model on one device in one step, causal attention counted half, and in full.
    """
    run = _Run(target.chip, network)
    run.kernels(graph.kernels, 1, 1)
    return TimeView(
        compute=run.compute,
        communication=run.communication,
        step=run.streams.now,
        serial=run.compute + run.communication,
        exposed=run.exposed,
        model_flops=model_flops,
        model_flops_full=model_flops_full,
        peak_flops=target.chip.flops,
        spans=tuple(run.spans),
    )


def seconds_by_tag(view: TimeView) -> dict[tuple[str, str], float]:
    """Seconds that each op computes in each phase: `{(tag, phase): seconds}`; the tag of what no op explains is empty."""
    found: dict[tuple[str, str], float] = {}
    for span in view.spans:
        if span.stream == "compute":
            key = (span.tag, span.phase)
            found[key] = found.get(key, 0.0) + (span.end - span.start) * span.repeats
    return found


_AHEAD = 64  # So many kernels a compiler is taken to look ahead for something to do.


@dataclass
class _Run:
    chip: object
    network: Network
    streams: Streams = field(default_factory=Streams)
    spans: list[Span] = field(default_factory=list)
    compute: float = 0.0
    communication: float = 0.0
    exposed: float = 0.0
    _seconds: dict[int, float] = field(default_factory=dict)
    _movements: dict[int, Movement] = field(default_factory=dict)

    def kernels(self, kernels: Sequence[Kernel], weight: int, repeats: int) -> None:
        """Run them once and count what they do `weight` times; shown with `repeats`, 0 shows nothing."""
        began = self.streams.now
        waiting, leading = list(kernels), self._leading(kernels)
        unmade = {id(buffer) for kernel in waiting for buffer in kernel.writes}
        while waiting:
            kernel = waiting.pop(self._next(waiting, unmade, leading))
            self._one(kernel, weight, repeats, began)
            unmade.difference_update(id(buffer) for buffer in kernel.writes)

    def _next(self, waiting: list[Kernel], unmade: set[int], leading: set[int]) -> int:
        """Which of the next kernels runs: a collective that can start; else one whose operands are there, first those that lead to a
        collective; else the one whose operands are there first."""
        best, least = 0, (math.inf, True)
        for i, kernel in enumerate(waiting[:_AHEAD]):
            if any(id(buffer) in unmade for buffer in _sources(kernel)):
                continue
            if kernel.collective is not None and self._movement(kernel).asynchronous:
                return i
            when = max((self._when(buffer) for buffer in kernel.reads), default=0.0)
            rank = (max(when, self.streams.now), id(kernel) not in leading)
            if rank < least:
                best, least = i, rank
        return best

    def _leading(self, kernels: Sequence[Kernel]) -> set[int]:
        """The kernels from whose results an asynchronous collective is computed."""
        wanted: set[int] = set()
        found = set()
        for kernel in reversed(kernels):
            starts = kernel.collective is not None and self._movement(kernel).asynchronous
            if starts or any(id(buffer) in wanted for buffer in kernel.writes):
                found.add(id(kernel))
                wanted.update(id(buffer) for buffer in _sources(kernel))
        return found

    def _one(self, kernel: Kernel, weight: int, repeats: int, began: float) -> None:
        if kernel.collective is not None:
            self._communicate(kernel, weight, repeats, began)
            return
        self._wait_for(kernel.reads, weight)
        if kernel.loop is not None:
            self._loop(kernel, weight, repeats)
        elif kernel.branches:
            self.kernels(max(kernel.branches, key=self._alone), weight, repeats)
        else:
            self._compute(kernel, weight, repeats)

    def _compute(self, kernel: Kernel, weight: int, repeats: int) -> None:
        if id(kernel) not in self._seconds:
            self._seconds[id(kernel)] = seconds(kernel, self.chip)
        took = self._seconds[id(kernel)]
        start, end = self.streams.compute(took)
        self.compute += took * weight
        for buffer in kernel.writes:
            self.streams.events[id(buffer)] = end
        self._show("compute", kernel, start, end, repeats)

    def _communicate(self, kernel: Kernel, weight: int, repeats: int, began: float) -> None:
        moves, name = kernel.collective, id(kernel.writes[0])
        how = self._movement(kernel)
        lanes = lanes_of(moves, self.network)
        if how.filled:
            start, end = self.streams.compute(
                how.before(
                    self.chip, kernel.writes[0].bytes // max(math.prod(kernel.writes[0].shape), 1)
                )
            )
            self.compute += (end - start) * weight
            self._show("compute", kernel, start, end, repeats)
            began = end
        if how.asynchronous:
            ready = max([began, *(self._when(buffer) for buffer in kernel.reads)])
            start, end = self.streams.launch(name, lanes, how.seconds, ready)
        else:
            self._wait_for(kernel.reads, weight)
            start, end = self.streams.communicate(lanes, how.seconds)
            self.exposed += how.seconds * weight
        self.communication += how.seconds * weight
        self._show(stream_of(moves), kernel, start, end, repeats)

    def _movement(self, kernel: Kernel) -> Movement:
        if id(kernel) not in self._movements:
            self._movements[id(kernel)] = movement(kernel.collective, self.network)
        return self._movements[id(kernel)]

    def _loop(self, kernel: Kernel, weight: int, repeats: int) -> None:
        loop, begin = kernel.loop, self.streams.now
        if loop.length:
            self._turn(loop.kernels, weight, repeats * loop.length)
        if loop.length > 1:
            second = self.streams.now
            self._turn(loop.kernels, weight * (loop.length - 1), 0)
            self.streams.skip((loop.length - 2) * (self.streams.now - second))
        for buffer in kernel.writes:
            self.streams.events[id(buffer)] = self.streams.now
        self._show("loops", kernel, begin, self.streams.now, repeats)

    def _turn(self, kernels: list[Kernel], weight: int, repeats: int) -> None:
        self.kernels(kernels, weight, repeats)
        self._wait(
            max(
                (
                    self._when(buffer)
                    for kernel in kernels
                    if kernel.collective
                    for buffer in kernel.writes
                ),
                default=0.0,
            ),
            weight,
        )

    def _alone(self, kernels: tuple[Kernel, ...]) -> float:
        run = _Run(self.chip, self.network, _seconds=self._seconds, _movements=self._movements)
        run.kernels(kernels, 1, 0)
        return run.streams.now

    def _wait_for(self, buffers: list[Buffer], weight: int) -> None:
        self._wait(max((self._when(buffer) for buffer in buffers), default=0.0), weight)

    def _wait(self, until: float, weight: int) -> None:
        self.exposed += self.streams.wait(until) * weight

    def _when(self, buffer: Buffer) -> float:
        """When a buffer is there. What nothing here has made was there from the start."""
        return self.streams.events.get(id(buffer), 0.0)

    def _show(self, stream: str, kernel: Kernel, start: float, end: float, repeats: int) -> None:
        if repeats and end > start:
            self.spans.append(
                Span(
                    stream,
                    kernel.primitive,
                    start,
                    end,
                    kernel.phase,
                    tag_in(kernel.scope) or "",
                    repeats,
                )
            )


def _sources(kernel: Kernel) -> Iterator[Buffer]:
    for buffer in kernel.reads:
        while buffer is not None:
            yield buffer
            buffer = buffer.within
