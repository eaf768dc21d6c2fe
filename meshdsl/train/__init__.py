"""Training: from a configuration to a trained model in a folder.

`config` declares the settings. `training_run` checks everything and starts the run, `training_loop`
takes its steps, `job` makes the step of a configuration from `step`, and `data`, `checkpoints` and
`watch` are what is read, saved and measured. `fit` is all of it, from Python.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from meshdsl.train.checkpoints import Checkpoints
    from meshdsl.train.config import Config
    from meshdsl.train.data import task_of
    from meshdsl.train.data.device_batches import rows_here
    from meshdsl.train.evaluate import Evaluator
    from meshdsl.train.fitting import Fitted, fit
    from meshdsl.train.job import Job
    from meshdsl.train.settings import override
    from meshdsl.train.step import State, TrainStep

__all__ = [
    "Checkpoints",
    "Config",
    "Evaluator",
    "Fitted",
    "Job",
    "State",
    "TrainStep",
    "fit",
    "override",
    "rows_here",
    "task_of",
]

# Where each is; imported when it is first asked for, so that what only reads settings, as
# `meshdsl explain` does, starts without what trains.
_MODULES = {
    "Checkpoints": "checkpoints",
    "Config": "config",
    "Evaluator": "evaluate",
    "Fitted": "fitting",
    "Job": "job",
    "State": "step",
    "TrainStep": "step",
    "fit": "fitting",
    "override": "settings",
    "rows_here": "data.device_batches",
    "task_of": "data",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
