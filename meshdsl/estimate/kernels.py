"""A program as one device runs it: kernels that read and write buffers, in program order.

A kernel is what a compiler launches as one: a product with the element-wise code around it, a chain of element-wise code,
a collective, a loop. A buffer is an array that stands in memory between two kernels; what a kernel computes and uses on
the spot has none. `fuse.build` makes this from a jaxpr; times and memory are estimated on it.

Sizes are of one device; shapes are local.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from meshdsl.record.collective import Collective, phase_in_step


@dataclass(eq=False)
class Buffer:
    """An array in memory.

    Attributes:
      bytes: without the padding to tiles that a chip adds.
      name: of an argument, its path (`params.embedding.table`); empty for what the program makes.
      scope: the name stack of the equation that made it; `record.tag_in(scope)` leads to the op.
      within: the larger buffer that this one is a slice of, one turn of a loop's stacked input or output. It takes no memory of its own.
      host: it stands in the memory of the host, and takes none of the device's.
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
    """One matrix product (or a convolution as one): `batch` products of m x k by k x n.

    `flops` counts a multiplication and an addition for each term, and for a convolution only terms that do not meet padding: what XLA counts.
    """

    batch: int
    m: int
    k: int
    n: int
    flops: int
    dtype: str


@dataclass(eq=False)
class Kernel:
    """Something that is launched as one.

    Attributes:
      primitive: of that equation: `dot_general`, `all_gather`, `scan`, or that of the first result of element-wise code.
      scope: the name stack of the equation that begins it, ending in the primitive for a collective (as `Collective.scope` does).
      reads, writes: buffers, each once.
      dots: its products.
      other_flops: element-wise operations and additions of reductions, one for each element.
      traffic: bytes that it moves from and to memory.
      collective: what it communicates, `count` with the loops around it; None for a kernel that computes.
      steps: pairs of an operand and a result that are gone over in step, so that the result may take the operand's memory.
      loop: of a loop, its body.
      branches: of a `cond`, the kernels of each branch.
    """

    primitive: str
    scope: str
    reads: list[Buffer] = field(default_factory=list)
    writes: list[Buffer] = field(default_factory=list)
    dots: list[Dot] = field(default_factory=list)
    other_flops: int = 0
    traffic: int = 0
    collective: Collective | None = None
    steps: list[tuple[Buffer, Buffer]] = field(default_factory=list)
    loop: Loop | None = None
    branches: tuple[tuple[Kernel, ...], ...] = ()

    @property
    def flops(self) -> int:
        """Of its products, of one execution; a loop's are in its body."""
        return sum(dot.flops for dot in self.dots)

    @property
    def phase(self) -> str:
        """`forward`, `recompute`, `backward` as `Collective.phase`; `optimizer` for what stands outside of the lowered function."""
        return phase_in_step(self.scope)


@dataclass(eq=False)
class Loop:
    """The body of a loop, run `length` times.

    Attributes:
      kernels: of one turn, in program order.
      carries: pairs of buffers, at the start of a turn and at its end. The buffer at the start of the first turn is read by
        the loop's kernel and that at the end of the last is written by it.
    """

    length: int
    kernels: list[Kernel]
    carries: list[tuple[Buffer, Buffer]] = field(default_factory=list)


@dataclass(eq=False)
class Graph:
    """A whole program.

    Attributes:
      arguments, results: buffers, in the program's order; a result may be an argument.
      donated: for each argument, whether its memory is used for results.
      aliases: {position of a result: position of the donated argument whose memory it takes}.
      axis_sizes: the mesh.
      flops: of all executions in one call, `{(tag of the recorded op or None, phase): FLOPs}`.
    """

    kernels: list[Kernel]
    arguments: list[Buffer]
    results: list[Buffer]
    donated: tuple[bool, ...]
    aliases: dict[int, int] = field(default_factory=dict)
    axis_sizes: dict[str, int] = field(default_factory=dict)
    flops: dict[tuple[str | None, str], int] = field(default_factory=dict)

    def walk(self) -> Iterator[tuple[Kernel, int]]:
        """Every kernel with how often it runs, bodies and all branches included, in program order."""
        yield from _walk(self.kernels, 1)


def _walk(kernels, times: int) -> Iterator[tuple[Kernel, int]]:
    for kernel in kernels:
        yield kernel, times
        if kernel.loop is not None:
            yield from _walk(kernel.loop.kernels, times * kernel.loop.length)
        for branch in kernel.branches:
            yield from _walk(branch, times)
