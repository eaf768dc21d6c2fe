"""How much memory a program needs on one device, and what holds it when that is most.

`argument_bytes` is what the compiler counts as the arguments (`argument_size_in_bytes`), to the byte. `peak` is an estimate of its `peak_memory_in_bytes`,
which includes the arguments.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import jax

from meshdsl.estimate.kernels import Buffer, Graph, Kernel
from meshdsl.estimate.memory.schedule import late, until
from meshdsl.estimate.memory.tiles import padded_bytes
from meshdsl.machine import Chip
from meshdsl.record.program import Program


@dataclass(frozen=True)
class Peak:
    """The moment at which most memory is held.

    Attributes:
      bytes: with the arguments, padded to the chip's tiles.
      largest: the buffers that live then, largest first.
      where: the scope of the kernel that runs then.
    """

    bytes: int
    largest: tuple[Buffer, ...]
    where: str


def argument_bytes(program: Program, chip: Chip | None = None) -> int:
    """Bytes of all arguments on one device, padded as `chip` does; without one, not padded. What lies on the host is not counted."""
    total = 0
    for var, argument in zip(program.jaxpr.jaxpr.invars, program.arguments, strict=True):
        if getattr(var.aval, "memory_space", None) == jax.memory.Space.Host:
            continue
        words = argument.dtype.startswith("key<")  # random keys: so many words each
        shape = (*argument.shape, var.aval.dtype.itemsize // 4) if words else argument.shape
        total += padded_bytes(
            shape, "uint32" if words else argument.dtype, chip.kind if chip else "cpu"
        )
    return total


def peak(graph: Graph, chip: Chip | None = None) -> Peak:
    """The most that lives at once.

    A buffer lives from the kernel that makes it to the last that reads it. Results take the memory of donated arguments, what a loop carries and stacks is
    updated in place, and element-wise code may write over an operand that it goes over in step. Nothing is added for safety, nor for the holes that an allocator leaves;
    and nothing is taken off for what a TPU keeps in its vector memory (128 MiB), which makes the estimate too high for small programs.
    """
    free = {id(b) for b in graph.arguments} | {id(graph.results[i]) for i in graph.aliases}
    life = _Life(
        chip.kind if chip else "cpu",
        free,
        {axis for axis, size in graph.axis_sizes.items() if size > 1},
    )
    moment = life.run(graph.kernels, {id(b) for b in graph.results})
    largest = sorted([*graph.arguments, *moment.live], key=life.size, reverse=True)
    return Peak(
        sum(life.size(b) for b in graph.arguments) + moment.bytes, tuple(largest), moment.where
    )


@dataclass
class _Moment:
    bytes: int
    live: list[Buffer]
    where: str


class _Life:
    """Follows what lives through kernels.

    Args:
      kind: of the chip.
      free: ids of buffers that cost nothing: arguments, and results that take the memory of one.
      axes: of the mesh, those larger than 1.
    """

    def __init__(self, kind: str, free: set[int], axes: set[str]):
        self._kind, self._free, self._axes = kind, free, axes

    def size(self, buffer: Buffer) -> int:
        return 0 if buffer.host else padded_bytes(buffer.shape, buffer.dtype, self._kind)

    def run(
        self,
        kernels: list[Kernel],
        kept: set[int],
        carries: list[tuple[Buffer, Buffer]] = (),
        placed: Iterable[Buffer] = (),
    ) -> _Moment:
        """The moment of the most memory beyond what lived before; `kept` lives to the end, and `placed` lived before."""
        kernels = late(kernels)
        spans = self._spans(kernels, kept, carries, {id(b) for b in placed})
        change = [0] * (len(kernels) + 1)
        for buffer, begin, end in spans:
            change[begin] += self.size(buffer)
            change[end + 1] -= self.size(buffer)
        best, at, inside, held = -1, 0, _Moment(0, [], ""), 0
        for i, kernel in enumerate(kernels):
            held += change[i]
            inner = self._inside(kernel)
            if held + inner.bytes > best:
                best, at, inside = held + inner.bytes, i, inner
        live = [buffer for buffer, begin, end in spans if begin <= at <= end]
        where = inside.where or (kernels[at].scope if kernels else "")
        return _Moment(max(best, 0), live + inside.live, where)

    def _spans(
        self, kernels: list[Kernel], kept: set[int], carries, placed: set[int]
    ) -> list[tuple[Buffer, int, int]]:
        """Each buffer with the places of the first and last kernel at which it takes memory."""
        last = {id(b): i for i, kernel in enumerate(kernels) for b in kernel.reads}
        beside = {
            i: until(kernels, i)
            for i, kernel in enumerate(kernels)
            if kernel.collective is not None
        }
        for i, j in beside.items():
            last.update({id(b): max(last[id(b)], j) for b in kernels[i].reads})
        last.update(dict.fromkeys(kept, len(kernels) - 1))
        start_of = {id(end): start for start, end in carries}
        free = self._free | placed | {id(start) for start, _ in carries}
        spans: dict[int, tuple[Buffer, int, int]] = {}
        for i, kernel in enumerate(kernels):
            for b in kernel.writes:
                if b.within is not None or id(b) in free:
                    continue
                taken = next(
                    (
                        a
                        for a, into in kernel.steps
                        if into is b and last.get(id(a)) == i and self.size(a) == self.size(b)
                    ),
                    None,
                )
                start = start_of.get(id(b))
                if start is not None and (last.get(id(start), -1) < i or taken is start):
                    free.add(
                        id(b)
                    )  # carried to the next turn in the memory of what was carried to this one
                    continue
                if taken is not None and id(taken) in spans and spans[id(taken)][2] == i:
                    spans[id(taken)] = (taken, spans[id(taken)][1], i - 1)
                spans[id(b)] = (b, i, last.get(id(b), i))
            if i in beside and self._reduced_whole(kernel):
                whole = kernel.reads[0]
                spans[id(kernel)] = (
                    Buffer(whole.shape, whole.dtype, whole.bytes, scope=kernel.scope),
                    i,
                    beside[i],
                )
        return list(spans.values())

    def _reduced_whole(self, kernel: Kernel) -> bool:
        """libtpu makes an all-reduce and a slice of a reduce-scatter over all devices."""
        collective = kernel.collective
        return (
            self._kind == "tpu"
            and collective is not None
            and collective.operation == "psum_scatter"
            and set(collective.axes) == self._axes
        )

    def _inside(self, kernel: Kernel) -> _Moment:
        """Of the body of a loop, or of the branch that takes most."""
        moments = [
            self.run(list(branch), set(), placed=kernel.writes) for branch in kernel.branches
        ]
        if kernel.loop is not None:
            moments.append(
                self.run(
                    kernel.loop.kernels,
                    {id(end) for _, end in kernel.loop.carries},
                    kernel.loop.carries,
                )
            )
        return max(moments, key=lambda m: m.bytes, default=_Moment(0, [], ""))
