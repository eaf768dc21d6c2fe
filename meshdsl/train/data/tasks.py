"""The tasks by name, and which of them a run has."""

from __future__ import annotations

from meshdsl.dims import Dim
from meshdsl.errors import MeshDSLError, nearest
from meshdsl.train.config import Config
from meshdsl.train.data.cache_entry import Report
from meshdsl.train.data.examples import ExamplesTask
from meshdsl.train.data.images import ImagesTask
from meshdsl.train.data.mixture import Data
from meshdsl.train.data.pairs import PairsTask
from meshdsl.train.data.remote import with_files_here
from meshdsl.train.data.task import Task
from meshdsl.train.data.text import TextTask

TASKS: dict[str, Task] = {
    task.name: task for task in (TextTask(), ImagesTask(), PairsTask(), ExamplesTask())
}


def task_of(config: Config) -> Task:
    """The task of a run: `data.task`, or that of the model's family.

    Raises:
      MeshDSLError: there is no such task.
    """
    name = config.data.task or config.model.task
    if name not in TASKS:
        said = "data.task" if config.data.task else f"{type(config.model).__name__}.task"
        raise MeshDSLError(f"{said}={name}: no such task{nearest(str(name), TASKS)}")
    return TASKS[name]


def open_data(config: Config, report: Report = lambda text: None) -> Data:
    """Open what a run reads, by its task. Text that is not in the cache is tokenized here.

    Args:
      report: called with a line on work that takes a while.

    Raises:
      MeshDSLError: something cannot be read or does not fit the model. What can be found without
        tokenizing is found before anything is tokenized.
    """
    task = task_of(config)
    rows = Dim("batch", config.batch // config.microbatches)
    return task.open(with_files_here(config, report), task.fields(config, rows), report)
