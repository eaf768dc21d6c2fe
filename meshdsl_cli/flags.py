"""Flags that several commands have, and the types of their values."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from pathlib import Path

from meshdsl_cli.declare import Flag, Group


def count(text: str) -> int:
    """The type of a flag whose value is a whole number of at least 1."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"expected a whole number of at least 1, not {text!r}")
    return int(text)


def whole(text: str) -> int:
    """The type of a flag whose value is a whole number of at least 0."""
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"expected a whole number of at least 0, not {text!r}")
    return int(text)


def _number(text: str, what: str, legal: Callable[[float], bool]) -> float:
    """The number in a text, which must be finite and `legal`."""
    try:
        found = float(text)
    except ValueError:
        found = math.nan
    if not (math.isfinite(found) and legal(found)):
        raise argparse.ArgumentTypeError(f"expected {what}, not {text!r}")
    return found


def seconds(text: str) -> float:
    """The type of a flag whose value is a time of more than 0 seconds."""
    return _number(text, "seconds, more than 0", lambda value: value > 0)


def load(text: str) -> float:
    """The type of a flag whose value is a load, or another number, of at least 1."""
    return _number(text, "a number of at least 1", lambda value: value >= 1)


RUN = Flag("run RUN", "the folder of a run", Path)
AVERAGE = Flag("--average", "the averages over the steps, which optimizer.average keeps")
LAYOUT = Flag(
    "--layout FILE|NAME", "a layout file, or the name of a shipped one (see `meshdsl layouts`)"
)
MODEL = Flag(
    "--model NAME",
    "a published size such as llama3-8b (see `meshdsl models`), a style (gpt2, llama, ...), a "
    "family (unet), or one of your own: my_model.py:ViT, my_package.my_module:ViT/small",
)
MESH = Flag(
    "--mesh AXIS=N,...",
    "sizes of the mesh axes, instead of those in the layout file",
    any_text=True,
)

# Of `explain`, `compile`, `compare` and `search`: for which machine a step is analysed, and of
# which model.
TARGET = Flag(
    "--target MACHINE",
    "a machine: v5p:4x4x4, v6e:16x16, h100:8, h100:8x4 (4 nodes of 8), ... (see docs/hardware.md)",
)
HARDWARE = Flag(
    "--hardware FILE", "figures of other chips, or other figures (see docs/hardware.md)", Path
)
REQUIRED_TARGET = TARGET.but(
    missing="say for which machine, with --target, for example --target v5p:4x4x4"
)
ANALYSIS = (
    MODEL,
    Flag(
        "--slices N",
        "so many such TPU slices, joined by the data centre's network",
        count,
        default=1,
    ),
    Flag("--batch N", "rows in a step; by default one for each device, and 32 at least", count),
    Flag("--length N", "tokens of a sequence", count),
    HARDWARE,
    Flag("--json", "print it for machines"),
)
# Of `explain`, `compile` and `verify`, which look at one layout, or at that of each phase of a run.
ONE_LAYOUT = (
    Flag("config [CONFIG.toml]", "settings of a run, as `meshdsl train` takes them", Path),
    LAYOUT,
    Flag("--phase N", "only this phase of the run", count),
    MESH,
)
HTML = Flag("--html FILE", "write it as a page with pictures", Path)

IMBALANCE = Flag(
    "--imbalance N",
    "of experts that are split: the most loaded device has N times the mean, as 1.3",
    load,
    default=1.0,
)

# How a process is told where the others are: the arguments of `meshdsl.hosts.join`.
SEVERAL_PROCESSES = Group(
    (
        Flag("--coordinator HOST:PORT", "where process 0 listens"),
        Flag("--processes N", "how many processes run this command", int),
        Flag("--process-id I", "which of them this is, from 0", int),
    ),
    "several processes",
    "found by itself under SLURM, Open MPI and on TPU pods; see docs/launch.md",
)
