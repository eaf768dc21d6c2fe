"""The answer of `explain` as plain data: the text, the page, JSON and `compare` all show it.

Everything is for one device and one call of the program (one step of training), unless it says
otherwise. Times are in seconds, sizes in bytes. What needs a target (times, the capacity of memory)
is None without one.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from types import MappingProxyType
from typing import Any

from meshdsl.dims import Dims
from meshdsl.machine.timeline import Span, Timeline
from meshdsl.predict.repeated_work import RepeatedView
from meshdsl.splits.pipeline import Schedule

PHASES = ("forward", "recompute", "backward", "gradient", "optimizer")


@dataclass(frozen=True)
class DimView:
    """A dim of a loop nest or of a tensor, and how it is split; as text `batch_data`.

    Attributes:
      size: of the whole dim.
      local: size of the part that one device has.
      axes: that split it.
    """

    name: str
    size: int
    local: int
    axes: tuple[str, ...]

    def __str__(self) -> str:
        return "_".join((self.name, *self.axes))


def dim_views(
    dims: Dims, axes: Sequence[tuple[str, ...]], sizes: Mapping[str, int]
) -> tuple[DimView, ...]:
    """`dims`, each split over its `axes` of the mesh `sizes`; parts include the padding."""
    return tuple(
        DimView(d.name, d.size, -(-d.size // math.prod(sizes[a] for a in split)), tuple(split))
        for d, split in zip(dims, axes, strict=True)
    )


@dataclass(frozen=True)
class MoveView:
    """A collective of an op in one phase.

    Attributes:
      operation: `all_gather`, `psum_scatter`, `psum`, `all_to_all`, `ppermute`, `pmax`, `pmin`.
      axes: the mesh axes that it goes over.
      phase: one of `PHASES`.
      count: how often it runs in one step, in loops too.
      bytes: of one execution: the larger of its operand and its result.
      dtype: NumPy's name.
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
      name: such as `einsum`.
      dims: of its loop nest.
      count: how often one step runs it forward.
      loops: the loops around it with their lengths, the outermost first: `(("layers", 32),)`.
      source: the lines of the user's model, the innermost last: `attention.py:53 linear.py:30`.
      flops: of all executions, for each phase that has any.
      moves: its collectives.
      idle: axes larger than 1 that its loop nest leaves unused: all devices along them do the same
        work.
      advice: a rule that would use an idle axis, such as `length -> model`; empty if there is none.
      waste: the work on padding, as a fraction of the work on elements.
      seconds: of all executions in each phase, without collectives. A kernel that several ops share
        counts for one of them. Empty without a target.
      kernel: which of several kernels the op runs, such as `splash`; empty where it has no choice.
      lacks: the kernels that it would have preferred, each with what it cannot do of this op.
      pipeline: the tag of the pipeline in whose ticks the op runs; empty if it is in none.
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
    kernel: str = ""
    lacks: tuple[tuple[str, str], ...] = ()
    pipeline: str = ""

    @property
    def notation(self) -> str:
        """The op with its split loop nest: `einsum[batch_data, length, d_ff_model]`."""
        return f"{self.name}[{', '.join(map(str, self.dims))}]"


@dataclass(frozen=True)
class PipelineView:
    """A pipeline: stages that have some of the layers each, and microbatches that pass them.

    Attributes:
      tag: of the op `pipeline`.
      dim: whose elements lie on the stages, such as `layers`.
      size: how many elements the dim has.
      axes: the mesh axes over which the stages lie.
      stages, microbatches, rounds, early: as in `splits.pipeline.Schedule`.
      ticks: of one pass of the pipeline, those for which a stage waits among them.
      chunk: how many elements a stage works on at a tick, padding among them.
      loops: the loops around it with their lengths, the outermost first.
      source: the lines of the user's model, the innermost last.
      parameters: bytes at rest of the parameters of all elements that a device has.
      split: whether these are split over the stages; not where the elements do not divide.
      kept: bytes that a device keeps of the forward pass for the backward pass: of all ticks, or of
        the items that are under way in an early schedule.
      forward, backward: seconds of all ticks in one step; what is recomputed is in `backward`. None
        without a target.
    """

    tag: str
    dim: str
    size: int
    axes: tuple[str, ...]
    stages: int
    microbatches: int
    rounds: int
    ticks: int
    chunk: int
    loops: tuple[tuple[str, int], ...]
    source: str
    parameters: int
    split: bool
    kept: int
    forward: float | None = None
    backward: float | None = None
    early: bool = False

    @property
    def schedule(self) -> Schedule:
        """Which stage works on what, when."""
        return Schedule(self.stages, self.microbatches, self.rounds, early=self.early)

    @property
    def count(self) -> int:
        """How often one step runs the pipeline."""
        return math.prod(n for _, n in self.loops)

    @property
    def padding(self) -> int:
        """How many of the elements on all stages are padding."""
        return self.chunk * self.rounds * self.stages - self.size

    @property
    def waiting(self) -> float | None:
        """Seconds of a step for which each stage waits; None without a target."""
        if self.forward is None or self.backward is None:
            return None
        return (self.forward + self.backward) * self.schedule.bubble

    def to_dict(self) -> dict[str, Any]:
        """Everything as a dict, with the bubble: the share of the ticks, and seconds of a step."""
        schedule = self.schedule
        early = {"first_back": schedule.first_back, "slots": schedule.slots} if self.early else {}
        return asdict(self) | early | {"bubble": schedule.bubble, "waiting": self.waiting}


@dataclass(frozen=True)
class TensorView:
    """An array in the memory of one device.

    Attributes:
      name: a path such as `blocks.layer.mlp.up.weight`, or the op that makes it.
      kind: `parameter`, `gradient`, `optimizer`, `batch`, `other` (at rest), or `activation`.
      dims: empty if they are not known.
      shape: on one device.
      dtype: NumPy's name.
      bytes: on one device.
      source: the lines that make it; empty for what is at rest.
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
        """The name with the split dims: `table[vocab_model, d_model]`."""
        return f"{self.name}[{', '.join(map(str, self.dims))}]" if self.dims else self.name


@dataclass(frozen=True)
class MemoryView:
    """The memory of one device.

    Attributes:
      at_rest: the arguments of the step (parameters, optimizer state, batch) and the gradients.
      arguments: bytes of the arguments, as the compiler counts them (`argument_size_in_bytes`).
      peak: the most bytes that live at once, an estimate of what the compiler counts
        (`peak_memory_in_bytes`).
      largest: the largest arrays that live at the peak, the largest first.
      at_peak: the phase and the op in which the peak is reached.
      capacity: bytes of the chip's memory.
    """

    at_rest: tuple[TensorView, ...]
    arguments: int
    peak: int
    largest: tuple[TensorView, ...]
    at_peak: str = ""
    capacity: int | None = None

    @property
    def fits(self) -> bool | None:
        """Whether the peak fits; None if the capacity is not known."""
        return None if self.capacity is None else self.peak <= self.capacity

    def total(self, kind: str) -> int:
        """Bytes of all arrays of a kind at rest, `parameter` say."""
        return sum(t.bytes for t in self.at_rest if t.kind == kind)


@dataclass(frozen=True)
class AxisView:
    """A mesh axis, and how it lies on the machine.

    Attributes:
      count: how many collectives go over this axis, alone or with others, in one step.
      bytes: of these collectives.
      lies: in words, `ring of 16 along x of the torus, 2 links, 180 GB/s both ways`; empty without
        a target.
      seconds: of these collectives, alone on their links.
      idle: whether no op uses it.
      between: bytes that each device sends to other slices or nodes in these collectives; None
        where the axis lies within each of them.
    """

    name: str
    size: int
    count: int
    bytes: int
    lies: str = ""
    seconds: float | None = None
    idle: bool = False
    between: float | None = None


@dataclass(frozen=True)
class Estimate:
    """The time of a step as estimated, and how far off it may be.

    Attributes:
      step: seconds.
      deviations: seconds by which the estimate may be off (a standard deviation) for each piece of
        work of the step, by its name; see `predict.time.uncertainty`. Empty where that is not
        known.
    """

    step: float
    deviations: Mapping[str, float] = field(default_factory=dict, hash=False, repr=False)

    @property
    def uncertainty(self) -> float | None:
        """The standard deviation of `step`, in seconds; None where it is not known."""
        return math.hypot(*self.deviations.values()) if self.deviations else None


@dataclass(frozen=True)
class TimeView:
    """The time of one step, as estimated or as replayed.

    Attributes:
      compute: seconds that the device computes.
      communication: seconds of all collectives, one after the other.
      step: seconds of the step; collectives overlap with what does not need them.
      serial: seconds of the step without any overlap.
      exposed: the part of `step` in which the device waits for a collective.
      model_flops: FLOPs of the model in one step on one device, by the 6 N D convention; causal
        attention counts half.
      model_flops_full: the same with attention in full. Where they are counted in the program both
        are that count.
      peak_flops: FLOP/s of one device.
      spans: the timeline of the step.
      fused: the part of `compute` in fused kernels, of which a share of the FLOP/s is assumed
        (`machine.FUSED_EFFICIENCY`).
      deviations: as in `Estimate`; empty for what is replayed.
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
    fused: float = 0.0
    deviations: Mapping[str, float] = field(default_factory=dict, hash=False)

    @classmethod
    def of(
        cls,
        ran: Timeline,
        model_flops: tuple[float, float],
        peak_flops: float,
        deviations: Mapping[str, float] = MappingProxyType({}),
    ) -> TimeView:
        """The time of a step with this timeline, of a model with so many FLOPs."""
        communication = math.fsum(ran.communication.values())
        return cls(
            compute=ran.compute,
            communication=communication,
            step=ran.step,
            serial=ran.compute + ran.copies + communication,
            exposed=ran.exposed,
            model_flops=model_flops[0],
            model_flops_full=model_flops[1],
            peak_flops=peak_flops,
            spans=ran.spans,
            fused=ran.fused,
            deviations=dict(deviations),
        )

    @property
    def estimate(self) -> Estimate:
        """The step and how far off it may be, alone."""
        return Estimate(self.step, self.deviations)

    @property
    def halved(self) -> bool:
        """Whether causal attention counts half in the model's FLOPs; not where they are counted."""
        return self.model_flops != self.model_flops_full

    @property
    def mfu(self) -> float:
        """Model FLOPs utilisation (Chowdhery et al., 2022), causal attention counted half."""
        return self._share(self.model_flops / self.peak_flops)

    @property
    def mfu_full(self) -> float:
        """Model FLOPs utilisation, causal attention counted in full."""
        return self._share(self.model_flops_full / self.peak_flops)

    @property
    def exposed_share(self) -> float:
        """The share of the step in which the device waits for a collective."""
        return self._share(self.exposed)

    def shares(self) -> dict[str, float]:
        """These shares by name."""
        return {n: getattr(self, n) for n in ("mfu", "mfu_full", "exposed_share")}

    def _share(self, seconds: float) -> float:
        return seconds / self.step if self.step else 0.0  # a program may do nothing at all


@dataclass(frozen=True)
class Explanation:
    """What one call of a program does on one device.

    Attributes:
      title: what was explained.
      layout: its name.
      target: its name; empty without one.
      axes: of the mesh.
      ops: in program order.
      memory: of one device.
      time: of one call; None without a target that has figures.
      units: how many tokens, images or whatever else one call works on, on all devices; 0 where
        that says nothing.
      unit: what these are, in the singular.
      notes: what the layout says and the program has no use for.
      remedies: what to split if it does not fit.
      remat: what `model.remat=auto` has chosen; empty without it.
      choice: why, in one line.
      pipelines: of the program, in program order.
      repeated: work that devices repeat, by lines of the user's code, most FLOPs first.
    """

    title: str
    layout: str
    target: str
    axes: tuple[AxisView, ...]
    ops: tuple[OpView, ...]
    memory: MemoryView
    time: TimeView | None
    units: int
    notes: tuple[str, ...] = ()
    remedies: tuple[str, ...] = ()
    unit: str = "token"
    remat: str = ""
    choice: str = ""
    pipelines: tuple[PipelineView, ...] = ()
    repeated: tuple[RepeatedView, ...] = ()

    @property
    def devices(self) -> int:
        """The number of devices of the mesh."""
        return math.prod(axis.size for axis in self.axes)

    def to_dict(self) -> dict[str, Any]:
        """Everything as dicts, lists, strings and numbers, with derived figures.

        It is what `--json` prints.
        """
        kinds = dict.fromkeys(t.kind for t in self.memory.at_rest)
        derived = {
            "fits": self.memory.fits,
            "devices": self.devices,
            "bytes_at_rest": {kind: self.memory.total(kind) for kind in kinds},
        }
        if self.time:
            rate = self.units / self.time.step if self.time.step else 0.0
            derived |= self.time.shares() | {f"{self.unit}s_per_second": rate}
            derived["uncertainty"] = self.time.estimate.uncertainty
        found = asdict(self) | {"pipelines": [one.to_dict() for one in self.pipelines]}
        return found | {f"{self.unit}s": found.pop("units")} | derived
