"""What a table `[elastic]` may say: what a run does on other numbers of devices."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from meshdsl.errors import MeshDSLError
from meshdsl.train.stored_layout import as_table, find_layout

PLANNED, MEMORY_EVERY = "devices", "memory_every"
_COUNTS = (PLANNED, MEMORY_EVERY)


def check_elastic(table: Mapping[str, Any]) -> None:
    """Raise a MeshDSLError unless a table `[elastic]` says what it may say."""
    for key, value in table.items():
        count = value if key in _COUNTS else key
        if not str(count).isdecimal() or int(count) < 1:
            raise MeshDSLError(
                f"elastic.{key}: expected `devices`, `memory_every` or a number of devices; each "
                "is at least 1"
            )
        sizes = list(value.values()) if isinstance(value, Mapping) else []
        if key not in _COUNTS and not (isinstance(value, str) or sizes):
            raise MeshDSLError(f"elastic.{key}: expected sizes of mesh axes, or a layout")
        if not all(isinstance(size, int) and size > 0 for size in sizes):
            raise MeshDSLError(f"elastic.{key}: sizes of mesh axes are whole numbers of at least 1")


def with_layouts(table: Mapping[str, Any]) -> dict[str, Any]:
    """A table `[elastic]` with layouts in place of their names, so that it needs no other file.

    Raises:
      MeshDSLError: there is no such layout.
    """
    return {
        key: as_table(find_layout(value)) if isinstance(value, str) else value
        for key, value in table.items()
    }
