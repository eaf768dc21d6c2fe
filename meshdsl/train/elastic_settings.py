"""What a table `[elastic]` may say: what a run does on other numbers of devices."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from meshdsl.errors import MeshDSLError

PLANNED = "devices"


def check_elastic(table: Mapping[str, Any]) -> None:
    """Raise a MeshDSLError unless a table `[elastic]` says what it may say."""
    for key, value in table.items():
        count = value if key == PLANNED else key
        if not str(count).isdecimal() or int(count) < 1:
            raise MeshDSLError(
                f"elastic.{key}: expected `devices`, or a number of devices; each is at least 1"
            )
        sizes = list(value.values()) if isinstance(value, Mapping) else []
        if key != PLANNED and not (isinstance(value, str) or sizes):
            raise MeshDSLError(f"elastic.{key}: expected sizes of mesh axes, or a layout")
        if not all(isinstance(size, int) and size > 0 for size in sizes):
            raise MeshDSLError(f"elastic.{key}: sizes of mesh axes are whole numbers of at least 1")
