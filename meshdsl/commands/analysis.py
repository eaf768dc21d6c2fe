"""What `explain`, `compile` and `compare` have in common: one model, under one layout, on one mesh.

`analysis_of` finds these three by the flags and settings of a command line. An `Analysis` then says
what a step of training comes to: as estimated from its record, or as compiled for a target.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import prod
from types import MappingProxyType
from typing import Any, NamedTuple

from jax.sharding import Mesh

from meshdsl.analysis.machine import mesh_on
from meshdsl.commands.lookup import devices_of_mesh
from meshdsl.commands.settings import model_values
from meshdsl.compiled.compile import compile_for
from meshdsl.compiled.options import default_options
from meshdsl.compiled.report import CompiledReport
from meshdsl.compiled.topology import target_devices
from meshdsl.dims import Dim
from meshdsl.errors import MeshDSLError
from meshdsl.family.by_name import family_name
from meshdsl.family.calls import batch_fields
from meshdsl.layout import Layout
from meshdsl.machine import Target, find_target
from meshdsl.mesh import abstract_mesh, axis_sizes, make_mesh
from meshdsl.report import Explanation, explain
from meshdsl.tensor import Tensor
from meshdsl.train.auto_remat import choose_remat
from meshdsl.train.config import Config
from meshdsl.train.data import task_of
from meshdsl.train.job import Job
from meshdsl.train.optimizer import TABLE
from meshdsl.train.remedies import settings_that_save_memory
from meshdsl.train.settings import override
from meshdsl.train.stored_layout import find_layout

# They sum over whole parameters, by collectives that XLA places and the record does not list.
_UNRECORDED_OPTIMIZERS = ("adafactor",)


class CompiledStep(NamedTuple):
    """A step of training that was compiled for a target.

    Attributes:
      report: what the compiler made of it.
      explanation: of the same step, as estimated.
      job: the step.
      executable: the compiled program; None where it does not fit the target.
    """

    report: CompiledReport
    explanation: Explanation
    job: Job
    executable: Any


@dataclass(frozen=True)
class Analysis:
    """One model under one layout on one mesh.

    Attributes:
      name: what the explanation is headed with.
      config: the configuration of the training run whose step is analysed.
      sizes: of the mesh axes.
      target: the machine; None where nothing is known but the number of devices.
      remat: what `model.remat=auto` has chosen; empty without it.
      choice: why, in one line.
    """

    name: str
    config: Config
    layout: Layout
    sizes: dict[str, int]
    target: Target | None
    remat: str = ""
    choice: str = ""

    def job(self, mesh: Mesh | None = None) -> Job:
        """The step of training, on `mesh`, or on a mesh without devices."""
        platform = self.target.chip.kind if self.target else None
        where: Any = abstract_mesh(self.sizes, platform) if mesh is None else mesh
        return Job(self.config, self.layout, where)

    @property
    def units(self) -> int:
        """How many tokens, images, ... one step works on, on all devices together."""
        return self.config.batch * task_of(self.config).units_per_row(self.fields)

    @property
    def fields(self) -> dict[str, Tensor]:
        """A batch of the step in the abstract."""
        return task_of(self.config).fields(self.config, Dim("batch", self.config.batch))

    @property
    def model_flops(self) -> tuple[float, float] | None:
        """FLOPs of one step per device, with causal attention counted half, and in full.

        None where the family does not state them: then they are counted in the record.
        """
        flops, devices = self.config.model.step_flops(self.config.batch), prod(self.sizes.values())
        return None if flops is None else (flops[0] / devices, flops[1] / devices)

    def explain(self) -> Explanation:
        """The step as estimated from its record, without a compiler."""
        explanation = explain(
            self.job().program(),
            title=self.name,
            target=self.target,
            units=self.units,
            unit=task_of(self.config).unit,
            model_flops=self.model_flops,
            count_flops=True,
        )
        remedies: tuple[str, ...] = ()
        if explanation.memory.fits is False:
            remedies = (*explanation.remedies, *self._remedies())
        notes, optimizer = explanation.notes, self.config.optimizer.name
        if optimizer not in TABLE:
            notes = (
                *notes,
                f"{optimizer} may sum over whole parameters: collectives that XLA places for that "
                "are not in this list",
            )
        if optimizer in _UNRECORDED_OPTIMIZERS:
            notes = (
                *notes,
                f"{optimizer} sums over whole parameters: the collectives that XLA places for "
                "that are not in this list",
            )
        found = replace(explanation, remedies=remedies, notes=notes)
        return replace(found, remat=self.remat, choice=self.choice)

    def compile(self, given: Mapping[str, str] = MappingProxyType({})) -> CompiledStep:
        """Compile the step for the target.

        Args:
          given: options of the compiler, beside those that are used by default.

        Raises:
          MeshDSLError: the compiler is not installed, or refuses the step or an option.
        """
        assert self.target is not None
        # First: the devices of a cpu target can be made only before JAX computes anything.
        devices = target_devices(self.target)
        job = self.job(make_mesh(self.sizes, devices))
        explanation = self.explain()
        time = explanation.time
        report, executable = compile_for(
            job.lowered,
            job.program(),
            self.target,
            explanation,
            options=job.step.compiler_options
            | default_options(job.mesh, self.target.chip)
            | dict(given),
            given=tuple(given),
            model_flops=(time.model_flops, time.model_flops_full) if time else None,
        )
        report = replace(report, remat=self.remat, choice=self.choice)
        if report.fits is False:
            report = replace(report, remedies=(*report.remedies, *self._remedies()))
        return CompiledStep(report, explanation, job, executable)

    def _remedies(self) -> list[str]:
        """Settings of a run that would save memory, and that it does not have already."""
        return settings_that_save_memory(self.config, self.layout, self.sizes)


def configured(arguments: argparse.Namespace) -> Config:
    """The configuration that flags and settings describe, but for the layout.

    Raises:
      MeshDSLError: an unknown model or setting, or a value that is not legal.
    """
    flags: dict[str, Any] = model_values(arguments.model)
    if arguments.batch:
        flags["batch"] = arguments.batch
    if arguments.length:
        flags["model.length"] = arguments.length
    return override(Config(), arguments.settings, **flags)


def target_of(arguments: argparse.Namespace) -> Target:
    """The machine that a command line names.

    Raises:
      MeshDSLError: see `find_target`.
    """
    how: dict[str, Any] = {"slices": arguments.slices, "hardware": arguments.hardware}
    if "imbalance" in arguments:
        how["imbalance"] = arguments.imbalance
    return find_target(arguments.target, **how)


def analysis_of(
    arguments: argparse.Namespace, layout_name: str, mesh: str | None, devices: int | None = None
) -> Analysis:
    """The analysis that a command line asks for.

    Args:
      arguments: flags and settings that the three commands have in common.
      layout_name: a layout file, or the name of a shipped one.
      mesh: sizes such as `data=4,model=2`, instead of those in the layout.
      devices: how many, where there is no target.

    Raises:
      MeshDSLError: an unknown model, layout, setting or target, a mesh that does not fit the
        target, or nothing that `model.remat=auto` could choose.
    """
    config = replace(configured(arguments), layout=layout_name)
    layout = find_layout(config.layout)
    if mesh is not None:
        layout = layout.with_mesh(parse_mesh(mesh))
        layout.check_axes(layout.mesh)
    devices = devices or config.devices
    if arguments.target is None:
        target, sizes = None, _mesh_of_devices(arguments, layout, devices)
    elif devices:
        raise MeshDSLError(
            "--devices: the target says how many devices there are; give one of the two"
        )
    else:
        target, sizes = _mesh_of_target(arguments, layout)
    config = with_rows(arguments, config, prod(sizes.values()))
    choice = choose_remat(config, layout, sizes, target)
    title = title_of(arguments, config)
    return Analysis(title, choice.config, layout, sizes, target, choice.remat, choice.line)


def with_rows(arguments: argparse.Namespace, config: Config, devices: int) -> Config:
    """The configuration with a row for each device at least, where the user has not said how many.

    So every shipped layout has something to split.
    """
    if arguments.batch or any(text.startswith("batch=") for text in arguments.settings):
        return config
    return override(config, batch=max(config.batch, devices * config.microbatches))


def title_of(arguments: argparse.Namespace, config: Config) -> str:
    """What is analysed, in words: `llama3-8b, batch 64 of length 8192`."""
    fields = batch_fields(config.model, Dim("batch", config.batch)).values()
    dims = dict.fromkeys(dim for field in fields for dim in field.dims[1:])
    sizes = ", ".join(f"{dim.name} {dim.size}" for dim in dims)
    name = arguments.model or family_name(config.model)
    return f"{name}, batch {config.batch}{sizes and ' of '}{sizes}"


def _mesh_of_target(arguments: argparse.Namespace, layout: Layout) -> tuple[Target, dict[str, int]]:
    """The target that the flags name, and the sizes of the layout's mesh on it."""
    target = target_of(arguments)
    return target, mesh_on(target, layout)


def _mesh_of_devices(arguments: argparse.Namespace, layout: Layout, devices: int) -> dict[str, int]:
    """The sizes of the layout's mesh on so many devices; for 0, on as many as it asks for."""
    of_target = {
        "--hardware": arguments.hardware,
        "--slices": arguments.slices > 1,
        "--imbalance": getattr(arguments, "imbalance", 1.0) > 1,
    }
    for flag, given in of_target.items():
        if given:
            raise MeshDSLError(f"{flag}: needs a --target")
    return axis_sizes(layout.mesh, devices or devices_of_mesh(layout), layout.name)


def parse_mesh(text: str, flag: str = "--mesh") -> dict[str, int | str]:
    """The sizes in `data=16,model=4`; a size may be `rest`.

    Raises:
      MeshDSLError: it is not of that form; the error names the `flag`.
    """
    sizes: dict[str, int | str] = {}
    for part in text.split(","):
        axis, equals, size = part.strip().partition("=")
        if not equals or not axis or not (size == "rest" or size.isdecimal()):
            raise MeshDSLError(f"{flag} {text}: expected sizes of axes such as data=16,model=4")
        if axis in sizes:
            raise MeshDSLError(f"{flag} {text}: axis `{axis}` is named twice")
        sizes[axis] = size if size == "rest" else int(size)
    return sizes
