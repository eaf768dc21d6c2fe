"""What is proved of a program: `md.verify` and `meshdsl verify`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, Protocol

from meshdsl.mesh import abstract_mesh
from meshdsl.program.program import Program
from meshdsl.program.recorder import tag_in
from meshdsl.proof.counterexample import difference
from meshdsl.proof.prove import contracts_of, lemmas_of, prove


class Subject(Protocol):
    """A call on one mesh."""

    def program(self) -> Program:
        """The record of the call."""
        ...

    def reference(self) -> Program:
        """The program of the same call on one device."""
        ...


@dataclass(frozen=True, repr=False)
class Verified:
    """What is proved of one call of a program.

    Attributes:
      title: what was looked at.
      results: the names of its results, such as `params.head.weight`.
      unproved: those of which it is not proved that they are the same as on one device.
      why: what stands in the way of the first of these; empty where all are proved.
      op: the op in which the program first computes what one device does not, with the split of its
        loop nest; empty where that is in no op.
      lines: the lines of the user's code that call the op, the innermost first.
      numbers: what both programs computed of random arguments, in words; empty if they were not
        run.
      lemmas: how many equations of each primitive the proved program has.
      assumed: what the proof takes for granted of kernels and of primitives without a lemma.
      files: those that call ops: of layers, of models and of the user's code.
    """

    title: str
    results: tuple[str, ...]
    unproved: tuple[str, ...] = ()
    why: str = ""
    op: str = ""
    lines: tuple[str, ...] = ()
    numbers: str = ""
    lemmas: Mapping[str, int] = field(default_factory=dict)
    assumed: tuple[str, ...] = ()
    files: tuple[str, ...] = ()

    @property
    def proved(self) -> bool:
        """Whether all results are."""
        return not self.unproved

    def __bool__(self) -> bool:
        return self.proved

    def __str__(self) -> str:
        count = len(self.results)
        if self.proved:
            results = "its result equals that" if count == 1 else f"all {count} results equal those"
            proved = f"proved: {results} of one device, up to the order of sums"
            return "\n".join([self.title, proved, *(f"  taken: {x}" for x in self.assumed)])
        what = f"{len(self.unproved)} of {count} results, `{self.unproved[0]}` among them"
        found = [
            self.title,
            f"not proved: {'its result' if count == 1 else what}",
            f"  {self.why}" + (f": {self.op}" if self.op else ""),
            *(f"    {line}" for line in self.lines),
            *([f"  {self.numbers}"] if self.numbers else []),
        ]
        return "\n".join(found)

    __repr__ = __str__

    def to_dict(self) -> dict[str, Any]:
        """As dicts, lists and strings."""
        return {**asdict(self), "proved": self.proved}

    @classmethod
    def from_dict(cls, found: Mapping[str, Any]) -> Verified:
        """The inverse of `to_dict`, also of what was read from JSON, which has no tuples."""
        known: dict[str, Any] = {}
        for each in fields(cls):
            x = found[each.name]
            known[each.name] = tuple(x) if isinstance(x, list) else x
        return cls(**known)


def verified(
    on: Callable[[Any], Subject],
    program: Program,
    platform: str,
    title: str,
    *,
    numbers: bool = True,
) -> Verified:
    """What is proved of a program on a mesh; see `md.verify`.

    Args:
      on: gives the same call on a mesh without devices. Where ops run as kernels on the machine
        that is meant, what is proved is the program for CPUs, in which they are written out.
      program: for that machine.
      platform: of the machine.
      numbers: whether to run both programs where something is not proved.
    """
    plain = on(abstract_mesh(program.axis_sizes, "cpu"))
    reference, runs = plain.reference(), program
    if platform != "cpu":
        program = plain.program()
    names = [result.name for result in program.results]
    proof = prove(reference.jaxpr, program.jaxpr, names, _orders(reference, program))
    known: dict[str, Any] = {"title": title, "results": proof.results, "files": _files(program)}
    if proof.doubt is not None:
        doubt = proof.doubt
        op = program.op_tagged(tag_in(doubt.scope))
        where = f"`{doubt.primitive}`" if doubt.primitive else ""
        if op is not None:
            where = f"`{doubt.primitive}` in {op}"
        lines = tuple(f"{file}:{line}" for file, line in op.lines) if op else ()
        known |= {"unproved": doubt.results, "why": doubt.why, "op": where, "lines": lines}
        tried = difference(on, program.axis_sizes, _orders) if numbers else ""
        return Verified(**known, numbers=tried)
    if _sent(runs) != _sent(program):
        why = f"for {platform}s it has other collectives than what could be proved"
        return Verified(**known, unproved=proof.results, why=why)
    (lemmas, unknown), contracts = lemmas_of(program.jaxpr), contracts_of(program.jaxpr)
    functions = ", ".join(f"`{name}`" for name in unknown)
    assumed = [f"{functions}: of the same operands they make the same"] if functions else []
    assumed += [f"products of groups of rows: the code {said}" for said in contracts]
    if runs is not program:
        assumed += _kernels(runs)
    return Verified(**known, lemmas=lemmas, assumed=tuple(assumed))


def _files(program: Program) -> tuple[str, ...]:
    found = {file for op in program.ops for file, _ in op.lines}
    return tuple(sorted(file for file in found if Path(file).is_absolute()))


def _sent(program: Program) -> Counter[tuple]:
    """How often each collective runs, whatever op it is of."""
    found: Counter[tuple] = Counter()
    for c in program.collectives:
        found[c.operation, c.axes, c.bytes, c.dtype] += c.count
    return found


def _kernels(program: Program) -> list[str]:
    """The kernels that ops run as, each with what is taken for granted of it."""
    found = dict.fromkeys((op.name, op.kernel) for op in program.ops if op.kernel)
    return [
        f"the kernel `{kernel}` computes what `{name}` does without one" for name, kernel in found
    ]


def _orders(reference: Program, program: Program) -> list[Sequence[int] | None]:
    """For each result its dims in the order of those of one device; None where it is the same."""
    found: list[Sequence[int] | None] = []
    for expected, result in zip(reference.results, program.results, strict=True):
        same = expected.dims == result.dims
        found.append(None if same else [result.dims.index(dim) for dim in expected.dims])
    return found
