"""A step of training, as a configuration describes it, for a search to lay out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

from meshdsl.commands.analysis import training_analysis
from meshdsl.fields import AUTO
from meshdsl.layout import Layout
from meshdsl.layout_search.workload import Workload, sizes_of
from meshdsl.machine import Target
from meshdsl.machine.target import abstract_mesh_on
from meshdsl.predict.compiler.report import CompiledReport
from meshdsl.program.program import Program
from meshdsl.train.config import Config
from meshdsl.train.job import Job
from meshdsl.train.settings import override
from meshdsl.train.step import State


def training_workload(
    config: Config, target: Target, title: str, microbatches: Sequence[int] = (1,)
) -> Workload:
    """A step of training.

    Args:
      title: what is trained, in words.
      microbatches: the numbers of them that a search may choose from.
    """
    shapes: dict[tuple, State] = {}  # for each choice of settings; a layout does not change them

    def chosen(settings: Mapping[str, str]) -> Config:
        return override(config, [f"{key}={value}" for key, value in settings.items()])

    def program(layout: Layout, settings: Mapping[str, str]) -> Program:
        mesh: Any = abstract_mesh_on(target, sizes_of(layout))
        key = tuple(sorted(settings.items()))
        job = Job(chosen(settings), layout, mesh, shapes=shapes.get(key))
        shapes.setdefault(key, job.step.shapes)
        return job.program()

    def compile(layout: Layout, settings: Mapping[str, str]) -> CompiledReport:
        sizes = sizes_of(layout)
        return training_analysis(title, chosen(settings), layout, sizes, target).compile().report

    model: Any = config.model  # a dataclass, which its base class cannot say
    known = next((f.metadata["known"] for f in fields(model) if f.name == "remat"), ())
    choices: dict[str, Sequence[str]] = {}
    if remats := [value for value in known if value != AUTO]:
        choices["model.remat"] = remats
    if len(microbatches) > 1 or config.microbatches not in microbatches:
        choices["microbatches"] = [str(n) for n in sorted(microbatches, reverse=True)]
    return Workload(title, target, program, compile, config.batch, choices)
