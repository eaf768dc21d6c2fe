"""Flags that several commands have."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from meshdsl.errors import MeshDSLError


def count(text: str) -> int:
    """A flag's value that is a whole number of at least 1."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"expected a whole number of at least 1, not {text!r}")
    return int(text)


def add_planned(parser: argparse.ArgumentParser) -> None:
    """What is planned, and for which machine: for `explain`, `compile` and `compare`."""
    parser.add_argument(
        "--model",
        default="llama",
        help="a published size (see `meshdsl models`), or a style: gpt2 or llama",
    )
    parser.add_argument(
        "--target",
        help="a machine: v5p:4x4x4, v6e:16x16, h100:8, h100:8x4 (4 nodes of 8), ... (see docs/hardware.md)",
    )
    parser.add_argument(
        "--slices",
        type=count,
        default=1,
        help="so many such TPU slices, joined by the data centre's network",
    )
    parser.add_argument(
        "--batch",
        type=count,
        help="sequences in a step; by default one for each device, and 32 at least",
    )
    parser.add_argument("--length", type=count, help="tokens of a sequence")
    parser.add_argument(
        "--hardware",
        type=Path,
        metavar="FILE",
        help="figures of other chips, or other figures (see docs/hardware.md)",
    )
    parser.add_argument("--json", action="store_true", help="print it for machines")


def add_one_layout(parser: argparse.ArgumentParser) -> None:
    """The layout and its mesh, and the page: for commands that look at one."""
    parser.add_argument(
        "--layout",
        default="data",
        help="a layout file, or the name of a shipped one (see `meshdsl layouts`)",
    )
    parser.add_argument(
        "--mesh",
        metavar="AXIS=N,...",
        help="sizes of the mesh axes, instead of those in the layout file",
    )
    parser.add_argument(
        "--html", type=Path, metavar="FILE", help="write it as a page with pictures"
    )


def write(path: Path, text: str) -> None:
    """Write a file and say so on stderr.

    Raises:
      MeshDSLError: it cannot be written.
    """
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise MeshDSLError(f"{path}: {error.strerror}") from None
    print(f"wrote {path}", file=sys.stderr)
