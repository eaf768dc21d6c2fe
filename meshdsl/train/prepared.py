"""A phase that has been checked: what its steps train, and what they read."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import jax

import meshdsl as md
from meshdsl.errors import MeshDSLError
from meshdsl.machine import chip_of
from meshdsl.train.auto_settings import choose_here
from meshdsl.train.checkpoints import tree_leaves
from meshdsl.train.data import Data, task_of
from meshdsl.train.data.batches import Batches
from meshdsl.train.data.device_batches import rows_here
from meshdsl.train.data.remote import with_files_here
from meshdsl.train.elastic import fitted
from meshdsl.train.evaluate import Evaluator
from meshdsl.train.few_bits import with_formats
from meshdsl.train.job import Arrays, Job
from meshdsl.train.phases import Phase
from meshdsl.train.stored_layout import find_layout


@dataclass(eq=False)
class Prepared:
    """A phase of a run, ready to be trained.

    Attributes:
      phase: its steps, and its settings as the file says them. Where it ends may change.
      job: the model, its optimizer and its step, under the layout of the phase.
      chosen: what was chosen for settings that were `auto`, in lines.
      choice: the same, with all values.
      print_line: says what takes long.
    """

    phase: Phase
    job: Job
    chosen: tuple[str, ...]
    choice: str
    print_line: Callable[[str], Any]

    @cached_property
    def data(self) -> Data:
        """Where the batches come from. To open it may tokenize for hours."""
        config = self.job.config
        files = with_files_here(config, self.print_line)
        return task_of(config).open(files, self.job.held_out, self.print_line)

    @cached_property
    def held_out(self) -> Mapping[str, Sequence[Arrays]]:
        """For each dataset the batches to validate on, of each the rows that this process reads."""
        return self.data.validation(rows_here(self.job.held_out))

    @cached_property
    def evaluator(self) -> Evaluator:
        return Evaluator(self.job)

    def batches(self) -> Batches:
        """The batches to train on, from the first one, in the same way."""
        return self.data.train(rows_here(self.job.batch))


def prepare(
    phases: Sequence[Phase],
    # JAX's types declare the class jax.Device as a variable.
    devices: list[jax.Device],  # pyright: ignore[reportInvalidTypeForm]
    print_line: Callable[[str], Any],
    after: Prepared | None = None,
) -> dict[int, Prepared]:
    """The phases of a run by their numbers, all on the same devices.

    It may be called in a thread: it asks nothing of other processes, which should compare `choice`.

    Args:
      after: the phase before the first of them, if that is not the first of the run.

    Raises:
      MeshDSLError: a layout does not fit the devices or the model, or the state of a phase is not
        that of the phase before it.
    """
    found: dict[int, Prepared] = {}
    for phase in phases:
        try:
            before, after = after, _prepared(phase, devices, print_line)
            if before:
                _check_state(before, after)
            found[phase.number] = after
        except MeshDSLError as error:
            where = f"phase {phase.number}: " if phase.count > 1 else ""
            raise MeshDSLError(f"{where}{error}") from None
    return found


def _prepared(
    phase: Phase,
    devices: list[jax.Device],  # pyright: ignore[reportInvalidTypeForm]
    print_line: Callable[[str], Any],
) -> Prepared:
    config = fitted(phase.config, len(devices)) if phase.config.elastic else phase.config
    layout = find_layout(config.layout)
    mesh = md.make_mesh(layout, devices)
    precision, formats = with_formats(config.precision, chip_of(devices[0]))
    config = replace(config, precision=precision)
    choice = choose_here(config, layout, mesh)
    chosen = tuple(line for line in (formats, choice.line) if line)
    job = Job(choice.config, layout, mesh)
    _ = job.batch, job.held_out  # rows that do not divide are an error
    return Prepared(phase, job, chosen, f"{choice.values} {formats}", print_line)


def _check_state(before: Prepared, phase: Prepared) -> None:
    """Raise a MeshDSLError unless a phase goes on with the state of the one before it."""
    states = (tree_leaves.describe(each.job.state) for each in (before, phase))
    if difference := tree_leaves.first_difference(*states):
        raise MeshDSLError(
            f"its model or optimizer has another state than the phase before: {difference}"
        )
