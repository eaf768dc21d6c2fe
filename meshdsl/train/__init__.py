"""Training: from a configuration to a trained model in a folder.

`config` declares the settings. `training_run` checks everything and starts the run, `training_loop`
takes its steps, `job` makes the step of a configuration from `step`, and `data`, `checkpoints` and
`watch` are what is read, saved and measured.
"""

from typing import Any

from meshdsl.later import imported


def __getattr__(name: str) -> Any:
    """What is public here, imported when it is first asked for: it needs more than the language."""
    if name == "Checkpoints":
        return imported("meshdsl.train.checkpoints", "Checkpoints")
    raise AttributeError(f"module `{__name__}` has no attribute `{name}`")
