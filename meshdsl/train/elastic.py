"""A run on another number of devices than it was planned for.

    [elastic]
    devices = 8                      # that `batch` and `microbatches` are planned for
    6 = { data = 3, model = 2 }      # sizes of axes of the mesh, where there are 6 devices
    4 = "four.toml"                  # or a layout

The layout is that of the run, whose axes of the size "rest" take the devices that there are, unless
the table names another one. The batch stays as it is: on fewer devices it is run in more
microbatches, so that a device needs no more memory for it than planned. The configuration that the
run keeps is the one that was planned.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from fractions import Fraction
from typing import Any

from meshdsl.errors import MeshDSLError, nearest
from meshdsl.train.config import Config
from meshdsl.train.elastic_settings import PLANNED
from meshdsl.train.stored_layout import as_table, find_layout


def with_layouts(table: Mapping[str, Any]) -> dict[str, Any]:
    """A table `[elastic]` with layouts in place of their names, so that it needs no other file.

    Raises:
      MeshDSLError: there is no such layout.
    """
    return {
        key: as_table(find_layout(value)) if isinstance(value, str) else value
        for key, value in table.items()
    }


def for_devices(config: Config, devices: int) -> Iterator[Config]:
    """The settings of a run on so many devices; the first that fits the layout is the right one.

    Raises:
      MeshDSLError: the layout lacks an axis that the table gives a size.
    """
    table = config.elastic
    config = replace(config, layout=_layout(config.layout, table.get(str(devices)), devices))
    times = max(Fraction(1), Fraction(table.get(PLANNED, devices), devices))
    for each in range(1, config.batch + 1):
        if each >= config.microbatches * times and config.batch % each == 0:
            yield replace(config, microbatches=each)
            if times == 1:
                return


def _layout(layout: str | dict, entry: Any, devices: int) -> str | dict:
    """The layout of a run where the table says `entry` of the number of devices."""
    if entry is None:
        return layout
    if isinstance(entry, str) or "rules" in entry or "mesh" in entry:
        return entry
    table = as_table(find_layout(layout))
    for axis in entry:
        if axis not in table["mesh"]:
            hint = nearest(axis, table["mesh"])
            raise MeshDSLError(f"elastic.{devices}: the layout has no axis `{axis}`{hint}")
    return table | {"mesh": {**table["mesh"], **entry}}
