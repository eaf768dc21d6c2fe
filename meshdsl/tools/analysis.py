"""A program under one layout on one mesh: what one call of it comes to, estimated or compiled.

What is analysed is a function of Tensors with its arguments (`meshdsl.tools.function`), or a
step of training (`meshdsl.commands.analysis`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from types import MappingProxyType
from typing import Any, Protocol

import jax
from jax.sharding import AbstractMesh, Mesh

from meshdsl.machine import Target
from meshdsl.machine.target import target_at_hand
from meshdsl.mesh import make_mesh, platform_of
from meshdsl.predict.compiler.compile import compile_for
from meshdsl.predict.compiler.options import default_options
from meshdsl.predict.compiler.report import CompiledReport
from meshdsl.predict.compiler.topology import target_devices
from meshdsl.predict.explain import explain
from meshdsl.predict.explanation import Explanation
from meshdsl.program.program import Program
from meshdsl.proof import verified
from meshdsl.tools import compiled_text, explanation_text
from meshdsl.tools.page import program_html


class Explained(Explanation):
    """An explanation that prints itself as text and draws itself in a notebook."""

    @classmethod
    def of(cls, program: Program, **options: Any) -> Explained:
        """What one call of `program` does on one device; `options` are those of `explain`."""
        return cls(**vars(explain(program, **options)))

    def __str__(self) -> str:
        return explanation_text.describe(self)

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return program_html(self)


class Subject(verified.Subject, Protocol):
    """What is analysed, on one mesh."""

    @property
    def lowered(self) -> jax.stages.Lowered:
        """One call, ready to be compiled for the mesh."""
        ...


@dataclass(frozen=True, repr=False)
class Compiled(CompiledReport):
    """What a compiler made of a program: a `CompiledReport` that prints and draws itself.

    Attributes:
      executable: JAX's compiled program; None where it does not fit. Where the devices are at hand
        it can be called, with arguments that are split by the layout. It takes no others.
      explanation: of the same call, as estimated.
      subject: what was compiled, on the mesh that it was compiled for.
    """

    executable: Any = field(default=None, compare=False)
    explanation: Explanation | None = field(default=None, compare=False)
    subject: Any = field(default=None, compare=False)

    @property
    def report(self) -> CompiledReport:
        """The report alone, as plain data."""
        return CompiledReport(**{f.name: getattr(self, f.name) for f in fields(CompiledReport)})

    def to_dict(self) -> dict[str, Any]:
        """The report as dicts, lists, strings and numbers."""
        return self.report.to_dict()

    def __str__(self) -> str:
        return compiled_text.describe(self)

    __repr__ = __str__

    def explained_as_compiled(self) -> Explanation:
        """The explanation, with the memory and the time of the compiled program."""
        assert self.explanation is not None
        return self.explained(self.explanation)

    def _repr_html_(self) -> str:
        return program_html(self.explained_as_compiled())


@dataclass(frozen=True)
class Analysis:
    """A program under one layout on one mesh.

    Attributes:
      on: gives what is analysed, a `Subject`, on a mesh with or without devices.
      mesh: that of `sizes`; without devices where there is a target.
      sizes: of the mesh axes.
      target: the machine; None where nothing is known but the number of devices.
      title: what the explanation is headed with.
      units: how many tokens, images, ... one call works on, on all devices together; 0 where that
        says nothing.
      unit: what these are, in the singular.
      model_flops: FLOPs of the model in one call on one device, with causal attention counted half,
        and in full. None: they are counted in the program.
      remedies: what would save memory, beside what the program itself says.
      notes: what a reader should know, beside what the program itself says.
      sends: called with the seconds of a step, or None, gives lines on what is sent between steps,
        such as an exchange of workers.
      remat: what `model.remat=auto` has chosen; empty without it.
      choice: why, in one line.
    """

    on: Callable[[Any], Any]
    mesh: Mesh | AbstractMesh
    sizes: Mapping[str, int]
    target: Target | None
    title: str
    units: int = 0
    unit: str = "token"
    model_flops: tuple[float, float] | None = None
    remedies: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    sends: Callable[[float | None], Sequence[str]] = lambda step: ()
    remat: str = ""
    choice: str = ""

    def explain(self) -> Explanation:
        """One call as estimated from its record, without a compiler."""
        return self._explain(self.on(self.mesh).program(), self.target)

    def compile(self, given: Mapping[str, str] = MappingProxyType({})) -> Compiled:
        """Compile the program for the target; without one, for the devices of the mesh.

        Args:
          given: options of the compiler, beside those that are used by default.

        Raises:
          MeshDSLError: the compiler is not installed, or refuses the program or an option; there
            are fewer devices than the mesh needs.
        """
        mesh = self.mesh
        if self.target is not None:
            mesh = make_mesh(dict(self.sizes), target_devices(self.target))
        elif not isinstance(mesh, Mesh):
            mesh = make_mesh(dict(self.sizes))
        target = self.target or target_at_hand(list(mesh.devices.flat))
        subject: Subject = self.on(mesh)
        program = subject.program()
        explanation = self._explain(program, target)
        time = explanation.time
        report, executable = compile_for(
            subject.lowered,
            program,
            target,
            explanation,
            options=default_options(mesh, target.chip) | dict(given),
            given=tuple(given),
            model_flops=(time.model_flops, time.model_flops_full) if time else None,
        )
        if report.fits is False:
            report = replace(report, remedies=(*report.remedies, *self.remedies))
        sends = self.sends(report.time.step if report.time else None)
        report = replace(report, notes=(*report.notes, *sends))
        known: dict[str, Any] = vars(report) | {"remat": self.remat, "choice": self.choice}
        return Compiled(**known, executable=executable, explanation=explanation, subject=subject)

    def verify(self, *, numbers: bool = True) -> verified.Verified:
        """Prove that one call computes what it does on one device; see `md.verify`."""
        program = self.on(self.mesh).program()
        return verified.verified(
            self.on, program, platform_of(self.mesh), self.title, numbers=numbers
        )

    def _explain(self, program: Program, target: Target | None) -> Explanation:
        found = Explained.of(
            program,
            title=self.title,
            target=target,
            units=self.units,
            unit=self.unit,
            model_flops=self.model_flops,
            count_flops=True,
        )
        too_large = found.memory.fits is False
        sends = self.sends(found.time.step if found.time else None)
        return replace(
            found,
            remedies=(*found.remedies, *self.remedies) if too_large else (),
            notes=(*found.notes, *self.notes, *sends),
            remat=self.remat,
            choice=self.choice,
        )
