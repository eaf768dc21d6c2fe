"""A step of training, as a configuration describes it, for a search to lay out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

from meshdsl.commands.analysis import training_analysis
from meshdsl.layout import Layout
from meshdsl.layout_search.workload import sizes_of
from meshdsl.machine import Target
from meshdsl.mesh import abstract_mesh
from meshdsl.predict.compiler.report import CompiledReport
from meshdsl.program.program import Program
from meshdsl.train.auto_remat import AUTO
from meshdsl.train.config import Config
from meshdsl.train.job import Job
from meshdsl.train.settings import override
from meshdsl.train.step import State


class TrainingWorkload:
    """A step of training, as a configuration describes it.

    Args:
      title: what is trained, in words.
      microbatches: the numbers of them that a search may choose from.
    """

    def __init__(
        self, config: Config, target: Target, title: str, microbatches: Sequence[int] = (1,)
    ):
        self.config, self.target, self.title, self.rows = config, target, title, config.batch
        model: Any = config.model  # a dataclass, which its base class cannot say
        known = next((f.metadata["known"] for f in fields(model) if f.name == "remat"), ())
        choices: dict[str, Sequence[str]] = {}
        if remats := [value for value in known if value != AUTO]:
            choices["model.remat"] = remats
        if len(microbatches) > 1 or config.microbatches not in microbatches:
            choices["microbatches"] = [str(n) for n in sorted(microbatches, reverse=True)]
        self.choices: Mapping[str, Sequence[str]] = choices
        self._shapes: dict[tuple, State] = {}  # a layout does not change them

    def program(self, layout: Layout, settings: Mapping[str, str]) -> Program:
        return self._job(layout, settings).program()

    def compile(self, layout: Layout, settings: Mapping[str, str]) -> CompiledReport:
        config = self._config(settings)
        sizes = sizes_of(layout)
        analysis = training_analysis(self.title, config, layout, sizes, self.target)
        return analysis.compile().report

    def _config(self, settings: Mapping[str, str]) -> Config:
        return override(self.config, [f"{key}={value}" for key, value in settings.items()])

    def _job(self, layout: Layout, settings: Mapping[str, str]) -> Job:
        mesh: Any = abstract_mesh(sizes_of(layout), self.target.chip.kind)
        chosen = tuple(sorted(settings.items()))
        job = Job(self._config(settings), layout, mesh, shapes=self._shapes.get(chosen))
        self._shapes.setdefault(chosen, job.step.shapes)
        return job
