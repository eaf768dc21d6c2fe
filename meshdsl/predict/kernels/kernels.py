"""A program as one device runs it: kernels that read and write buffers, in program order.

A kernel is what a compiler launches as one: a product with the element-wise code around it, a chain
of element-wise code, a collective, a loop. A buffer is an array that stands in memory between two
kernels; what a kernel computes and uses on the spot has none. `fusion.kernel_graph` makes the graph
of a program's kernels from its jaxpr, and `time` and `memory` are estimated on it.

Sizes and shapes are those of one device.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from fractions import Fraction

from meshdsl.program.collective import Collective, phase_in_step


@dataclass(eq=False)
class Buffer:
    """An array in memory.

    Attributes:
      bytes: without the padding to tiles that a chip adds.
      name: of an argument, its path (`params.embedding.table`); empty for what the program makes.
      scope: the name stack of the equation that makes it; `tag_in(scope)` leads to the op.
      within: the larger buffer that this one is a slice of, and whose memory it therefore shares:
        the stack that a loop reads or writes one slice of in each turn.
      host: whether it stands in the memory of the host, and takes none of the device's.
    """

    shape: tuple[int, ...]
    dtype: str
    bytes: int
    name: str = ""
    scope: str = ""
    within: Buffer | None = None
    host: bool = False

    def __repr__(self):
        return f"{self.name or 'buffer'}:{self.dtype}[{','.join(map(str, self.shape))}]"


@dataclass(frozen=True)
class Dot:
    """A matrix product, or a convolution as one: `batch` products of m x k by k x n.

    `flops` counts a multiplication and an addition for each term, as XLA does. Of a convolution it
    counts only the terms that do not meet padding. Where it is `uneven`, `flops` are a mean over
    devices, of which some compute more. Products of groups of rows state in `grouped` what their
    kernel computes: more than `flops`, because it multiplies some rows for two groups.

    `lanes` is how many times longer the result gets by lanes of a TPU that stay empty: where its
    last dim is one of several that an operand gives, such as the 64 elements of a head.

    `rearranged` are the bytes of operands and results that a TPU's compiler puts into another
    order, of a convolution over so few rows that it splits their space to have more; else 0.
    """

    batch: int
    m: int
    k: int
    n: int
    flops: int
    dtype: str
    uneven: bool = False
    grouped: int = 0
    lanes: float = 1.0
    rearranged: int = 0


@dataclass(frozen=True)
class Move:
    """What a kernel reads from one buffer, or writes to it.

    Attributes:
      bytes: less than those of the buffer where the kernel moves a part of it, and without the
        padding to tiles.
    """

    buffer: Buffer
    bytes: int
    write: bool = False


@dataclass(eq=False)
class Kernel:
    """What a compiler launches as one.

    Attributes:
      primitive: of the equation that begins it: `dot_general`, `all_gather`, `scan`, `add`.
      scope: the name stack of the equation that begins it; for a collective the primitive is its
        last name (as in `Collective.scope`).
      reads: the buffers that it reads, each once.
      writes: the buffers that it writes, each once.
      dots: its products.
      other_flops: element-wise operations and additions of reductions, one for each element.
      moves: what it reads from memory and writes there; none for a loop or branches, whose kernels
        have them.
      collective: what it communicates, with a `count` that takes in the loops around it; None for a
        kernel that computes.
      behind: what has to be there before it, because of a barrier.
      whole: whether a scatter runs as a sum of the whole array; each device takes its part of it.
      in_place: pairs of an operand and a result that may take the operand's memory, because both
        are gone over element by element in the same order.
      loop: of a loop, its body.
      branches: of a `cond`, the kernels of each branch.
      shares: how often each of them runs, in one execution: 1 where that is not known.
      costly: of a product, the elements of operands that it computes by exponentials and the like.
      bare: whether it is a single operation, which a TPU's compiler does not fuse with any other.
    """

    primitive: str
    scope: str
    reads: list[Buffer] = field(default_factory=list)
    writes: list[Buffer] = field(default_factory=list)
    dots: list[Dot] = field(default_factory=list)
    other_flops: int = 0
    moves: list[Move] = field(default_factory=list)
    collective: Collective | None = None
    behind: tuple[Buffer, ...] = ()
    whole: bool = False
    in_place: list[tuple[Buffer, Buffer]] = field(default_factory=list)
    loop: Loop | None = None
    branches: tuple[tuple[Kernel, ...], ...] = ()
    shares: tuple[Fraction, ...] = ()
    costly: int = 0
    bare: bool = False

    @property
    def flops(self) -> int:
        """The FLOPs of its products in one execution; those of a loop are in its body."""
        return sum(dot.flops for dot in self.dots)

    @property
    def traffic(self) -> int:
        """The bytes that it moves from and to memory."""
        return sum(move.bytes for move in self.moves)

    def sources(self) -> Iterator[Buffer]:
        """The buffers that it reads, and those that they are slices of."""
        for buffer in self.reads:
            source: Buffer | None = buffer
            while source is not None:
                yield source
                source = source.within

    @property
    def phase(self) -> str:
        """`forward`, `recompute`, `backward` or `optimizer`, see `phase_in_step`."""
        return phase_in_step(self.scope)


@dataclass(eq=False)
class Loop:
    """The body of a loop that runs it `length` times.

    Attributes:
      kernels: of one turn, in program order.
      carries: pairs of buffers: what is carried, at the start of a turn and at its end. The loop's
        kernel reads the buffer at the start of the first turn, and writes that at the end of the
        last.
    """

    length: int
    kernels: list[Kernel]
    carries: list[tuple[Buffer, Buffer]] = field(default_factory=list)


@dataclass(eq=False)
class Graph:
    """A whole program.

    Attributes:
      kernels: in program order.
      arguments: buffers, in the order of the program's arguments.
      results: buffers, in the order of the program's results; an argument may be among them.
      aliases: {position of a result: position of the donated argument whose memory it takes}.
      axis_sizes: the mesh.
      flops: of all executions in one call, `{(tag of the recorded op or None, phase): FLOPs}`.
    """

    kernels: list[Kernel]
    arguments: list[Buffer]
    results: list[Buffer]
    aliases: dict[int, int] = field(default_factory=dict)
    axis_sizes: dict[str, int] = field(default_factory=dict)
    flops: dict[tuple[str | None, str], int] = field(default_factory=dict)

    def walk(self) -> Iterator[tuple[Kernel, int | Fraction]]:
        """Every kernel, in bodies and branches too, with how often it runs; in program order."""
        yield from _walk(self.kernels, 1)


def _walk(
    kernels: Iterable[Kernel], times: int | Fraction
) -> Iterator[tuple[Kernel, int | Fraction]]:
    for kernel in kernels:
        yield kernel, times
        if kernel.loop is not None:
            yield from _walk(kernel.loop.kernels, times * kernel.loop.length)
        for branch, share in zip(kernel.branches, kernel.shares, strict=True):
            yield from _walk(branch, times * share)
