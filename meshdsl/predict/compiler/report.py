"""What the compiler made of a step, as plain data.

`compile` makes it; `meshdsl compile` prints it, and a saved page and `meshdsl compare` show of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from meshdsl.figures import byte_words
from meshdsl.predict.compiler.match import AbsentCollective, CompiledCollective
from meshdsl.predict.compiler.unread import UnreadKind, unread_sentence
from meshdsl.predict.explanation import (
    Explanation,
    MemoryView,
    PipelineView,
    TensorView,
    TimeView,
)


@dataclass(frozen=True)
class ChipMemory:
    """Memory of one device in bytes, as the compiler counts it.

    Attributes:
      needed: all of the following together; of a program that does not fit, what the compiler says
        that it would need.
      arguments, outputs, temporaries, code: each on its own; None where the compiler says nothing.
      aliased: the part of the outputs that takes the memory of arguments.
      peak: the most that lives at once.
      capacity: what programs may use; None for virtual devices.
      largest: the largest arrays at that moment, arguments aside.
    """

    needed: int
    capacity: int | None
    arguments: int | None = None
    outputs: int | None = None
    aliased: int | None = None
    temporaries: int | None = None
    code: int | None = None
    peak: int | None = None
    largest: tuple[TensorView, ...] = ()


@dataclass(frozen=True)
class CompiledReport:
    """One step of a program, compiled for a machine. Everything is of one device and one step.

    Attributes:
      title, layout: of what was compiled, in words.
      axes: the mesh, `{axis: size}`.
      fits: whether it fits; None where the memory of the machine is not known.
      verdict: that in words.
      options: of the compiler, those that differ from its own defaults.
      given: the names of those that the user gave.
      units: how many tokens, images or whatever else one step works on, on all devices.
      unit: what these are, in the singular.
      collectives: of the compiled program, surprises first.
      absent: the collectives that were recorded and are not in it.
      time: the replayed schedule; None for a machine without figures, and for a program that does
        not fit.
      remedies: what to split where it does not fit.
      unread: what of the compiler's text is not understood, by kind. What is said of time,
        collectives and arrays is without it.
      remat, choice: as in `Explanation`.
      pipelines: of the program, with the times of the replayed schedule.
      wide: the products that were meant to be in few bits and are not, in words.
    """

    title: str
    layout: str
    target: str
    axes: Mapping[str, int]
    fits: bool | None
    verdict: str
    memory: ChipMemory
    options: Mapping[str, str]
    given: tuple[str, ...]
    compile_seconds: float
    units: int
    unit: str
    collectives: tuple[CompiledCollective, ...] = ()
    absent: tuple[AbsentCollective, ...] = ()
    time: TimeView | None = None
    remedies: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    unread: tuple[UnreadKind, ...] = ()
    remat: str = ""
    choice: str = ""
    pipelines: tuple[PipelineView, ...] = ()
    wide: tuple[str, ...] = ()

    @property
    def surprises(self) -> tuple[CompiledCollective, ...]:
        """The collectives that no record explains."""
        return tuple(row for row in self.collectives if row.surprise)

    def to_dict(self) -> dict[str, Any]:
        """Everything as dicts, lists, strings and numbers: what `--json` prints."""
        found = asdict(self) | {"pipelines": [one.to_dict() for one in self.pipelines]}
        found[f"{found.pop('unit')}s"] = found.pop("units")
        shares = self.time.shares() if self.time else {}
        return found | shares | {"surprises": [asdict(row) for row in self.surprises]}

    def explained(self, explanation: Explanation) -> Explanation:
        """`explanation` with the compiler's memory and time in place of the estimates.

        Surprises stand in its notes, so the page shows them, and so does what could not be read.

        Args:
          explanation: of the same program.
        """
        memory = with_compiled_memory(explanation.memory, self.memory)
        unread = [sentence] if (sentence := unread_sentence(self.unread)) else []
        wide = [f"meant to be in few bits: {line}" for line in self.wide]
        found = (*unread, *wide, *map(_surprise_line, self.surprises), *self.notes)
        notes = (f"compiled for {self.target}: {self.verdict}", *found, *explanation.notes)
        return replace(
            explanation,
            title=f"{self.title}, compiled",
            memory=memory,
            time=self.time or explanation.time,
            remedies=self.remedies,
            notes=notes,
            pipelines=self.pipelines or explanation.pipelines,
        )


def with_compiled_memory(estimate: MemoryView, memory: ChipMemory) -> MemoryView:
    """`estimate` with what the compiler counted in place of its figures."""
    return replace(
        estimate,
        arguments=estimate.arguments if memory.arguments is None else memory.arguments,
        peak=memory.needed if memory.peak is None else memory.peak,
        largest=memory.largest or estimate.largest,
        capacity=memory.capacity,
    )


def _surprise_line(row: CompiledCollective) -> str:
    """A collective that no record explains, in one line."""
    about = f"near {row.op} ({row.source})" if row.op else "of no recorded op"
    what = f"{row.count:,} x {row.operation}({', '.join(row.axes)})"
    return f"surprise: {what} of {byte_words(row.bytes)} in {row.dtype}, {row.phase}, {about}"
