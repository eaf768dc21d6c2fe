"""The flags by which a process is told where the others are."""

from __future__ import annotations

import argparse


def add_flags(parser: argparse.ArgumentParser) -> None:
    """`--coordinator`, `--processes` and `--process-id`, the arguments of `join`."""
    group = parser.add_argument_group(
        "several processes",
        "found by itself under SLURM, Open MPI and on TPU pods; see docs/launch.md",
    )
    group.add_argument("--coordinator", metavar="HOST:PORT", help="where process 0 listens")
    group.add_argument(
        "--processes", type=int, metavar="N", help="how many processes run this command"
    )
    group.add_argument("--process-id", type=int, metavar="I", help="which of them this is, from 0")
