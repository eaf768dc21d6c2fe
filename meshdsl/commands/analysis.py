"""What `explain`, `compile` and `compare` have in common: one model, under one layout, on one mesh.

`analysis_of` finds these three by the flags and settings of a command line, and gives the analysis
of a step of training under them.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from math import prod
from typing import Any

from meshdsl.commands.lookup import devices_of_mesh
from meshdsl.commands.settings import model_values
from meshdsl.dims import Dim
from meshdsl.errors import MeshDSLError
from meshdsl.family.by_name import family_name
from meshdsl.family.calls import batch_fields
from meshdsl.layout import Layout
from meshdsl.machine import Network, Target, find_target
from meshdsl.machine.target import abstract_mesh_on, mesh_on
from meshdsl.mesh import axis_sizes
from meshdsl.tools.analysis import Analysis
from meshdsl.train.auto_settings import Choice, choose, settings_that_save_memory
from meshdsl.train.config import Config
from meshdsl.train.data import task_of
from meshdsl.train.exchange_lines import exchange_lines, sent_by_workers
from meshdsl.train.few_bits import slow_formats, with_formats
from meshdsl.train.job import Job
from meshdsl.train.optimizer import TABLE
from meshdsl.train.phases import phases_of
from meshdsl.train.settings import override, read
from meshdsl.train.stored_layout import find_layout

# They sum over whole parameters, by collectives that XLA places and the record does not list.
_UNRECORDED_OPTIMIZERS = ("adafactor",)


def training_analysis(
    title: str,
    config: Config,
    layout: Layout,
    sizes: Mapping[str, int],
    target: Target | None,
    choice: Choice | None = None,
    formats: str = "",
) -> Analysis:
    """The analysis of the step of training that a configuration describes.

    Args:
      title: what the explanation is headed with.
      sizes: of the mesh axes.
      target: the machine; None where nothing is known but the number of devices.
      choice: of the settings that were "auto", which made the `config`.
      formats: which format was chosen for products, and why, in one line.
    """
    task, devices, precision = task_of(config), prod(sizes.values()), config.precision
    fields = task.fields(config, Dim("batch", config.batch))
    flops = config.model.step_flops(config.batch)
    mesh: Any = abstract_mesh_on(target, sizes)
    network = Network(target, sizes) if target is not None and target.chip.timed else None
    sent = sent_by_workers(Job(config, layout, mesh)) if config.local.workers else []
    return Analysis(
        lambda mesh: Job(config, layout, mesh),
        mesh,
        sizes,
        target,
        title,
        units=config.batch * task.units_per_row(fields),
        unit=task.unit,
        model_flops=None if flops is None else (flops[0] / devices, flops[1] / devices),
        remedies=tuple(settings_that_save_memory(config, layout, sizes)),
        notes=tuple(filter(None, [formats, *_notes(config), *slow_formats(precision, target)])),
        sends=partial(exchange_lines, config.local, sent, network),
        remat=choice.remat if choice else "",
        choice=choice.line if choice else "",
    )


def _notes(config: Config) -> tuple[str, ...]:
    """What the record lacks of a step with the optimizer of the configuration."""
    optimizer = config.optimizer.name
    if optimizer in TABLE and optimizer not in _UNRECORDED_OPTIMIZERS:
        return ()
    sums = "sums" if optimizer in TABLE else "may sum"
    return (
        f"{optimizer} {sums} over whole parameters: the collectives that XLA places for that are "
        "not in this list",
    )


def configured(arguments: argparse.Namespace) -> Config:
    """The configuration that a file, flags and settings describe, but for the layout of a flag.

    Raises:
      MeshDSLError: the file cannot be read; an unknown model or setting, or a value that is not
        legal.
    """
    config = Config()
    if path := getattr(arguments, "config", None):
        config = read(path, config)
    flags: dict[str, Any] = model_values(arguments.model)
    if arguments.batch:
        flags["batch"] = arguments.batch
    if arguments.length:
        flags["model.length"] = arguments.length
    return override(config, arguments.settings, **flags)


def target_of(arguments: argparse.Namespace) -> Target:
    """The machine that a command line names.

    Raises:
      MeshDSLError: see `find_target`.
    """
    how: dict[str, Any] = {"slices": arguments.slices, "hardware": arguments.hardware}
    if "imbalance" in arguments:
        how["imbalance"] = arguments.imbalance
    return find_target(arguments.target, **how)


def analyses_of(
    arguments: argparse.Namespace, devices: int | None = None, one: Sequence[str] = ()
) -> dict[str, Analysis]:
    """The analysis of each phase that a command line asks for, by what the phase is in words.

    Args:
      arguments: flags and settings of a command that looks at one layout.
      devices: how many, where there is no target.
      one: the flags that are for one phase alone.

    Raises:
      MeshDSLError: see `analysis_of`; there is no such phase, or there are several with such a
        flag.
    """
    config = configured(arguments)
    phases = phases_of(replace(config, layout=arguments.layout or config.layout))
    if arguments.phase:
        if arguments.phase > len(phases):
            raise MeshDSLError(f"--phase {arguments.phase}: the run has {len(phases)}")
        phases = [phases[arguments.phase - 1]]
    given = [flag for flag in one if getattr(arguments, flag.removeprefix("--"))]
    if given and len(phases) > 1:
        raise MeshDSLError(
            f"{given[0]}: is for one phase, and the run has {len(phases)}; choose one by --phase"
        )
    found = {}
    for phase in phases:
        try:
            found[phase.words] = _analysis(arguments, phase.config, arguments.mesh, devices)
        except MeshDSLError as error:
            where = f"phase {phase.number}: " if phase.count > 1 else ""
            raise MeshDSLError(f"{where}{error}") from None
    return found


def analysis_of(arguments: argparse.Namespace, layout_name: str, mesh: str | None) -> Analysis:
    """The analysis that a command line asks for.

    Args:
      arguments: flags and settings that all commands have in common.
      layout_name: a layout file, or the name of a shipped one.
      mesh: sizes such as `data=4,model=2`, instead of those in the layout.

    Raises:
      MeshDSLError: an unknown model, layout, setting or target, a mesh that does not fit the
        target, or a `memory` that nothing fits.
    """
    return _analysis(arguments, replace(configured(arguments), layout=layout_name), mesh)


def _analysis(
    arguments: argparse.Namespace, config: Config, mesh: str | None, devices: int | None = None
) -> Analysis:
    """As `analysis_of`, of a configuration, and of so many devices where there is no target."""
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
        target = target_of(arguments)
        sizes = mesh_on(target, layout)
    config = with_rows(arguments, config, prod(sizes.values()))
    precision, formats = with_formats(config.precision, target and target.chip)
    choice = choose(replace(config, precision=precision), layout, sizes, target)
    title = title_of(arguments, config)
    return training_analysis(title, choice.config, layout, sizes, target, choice, formats)


def with_rows(arguments: argparse.Namespace, config: Config, devices: int) -> Config:
    """The configuration with a row for each device at least, where the user has not said how many.

    So every shipped layout has something to split.
    """
    said = arguments.batch or any(text.startswith("batch=") for text in arguments.settings)
    if said or getattr(arguments, "config", None):
        return config
    return override(config, batch=max(config.batch, devices * config.microbatches))


def title_of(arguments: argparse.Namespace, config: Config) -> str:
    """What is analysed, in words: `llama3-8b, batch 64 of length 8192`."""
    fields = batch_fields(config.model, Dim("batch", config.batch)).values()
    dims = dict.fromkeys(dim for field in fields for dim in field.dims[1:])
    sizes = ", ".join(f"{dim.name} {dim.size}" for dim in dims)
    name = arguments.model or family_name(config.model)
    return f"{name}, batch {config.batch}{sizes and ' of '}{sizes}"


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
