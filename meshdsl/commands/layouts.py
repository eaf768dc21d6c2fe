"""`meshdsl layouts`: the layouts that are shipped."""

from __future__ import annotations

import argparse
from pathlib import Path

from meshdsl.layout import shipped


def list_layouts(arguments: argparse.Namespace) -> int:
    """Print a line for each layout: its name, and what it is."""
    width = max(map(len, shipped()))
    for name, path in shipped().items():
        print(f"{name:{width}}  {_summary(path)}")
    return 0


def _summary(path: Path) -> str:
    """The first line of the comment that a layout file begins with."""
    return path.read_text(encoding="utf-8").partition("\n")[0].lstrip("# ").strip()
