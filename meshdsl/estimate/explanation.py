"""The answer of `explain`: plain data, which the terminal, the page, JSON and the comparison of layouts all show.

Everything is per device and for one call of the program (one step of training), unless it says otherwise. Times are seconds,
sizes are bytes. What needs a target (times, the capacity of memory) is None without one.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from meshdsl.dims import Dims
from meshdsl.tensor import notation

PHASES = ("forward", "recompute", "backward", "gradient", "optimizer")


@dataclass(frozen=True)
class DimView:
    """A dim of a loop nest or of a tensor: its whole size, the part that one device holds, and the axes that split it."""

    name: str
    size: int
    local: int
    axes: tuple[str, ...]


def dim_views(
    dims: Dims, axes: Sequence[tuple[str, ...]], sizes: Mapping[str, int]
) -> tuple[DimView, ...]:
    """`dims` with the axes that split each; the part of a dim that does not divide counts its padding."""
    return tuple(
        DimView(d.name, d.size, -(-d.size // math.prod(sizes[a] for a in split)), tuple(split))
        for d, split in zip(dims, axes, strict=True)
    )


@dataclass(frozen=True)
class MoveView:
    """A collective of an op in one phase.

    Attributes:
      operation: `all_gather`, `psum_scatter`, `psum`, `all_to_all`, `ppermute`, `pmax`, `pmin`.
      count: how often one step runs it, loops multiplied in.
      bytes: of one execution: the larger of its operand and its result.
      why: the rule that caused it.
      seconds: of one execution, alone on its links.
    """

    operation: str
    axes: tuple[str, ...]
    phase: str
    count: int
    bytes: int
    dtype: str
    why: str
    seconds: float | None = None


@dataclass(frozen=True)
class OpView:
    """One op of the program, in every phase.

    Attributes:
      tag: its name in JAX's name stacks and in compiled programs.
      dims: its loop nest.
      count: how often one step runs it forward; loops: the loops around it, outermost first, `(("layers", 32),)`.
      source: `attention.py:53 linear.py:30`, the lines of the user's model, the innermost last.
      flops: of all executions in each phase where it has any.
      seconds: of all executions in each phase, computing alone; a kernel that several ops share counts for one of them. Empty without a target.
      moves: its collectives.
      waste: the work on padding, as a fraction of that on elements.
      idle: axes larger than 1 that its loop nest leaves unused: every device along them does the same work.
      advice: a rule that would use an idle axis, such as `length -> model`; empty where there is none.
    """

    tag: str
    name: str
    dims: tuple[DimView, ...]
    count: int
    loops: tuple[tuple[str, int], ...]
    source: str
    flops: dict[str, float]
    moves: tuple[MoveView, ...]
    idle: tuple[str, ...] = ()
    advice: str = ""
    waste: float = 0.0
    seconds: dict[str, float] = field(default_factory=dict)

    @property
    def notation(self) -> str:
        """`einsum[batch_data, length, d_ff_model]`."""
        return self.name + notation(self.dims, [d.axes for d in self.dims])


@dataclass(frozen=True)
class TensorView:
    """An array in the memory of one device.

    Attributes:
      name: a path such as `blocks.layer.mlp.up.weight`, or the op that makes it.
      kind: `parameter`, `gradient`, `optimizer`, `batch`, `other` (at rest), or `activation`.
      dims: empty where its dims are not known.
      bytes: on one device.
      source: the line that makes it; empty for what is at rest.
    """

    name: str
    kind: str
    dims: tuple[DimView, ...]
    shape: tuple[int, ...]
    dtype: str
    bytes: int
    source: str = ""

    @property
    def notation(self) -> str:
        return (
            self.name + notation(self.dims, [d.axes for d in self.dims]) if self.dims else self.name
        )


@dataclass(frozen=True)
class MemoryView:
    """Memory of one device.

    Attributes:
      at_rest: arguments of the step (parameters, optimizer state, batch) and the gradients, each array by name.
      arguments: bytes of the arguments, as the compiler counts them (`argument_size_in_bytes`).
      peak: the most that lives at once, as the compiler counts it (`peak_memory_in_bytes`); an estimate.
      largest: the largest arrays that live at that moment, largest first.
      at_peak: the source line or phase in which it is reached.
      capacity: of the chip.
    """

    at_rest: tuple[TensorView, ...]
    arguments: int
    peak: int
    largest: tuple[TensorView, ...]
    at_peak: str = ""
    capacity: int | None = None

    @property
    def fits(self) -> bool | None:
        return None if self.capacity is None else self.peak <= self.capacity

    def total(self, kind: str) -> int:
        return sum(t.bytes for t in self.at_rest if t.kind == kind)


@dataclass(frozen=True)
class AxisView:
    """A mesh axis, and how it lies on the machine.

    Attributes:
      count, bytes: of all collectives over this axis alone or with others, in one step.
      lies: in words, `ring of 16 on 2 links of torus dim x, 180 GB/s`; empty without a target.
      seconds: of these collectives, alone on their links.
      idle: no op uses it.
    """

    name: str
    size: int
    count: int
    bytes: int
    lies: str = ""
    seconds: float | None = None
    idle: bool = False


@dataclass(frozen=True)
class Span:
    """Something that runs from `start` to `end` (seconds from the start of the step) on a stream: `compute`, or the name of the axes of a
    collective, `model` or `data, model`. `repeats` is how often: the span of a loop's body shows its first turn, and the loop is a span on the stream `loops`.
    """

    stream: str
    name: str
    start: float
    end: float
    phase: str
    tag: str = ""
    repeats: int = 1


@dataclass(frozen=True)
class TimeView:
    """An estimate of the time of one step.

    Attributes:
      compute: of the compute stream alone. communication: of all collectives one after the other.
      step: with collectives overlapping what does not need them; serial: without any overlap.
      exposed: the part of `step` in which compute waits for a collective.
      model_flops: FLOPs of the model in one step on one device by the 6 N D convention, causal attention counted half; in full.
      spans: the timeline of the overlapped step; each loop's body once.
    """

    compute: float
    communication: float
    step: float
    serial: float
    exposed: float
    model_flops: float
    model_flops_full: float
    peak_flops: float
    spans: tuple[Span, ...]

    @property
    def mfu(self) -> float:
        """Model FLOPs utilisation (Chowdhery et al., 2022), causal attention counted half."""
        return self._share(self.model_flops / self.peak_flops)

    @property
    def mfu_full(self) -> float:
        return self._share(self.model_flops_full / self.peak_flops)

    @property
    def exposed_share(self) -> float:
        """The share of the step in which compute waits for a collective."""
        return self._share(self.exposed)

    def _share(self, seconds: float) -> float:
        return seconds / self.step if self.step else 0.0  # a program may do nothing


@dataclass(frozen=True)
class Explanation:
    """See the module.

    Attributes:
      notes: what the layout says and the program has no use for.
      remedies: what to split where it does not fit.
    """

    title: str
    layout: str
    target: str
    axes: tuple[AxisView, ...]
    ops: tuple[OpView, ...]
    memory: MemoryView
    time: TimeView | None
    tokens: int
    notes: tuple[str, ...] = ()
    remedies: tuple[str, ...] = ()

    @property
    def devices(self) -> int:
        return math.prod(axis.size for axis in self.axes)

    @property
    def tokens_per_second(self) -> float:
        """Of all devices together; 0 without a target."""
        return self.tokens / self.time.step if self.time and self.time.step else 0.0

    def to_dict(self) -> dict[str, Any]:
        """Everything as dicts, lists, strings and numbers, and what follows from it: what `--json` prints."""
        kinds = dict.fromkeys(t.kind for t in self.memory.at_rest)
        follows = {
            "fits": self.memory.fits,
            "devices": self.devices,
            "bytes_at_rest": {kind: self.memory.total(kind) for kind in kinds},
        }
        if self.time:
            shares = {
                "mfu": self.time.mfu,
                "mfu_full": self.time.mfu_full,
                "exposed_share": self.time.exposed_share,
            }
            follows |= shares | {"tokens_per_second": self.tokens_per_second}
        return asdict(self) | follows
