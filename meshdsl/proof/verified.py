"""What is proved of a program: `md.verify` and `meshdsl verify`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Protocol

from meshdsl.program.program import Program
from meshdsl.program.recorder import tag_in
from meshdsl.proof import prove


class _Subject(Protocol):
    def program(self) -> Program: ...

    def reference(self) -> Program: ...


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
    """

    title: str
    results: tuple[str, ...]
    unproved: tuple[str, ...] = ()
    why: str = ""
    op: str = ""
    lines: tuple[str, ...] = ()

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
            return f"{self.title}\nproved: {results} of one device, up to the order of sums"
        what = f"{len(self.unproved)} of {count} results, `{self.unproved[0]}` among them"
        found = [
            self.title,
            f"not proved: {'its result' if count == 1 else what}",
            f"  {self.why}" + (f": {self.op}" if self.op else ""),
            *(f"    {line}" for line in self.lines),
        ]
        return "\n".join(found)

    __repr__ = __str__

    def to_dict(self) -> dict[str, Any]:
        """As dicts, lists and strings."""
        return {**asdict(self), "proved": self.proved}


def verified(subject: _Subject, title: str) -> Verified:
    """What is proved of a program on a mesh; see `md.verify`."""
    reference, program = subject.reference(), subject.program()
    names = [result.name for result in program.results]
    orders = _orders(reference, program)
    proof = prove(reference.jaxpr, program.jaxpr, names, orders)
    if proof.doubt is None:
        return Verified(title, proof.results)
    doubt = proof.doubt
    op = program.op_tagged(tag_in(doubt.scope))
    where = f"`{doubt.primitive}`" if doubt.primitive else ""
    if op is not None:
        where = f"`{doubt.primitive}` in {op}"
    lines = tuple(f"{file}:{line}" for file, line in op.lines) if op else ()
    return Verified(title, proof.results, doubt.results, doubt.why, where, lines)


def _orders(reference: Program, program: Program) -> list[Sequence[int] | None]:
    """For each result its dims in the order of those of one device; None where it is the same."""
    found: list[Sequence[int] | None] = []
    for expected, result in zip(reference.results, program.results, strict=True):
        same = expected.dims == result.dims
        found.append(None if same else [result.dims.index(dim) for dim in expected.dims])
    return found
