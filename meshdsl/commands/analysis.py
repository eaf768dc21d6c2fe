"""What `explain`, `compile` and `compare` have in common: which model is planned, under which layout, on which mesh of which machine."""

from __future__ import annotations

import argparse
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

from meshdsl.commands.lookup import devices_of_mesh, find_layout
from meshdsl.commands.settings import model_values
from meshdsl.compiled.compile import compile_for
from meshdsl.compiled.report import CompiledReport
from meshdsl.compiled.topology import target_devices
from meshdsl.dims import Dim
from meshdsl.errors import MeshDSLError
from meshdsl.layout import Layout
from meshdsl.machine import Target, find_target, fit_mesh
from meshdsl.mesh import abstract_mesh, axis_sizes, check_slices, make_mesh
from meshdsl.models.sizes import step_flops
from meshdsl.report import Explanation, explain
from meshdsl.train.config import Config
from meshdsl.train.job import Job
from meshdsl.train.settings import override

_WHOLE = ("adafactor", "muon")  # optimizers whose collectives the record does not list


@dataclass(frozen=True)
class Plan:
    """One model under one layout on one mesh."""

    name: str
    config: Config
    layout: Layout
    sizes: dict[str, int]
    target: Target | None

    def job(self, mesh: Any = None) -> Job:
        """The step of training, on `mesh`, or on a mesh without devices."""
        return Job(self.config, self.layout, abstract_mesh(self.sizes) if mesh is None else mesh)

    @property
    def tokens(self) -> int:
        """Of one step, on all devices together."""
        return self.config.batch * self.config.model.length

    @property
    def model_flops(self) -> tuple[float, float]:
        """Of one step, per device: causal attention counted half, and in full."""
        causal, full = step_flops(self.config.model, self.tokens, self.config.model.length)
        devices = math.prod(self.sizes.values())
        return causal / devices, full / devices

    def compile(
        self, given: Mapping[str, str] = MappingProxyType({})
    ) -> tuple[CompiledReport, Explanation, Job, Any]:
        """Compile the step for the target: the report, the explanation of the same step, the job, and the executable, which is None where it does not fit.

        Args:
          given: options of the compiler, beside those that are used by default.
        """
        assert self.target is not None
        devices = target_devices(
            self.target
        )  # first: those of a cpu target can only be made before JAX computes anything
        job = self.job(make_mesh(self.sizes, devices))
        explanation = self.explain()
        options = job.step.compiler_options | dict(given)
        how = {"options": options, "given": tuple(given), "model_flops": self.model_flops}
        report, executable = compile_for(
            job.lowered, job.program(), self.target, explanation, **how
        )
        if report.fits is False:
            report = replace(report, remedies=(*report.remedies, *self._remedies()))
        return report, explanation, job, executable

    def explain(self) -> Explanation:
        explanation = explain(
            self.job().program(),
            title=self.name,
            target=self.target,
            tokens=self.tokens,
            model_flops=self.model_flops,
        )
        remedies = (
            (*explanation.remedies, *self._remedies()) if explanation.memory.fits is False else ()
        )
        name = self.config.optimizer.name
        notes = (
            (
                f"{name} sums over whole parameters: the collectives that XLA places for that are not in this list",
            )
            if name in _WHOLE
            else ()
        )
        return replace(explanation, remedies=remedies, notes=(*explanation.notes, *notes))

    def _remedies(self) -> list[str]:
        """What settings of a run would save: less kept for the backward pass, or a smaller part of the batch at a time."""
        config, lines = self.config, []
        if config.model.remat != "full":
            lines.append("`model.remat=full` keeps the least for the backward pass")
        batch = Dim("batch", config.batch // config.microbatches)
        local = batch.size // math.prod(
            self.sizes[a] for a in self.layout.split((batch,)).get(batch, ())
        )
        if local % 2 == 0:
            lines.append(
                f"`microbatches={2 * config.microbatches}` runs the batch in parts, one after the other"
            )
        if not any(rule.dim == "length" for rule in self.layout.parsed):
            lines.append(
                "a layout that splits `length`, such as fsdp-sequence, or a shorter --length"
            )
        return lines


def configured(arguments: argparse.Namespace, settings: list[str]) -> Config:
    """The configuration that flags and settings describe, but for the layout.

    Raises:
      MeshDSLError: an unknown model or setting, or a value that is not legal.
    """
    flags: dict[str, Any] = model_values(arguments.model)
    flags |= {
        key: value
        for key, value in (("batch", arguments.batch), ("model.length", arguments.length))
        if value
    }
    return override(Config(), settings, **flags)


def resolve(
    arguments: argparse.Namespace,
    settings: list[str],
    layout_name: str,
    mesh: str | None,
    devices: int | None = None,
) -> Plan:
    """The plan that flags and settings describe.

    Raises:
      MeshDSLError: an unknown model, layout, setting or target, or a mesh that does not fit the target.
    """
    config = replace(configured(arguments, settings), layout=layout_name)
    layout = find_layout(config.layout)
    if mesh is not None:
        layout = layout.with_mesh(_parse_mesh(mesh))
        layout.check_axes(layout.mesh)
    target = None
    if arguments.target is not None:
        if devices or config.devices:
            raise MeshDSLError(
                "--devices: the target says how many devices there are; give one of the two"
            )
        target = find_target(arguments.target, slices=arguments.slices, hardware=arguments.hardware)
        sizes = fit_mesh(target, layout.mesh, layout.name)
        on_tpu = target.chip.kind == "tpu"
        check_slices(
            layout,
            sizes,
            target.slices if on_tpu else (*target.shape, 1)[1],
            "slices" if on_tpu else "nodes",
        )
    else:
        if arguments.hardware or arguments.slices > 1:
            raise MeshDSLError(
                f"{'--hardware' if arguments.hardware else '--slices'}: needs a --target"
            )
        sizes = axis_sizes(
            layout.mesh, devices or config.devices or devices_of_mesh(layout), layout.name
        )
    if not arguments.batch and not any(setting.startswith("batch=") for setting in settings):
        # A sequence for each device, so that every shipped layout has something to split.
        config = override(
            config, batch=max(config.batch, math.prod(sizes.values()) * config.microbatches)
        )
    return Plan(
        f"{arguments.model}, batch {config.batch} of length {config.model.length}",
        config,
        layout,
        sizes,
        target,
    )


def _parse_mesh(text: str) -> dict[str, int | str]:
    """`data=16,model=4`; a size may be `rest`."""
    sizes: dict[str, int | str] = {}
    for part in text.split(","):
        axis, equals, size = part.strip().partition("=")
        if not equals or not axis or not (size == "rest" or size.isdecimal()):
            raise MeshDSLError(f"--mesh {text}: expected sizes of axes such as data=16,model=4")
        if axis in sizes:
            raise MeshDSLError(f"--mesh {text}: axis `{axis}` is named twice")
        sizes[axis] = size if size == "rest" else int(size)
    return sizes
