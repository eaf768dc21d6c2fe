"""Training: from a configuration to a trained model in a folder.

`config` declares the settings. `training_run` checks everything and starts the run, `training_loop`
takes its steps, `job` makes the step of a configuration from `step`, and `data`, `checkpoints` and
`watch` are what is read, saved and measured.
"""

from typing import Any

from meshdsl.later import imported

# What is public as `meshdsl.train.NAME`, with the module that has it. They are imported when they
# are first asked for, because what is in `meshdsl.train` needs packages that the language does not.
_PUBLIC = {"Checkpoints": "meshdsl.train.checkpoints"}


def __getattr__(name: str) -> Any:
    if name not in _PUBLIC:
        raise AttributeError(f"module `{__name__}` has no attribute `{name}`")
    return imported(_PUBLIC[name], name)


def __dir__() -> list[str]:
    return [*globals(), *_PUBLIC]
