"""How much memory a program needs on one device, and what holds it at the peak.

`argument_bytes` equals what the compiler counts as arguments (`argument_size_in_bytes`), to the
byte. `peak` is an estimate of its `peak_memory_in_bytes`, which includes the arguments.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate

import jax

from meshdsl.machine import Chip
from meshdsl.predict.kernels.kernels import Buffer, Graph, Kernel
from meshdsl.predict.memory.schedule import delayed, runs_until
from meshdsl.predict.memory.tiles import buffer_bytes, padded_bytes
from meshdsl.program.program import Program


@dataclass(frozen=True)
class Peak:
    """The moment at which the most memory is taken.

    Attributes:
      bytes: with the arguments, padded to the chip's tiles.
      largest: all buffers that live then, the largest first.
      where: the scope of the kernel that runs then.
    """

    bytes: int
    largest: tuple[Buffer, ...]
    where: str


def argument_bytes(program: Program, chip: Chip | None = None) -> int:
    """Bytes of all arguments in the memory of one device.

    They are padded to the chip's tiles; without a chip they are not. Arguments in the memory of the
    host are not counted.
    """
    kind = chip.kind if chip else "cpu"
    total = 0
    for var, argument in zip(program.jaxpr.jaxpr.invars, program.arguments, strict=True):
        if getattr(var.aval, "memory_space", None) == jax.memory.Space.Host:
            continue
        shape, dtype = argument.shape, argument.dtype
        if dtype.startswith("key<"):  # random keys, of several words each
            shape, dtype = (*shape, var.aval.dtype.itemsize // 4), "uint32"
        total += padded_bytes(shape, dtype, kind)
    return total


def peak(graph: Graph, chip: Chip | None = None) -> Peak:
    """The moment at which the most memory is taken.

    A buffer lives from the kernel that makes it to the last that reads it. Results take the memory
    of donated arguments, what a loop carries and stacks is updated in place, and element-wise code
    may write over an operand whose elements it goes over in the same order.

    Nothing is added for safety, nor for the holes that an allocator leaves. Nothing is taken off
    for what a TPU keeps in its vector memory (128 MiB), so that the estimate is too high for small
    programs.
    """
    free = {id(b) for b in graph.arguments} | {id(graph.results[i]) for i in graph.aliases}
    axes = {axis for axis, size in graph.axis_sizes.items() if size > 1}
    lifetimes = _Lifetimes(chip.kind if chip else "cpu", free, axes)
    fullest = lifetimes.fullest_moment(graph.kernels, {id(b) for b in graph.results})
    largest = sorted([*graph.arguments, *fullest.live], key=lifetimes.size, reverse=True)
    arguments = sum(lifetimes.size(b) for b in graph.arguments)
    return Peak(arguments + fullest.bytes, tuple(largest), fullest.where)


def fullest(lives: Iterable[tuple[int, int, int]], inside: Sequence[int]) -> tuple[int, int]:
    """The most bytes that are taken at a position of a program, and the first such position.

    Args:
      lives: of each array its bytes, and the first and the last position at which it lives.
      inside: for each position the bytes that what runs there takes beside them.
    """
    changes = [0] * (len(inside) + 1)
    for size, begin, end in lives:
        changes[begin] += size
        changes[min(end + 1, len(inside))] -= size
    taken = [a + b for a, b in zip(accumulate(changes), inside, strict=False)]
    most = max(taken)
    return most, taken.index(most)


@dataclass
class _Moment:
    """What lives beside the arguments while a kernel runs."""

    bytes: int
    live: list[Buffer]
    where: str


class _Lifetimes:
    """Follows through kernels what lives, and in which memory.

    Args:
      kind: of the chip.
      free: ids of buffers that take no memory: arguments, and results that take that of one.
      axes: of the mesh, those larger than 1.
    """

    def __init__(self, kind: str, free: set[int], axes: set[str]):
        self._kind, self._free, self._axes = kind, free, axes

    def size(self, buffer: Buffer) -> int:
        """The bytes that a buffer takes in the device's memory."""
        return 0 if buffer.host else buffer_bytes(buffer, self._kind)

    def fullest_moment(
        self,
        kernels: list[Kernel],
        kept: set[int],
        carries: Sequence[tuple[Buffer, Buffer]] = (),
        placed: Iterable[Buffer] = (),
    ) -> _Moment:
        """The moment at which `kernels` take the most memory beyond what is taken before them.

        Args:
          kept: ids of buffers that live to the end.
          carries: of a loop's body, see `Loop.carries`.
          placed: buffers whose memory is taken before.
        """
        kernels = delayed(kernels)
        if not kernels:
            return _Moment(0, [], "")
        spans = self._spans(kernels, kept, carries, {id(b) for b in placed})
        inside = [self._fullest_inside(kernel) for kernel in kernels]
        sizes = [(self.size(buffer), begin, end) for buffer, begin, end in spans]
        most, at = fullest(sizes, [inner.bytes for inner in inside])
        live = [buffer for buffer, begin, end in spans if begin <= at <= end]
        where = inside[at].where or kernels[at].scope
        return _Moment(most, live + inside[at].live, where)

    def _spans(
        self,
        kernels: list[Kernel],
        kept: set[int],
        carries: Sequence[tuple[Buffer, Buffer]],
        placed: set[int],
    ) -> list[tuple[Buffer, int, int]]:
        """Each buffer, with the positions of the first and last kernel at which it takes memory."""
        collectives = (i for i, kernel in enumerate(kernels) if kernel.collective is not None)
        ends = {i: runs_until(kernels, i) for i in collectives}
        last = self._last_uses(kernels, kept, ends)
        starts = {id(end): start for start, end in carries}
        free = self._free | placed | {id(start) for start, _ in carries}
        spans: dict[int, tuple[Buffer, int, int]] = {}
        for i, kernel in enumerate(kernels):
            for b in kernel.writes:
                if b.within is not None or id(b) in free:
                    continue
                taken = self._overwritten(kernel, b, last, i)
                start = starts.get(id(b))
                if start is not None and (last.get(id(start), -1) < i or taken is start):
                    free.add(id(b))  # what is carried to the next turn takes the memory of the last
                    continue
                if taken is not None and id(taken) in spans and spans[id(taken)][2] == i:
                    spans[id(taken)] = (taken, spans[id(taken)][1], i - 1)
                spans[id(b)] = (b, i, last.get(id(b), i))
            if self._scatters_as_sum(kernel):
                whole = kernel.reads[0]
                summed = Buffer(whole.shape, whole.dtype, whole.bytes, scope=kernel.scope)
                spans[id(kernel)] = (summed, i, ends[i])
        return list(spans.values())

    @staticmethod
    def _last_uses(kernels: list[Kernel], kept: set[int], ends: dict[int, int]) -> dict[int, int]:
        """For the id of a buffer the position of the last kernel at which it is needed.

        `ends` has, for the position of a collective, that of the kernel beside which it runs.
        """
        last = {id(b): i for i, kernel in enumerate(kernels) for b in kernel.reads}
        for i, end in ends.items():
            last.update({id(b): max(last[id(b)], end) for b in kernels[i].reads})
        last.update(dict.fromkeys(kept, len(kernels) - 1))
        return last

    def _overwritten(
        self, kernel: Kernel, result: Buffer, last: dict[int, int], i: int
    ) -> Buffer | None:
        """The operand whose memory a result of the kernel at `i` takes, if there is one."""
        for operand, into in kernel.in_place:
            if (
                into is result
                and last.get(id(operand)) == i
                and self.size(operand) == self.size(result)
            ):
                return operand
        return None

    def _scatters_as_sum(self, kernel: Kernel) -> bool:
        """Whether libtpu makes an all-reduce and a slice of a kernel.

        It does so with a reduce-scatter over all devices, and the sum needs memory of its own.
        """
        collective = kernel.collective
        return (
            self._kind == "tpu"
            and collective is not None
            and collective.operation == "psum_scatter"
            and not kernel.whole
            and set(collective.axes) == self._axes
        )

    def _fullest_inside(self, kernel: Kernel) -> _Moment:
        """The fullest moment in the body of a loop, or in the branch that takes the most memory."""
        moments = [
            self.fullest_moment(list(branch), set(), placed=kernel.writes)
            for branch in kernel.branches
        ]
        if kernel.loop is not None:
            carries = kernel.loop.carries
            kept = {id(end) for _, end in carries}
            moments.append(self.fullest_moment(kernel.loop.kernels, kept, carries))
        return max(moments, key=lambda m: m.bytes, default=_Moment(0, [], ""))
