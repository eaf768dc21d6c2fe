"""A run without a model: a folder, facts, and steps that measure what a test says."""

from __future__ import annotations

import io
from pathlib import Path

import jax.numpy as jnp
from rich.console import Console

from meshdsl.train.config import Log
from meshdsl.train.folder import RunFolder
from meshdsl.train.startup import Startup
from meshdsl.train.watch import Facts, Watch
from meshdsl.train.watch.events import Events

STEPS = 8


def facts(**changes) -> Facts:
    usual = {
        "unit": "token",
        "units": 1000,
        "flops": (4e6, 8e6),
        "peak_flops": None,
        "devices": 4,
        "learning_rate": lambda step: 0.5 / (1.0 + step),
        "bytes_per_token": None,
    }
    return Facts(**{**usual, **changes})


def watch(
    path: Path,
    done: int = 0,
    log: Log | None = None,
    out: io.StringIO | None = None,
    startup: Startup | None = None,
    events: Events | None = None,
    **changes,
) -> Watch:
    return Watch(
        facts(**changes),
        RunFolder(path),
        log or Log(),
        Console(file=out or io.StringIO()),
        done,
        STEPS,
        startup,
        events=events,
    )


def measured(step: int, **values: float):
    return {
        name: jnp.float32(value)
        for name, value in {"loss": 10.0 - step, "gradient_norm": 1.0, **values}.items()
    }


def run(path: Path, first: int, last: int, **how) -> None:
    """The steps from `first` to `last`."""
    with watch(path, first - 1, **how) as seen:
        for step in range(first, last + 1):
            with seen.spent("input"):
                pass
            seen.step(step, measured(step))
