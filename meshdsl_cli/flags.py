"""Flags that several commands have, and the types of their values."""

from __future__ import annotations

import argparse
from pathlib import Path

from meshdsl_cli.declare import Flag, Group


def count(text: str) -> int:
    """The type of a flag whose value is a whole number of at least 1."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"expected a whole number of at least 1, not {text!r}")
    return int(text)


def seconds(text: str) -> float:
    """The type of a flag whose value is a time of more than 0 seconds."""
    try:
        found = float(text)
    except ValueError:
        found = 0.0
    if not 0 < found < float("inf"):
        raise argparse.ArgumentTypeError(f"expected seconds, more than 0, not {text!r}")
    return found


def load(text: str) -> float:
    """The type of a flag whose value is a load of at least 1, the mean."""
    try:
        found = float(text)
    except ValueError:
        found = 0.0
    if not 1 <= found < float("inf"):
        raise argparse.ArgumentTypeError(f"expected a number of at least 1, not {text!r}")
    return found


RUN = Flag("run", type=Path, metavar="RUN", help="the folder of a run")
AVERAGE = Flag(
    "--average",
    action="store_true",
    help="the averages over the steps, which optimizer.average keeps",
)
LAYOUT = Flag(
    "--layout",
    metavar="FILE|NAME",
    help="a layout file, or the name of a shipped one (see `meshdsl layouts`)",
)
MODEL = Flag(
    "--model",
    metavar="NAME",
    help="a published size such as llama3-8b (see `meshdsl models`), a style (gpt2, llama, ...), a "
    "family (unet), or one of your own: my_model.py:ViT, my_package.my_module:ViT/small",
)
MESH = Flag(
    "--mesh",
    any_text=True,
    metavar="AXIS=N,...",
    help="sizes of the mesh axes, instead of those in the layout file",
)

# Of `explain`, `compile`, `compare` and `search`: for which machine a step is analysed, and of
# which model.
TARGET = Flag(
    "--target",
    metavar="MACHINE",
    help="a machine: v5p:4x4x4, v6e:16x16, h100:8, h100:8x4 (4 nodes of 8), ... "
    "(see docs/hardware.md)",
)
REQUIRED_TARGET = TARGET.but(
    missing="say for which machine, with --target, for example --target v5p:4x4x4"
)
ANALYSIS = (
    MODEL,
    Flag(
        "--slices",
        type=count,
        default=1,
        metavar="N",
        help="so many such TPU slices, joined by the data centre's network",
    ),
    Flag(
        "--batch",
        type=count,
        metavar="N",
        help="rows in a step; by default one for each device, and 32 at least",
    ),
    Flag("--length", type=count, metavar="N", help="tokens of a sequence"),
    Flag(
        "--hardware",
        type=Path,
        metavar="FILE",
        help="figures of other chips, or other figures (see docs/hardware.md)",
    ),
    Flag("--json", action="store_true", help="print it for machines"),
)
# Of `explain` and `compile`, which look at one layout.
ONE_LAYOUT = (
    LAYOUT.but(default="data"),
    MESH,
    Flag("--html", type=Path, metavar="FILE", help="write it as a page with pictures"),
)

IMBALANCE = Flag(
    "--imbalance",
    type=load,
    default=1.0,
    metavar="N",
    help="of experts that are split: the most loaded device has N times the mean, as 1.3",
)

# How a process is told where the others are: the arguments of `meshdsl.hosts.join`.
SEVERAL_PROCESSES = Group(
    "several processes",
    "found by itself under SLURM, Open MPI and on TPU pods; see docs/launch.md",
    (
        Flag("--coordinator", metavar="HOST:PORT", help="where process 0 listens"),
        Flag("--processes", type=int, metavar="N", help="how many processes run this command"),
        Flag("--process-id", type=int, metavar="I", help="which of them this is, from 0"),
    ),
)
