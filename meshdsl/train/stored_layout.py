"""The layout of a run: found by its file or name, and kept as a table in its configuration."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from meshdsl.layout import Layout


def find_layout(layout: str | Mapping[str, Any]) -> Layout:
    """The layout in a file, the shipped one of a name, or the one that a table of `as_table` holds.

    Raises:
      MeshDSLError: neither exists, or the file or table is no layout.
    """
    if not isinstance(layout, Mapping):
        return Layout.load(layout)
    rest = {key: value for key, value in layout.items() if key not in ("name", "mesh")}
    return Layout.from_dict(
        {"mesh": layout.get("mesh", {}), "layout": rest}, name=str(layout.get("name", "layout"))
    )


def as_table(layout: Layout) -> dict[str, Any]:
    """A layout as one table, with its name.

    The configuration of a run keeps it, so that a run that goes on needs no other file.
    """
    table: dict[str, Any] = {"mesh": layout.mesh_table}
    for field in dataclasses.fields(Layout):
        value = getattr(layout, field.name)
        default = (
            field.default
            if field.default_factory is dataclasses.MISSING
            else field.default_factory()
        )
        if value != default and field.name not in ("mesh", "dcn"):
            table[field.name] = list(value) if isinstance(value, tuple) else value
    return table
