"""Estimates the time of one step on a target from the program's kernels; nothing is compiled.

The kernels become actions of a timeline (`meshdsl.machine.timeline`): `kernel_order` says in which
order, `kernel_time` how long each takes, and `Chip.overlap` whether the device computes while a
collective runs, and which collectives the compiler runs as sums. A collective that runs meanwhile
starts when the one before it is finished and what it reads is there. What uses its result waits for
it. A turn of a loop, and the step, end when everything that they started has finished.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache, partial

from meshdsl.machine import Chip, Network, Target
from meshdsl.machine.timeline import Action, lanes_of, timeline
from meshdsl.predict.explanation import TimeView
from meshdsl.predict.kernels.kernels import Buffer, Graph, Kernel, Move
from meshdsl.predict.kernels.primitives import FILL
from meshdsl.predict.time.kernel_order import scheduled, without_products
from meshdsl.predict.time.kernel_time import kernel_seconds
from meshdsl.predict.time.uncertainty import deviations, work_of
from meshdsl.program.collective import Collective

_SUM = ("psum", "pmax", "pmin")


def step_time(
    graph: Graph,
    target: Target,
    network: Network,
    model_flops: float,
    model_flops_full: float,
    temporaries: float = 0.0,
) -> TimeView:
    """The time of one step of `graph`.

    Args:
      network: of the target under the program's mesh.
      model_flops: of the model on one device in one step, causal attention counted half.
      model_flops_full: the same with attention in full.
      temporaries: bytes of memory that the step takes beside its arguments.
    """
    actions, chip = _Actions(target.chip, network), target.chip
    fresh = temporaries / chip.fresh_bandwidth if chip.fresh_bandwidth else 0.0
    actions.before = chip.step_latency + fresh
    actions.entry = actions.block(graph.kernels, to_end=True)
    ran = timeline(actions.of, actions.entry)
    unsure = deviations(ran, chip, graph.axis_sizes)
    return TimeView.of(ran, (model_flops, model_flops_full), chip.flops, unsure)


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


class _Actions:
    """The actions of blocks of kernels, made when they are asked for.

    Attributes:
      entry: the block that is the whole step.
      before: seconds before its first kernel.
    """

    entry = 0
    before = 0.0

    def __init__(self, chip: Chip, network: Network):
        self.chip, self.network = chip, network
        self._blocks: dict[int, tuple[Sequence[Kernel], bool]] = {}
        self._made: dict[int, list[Action]] = {}
        self._exposed: set[Kernel] = set()  # collectives that have no product to run beside
        self._seconds_of = cache(self._seconds)
        self._timing = cache(partial(_timing, network=network))

    def block(self, kernels: Sequence[Kernel], *, to_end: bool) -> int:
        """The name of a block.

        Args:
          to_end: whether it ends only when all collectives that it started are finished.
        """
        self._blocks[id(kernels)] = kernels, to_end
        return id(kernels)

    def of(self, block: int) -> list[Action]:
        """The actions of a block, in the order of the compiler's schedule."""
        if block not in self._made:
            kernels, to_end = self._blocks[block]
            order = scheduled(kernels, self._seconds_of, self._is_asynchronous)
            if self.chip.kind == "tpu" and not self.chip.offloads:
                self._exposed |= without_products(order, self._seconds_of)
            found = [action for kernel in order for action in self._actions(kernel)]
            if to_end:
                started = [k.writes[0] for k in kernels if self._is_asynchronous(k)]
                found += [Action("done", "", "", key=_key(buffer)) for buffer in started]
            if block == self.entry and self.before:
                found.insert(0, Action("compute", "call", "", self.before))
            self._made[block] = found
        return self._made[block]

    def _actions(self, kernel: Kernel) -> Iterator[Action]:
        name, scope, needs = kernel.primitive, kernel.scope, tuple(map(_key, kernel.reads))
        if kernel.collective is not None:
            yield from self._communication(kernel)
        elif kernel.loop is not None:
            body, turns = self.block(kernel.loop.kernels, to_end=True), kernel.loop.length
            yield Action("loop", name, scope, needs=needs, bodies=(body,), turns=turns)
        elif kernel.branches:
            bodies = tuple(self.block(branch, to_end=False) for branch in kernel.branches)
            yield Action("branch", name, scope, needs=needs, bodies=bodies)
        else:
            seconds, work = self._seconds_of(kernel), work_of(kernel)
            yield Action("compute", name, scope, seconds, needs=needs, work=work)

    def _communication(self, kernel: Kernel) -> Iterator[Action]:
        result, timing, collective = kernel.writes[0], self._timing(kernel), kernel.collective
        assert collective is not None
        if timing.zero_filled:
            zeros = Move(result, timing.zero_filled, write=True)
            filling = kernel_seconds(
                Kernel(FILL, kernel.scope, moves=[zeros], bare=True), self.chip
            )
            yield Action("compute", kernel.primitive, kernel.scope, filling)
        yield Action(
            what="start" if timing.asynchronous and kernel not in self._exposed else "sync",
            name=kernel.primitive,
            scope=kernel.scope,
            moves=collective,
            lanes=lanes_of(collective, self.network),
            link_seconds=timing.seconds,
            key=_key(result),
            needs=tuple(map(_key, kernel.reads)),
            alone=True,
        )

    def _seconds(self, kernel: Kernel) -> float:
        """Seconds of a kernel, of a loop and of branches with one kernel after the other."""
        if kernel.collective is not None:
            return self._timing(kernel).seconds
        if kernel.loop is not None:
            return kernel.loop.length * math.fsum(map(self._seconds_of, kernel.loop.kernels))
        if kernel.branches:
            return max(math.fsum(map(self._seconds_of, branch)) for branch in kernel.branches)
        return kernel_seconds(kernel, self.chip)

    def _is_asynchronous(self, kernel: Kernel) -> bool:
        """Whether the kernel is a collective that runs while the device computes."""
        return kernel.collective is not None and self._timing(kernel).asynchronous


def _timing(kernel: Kernel, network: Network) -> CollectiveTiming:
    assert kernel.collective is not None
    return collective_timing(kernel.collective, network, whole=kernel.whole)


def _key(buffer: Buffer) -> str:
    """The name of the event that a buffer is there; nothing waits for one that was computed."""
    return str(id(buffer))


@dataclass(frozen=True)
class CollectiveTiming:
    """How a compiler runs a collective.

    Attributes:
      seconds: on its links.
      asynchronous: whether the device computes meanwhile.
      zero_filled: bytes of a buffer that is filled with zeros first.
    """

    seconds: float
    asynchronous: bool
    zero_filled: int = 0


def collective_timing(
    collective: Collective, network: Network, *, whole: bool = False
) -> CollectiveTiming:
    """How the compiler for the network's target runs one execution of `collective`.

    Args:
      whole: a scatter that runs as a sum of the whole array.
    """
    chip, operation = network.target.chip, collective.operation
    runs = chip.overlap_over(network.axes(collective.axes).form)
    as_sum = whole or runs.has("sums", operation)
    small = (as_sum or operation in _SUM) and collective.bytes < chip.small_sum
    seconds = network.seconds("psum" if as_sum else operation, collective.axes, collective.bytes)
    zero_filled = collective.bytes if as_sum and operation == "all_gather" else 0
    return CollectiveTiming(seconds, not (small or runs.has("waits", operation)), zero_filled)
