"""A run on another number of devices than it was planned for.

    [elastic]
    devices = 8                      # that `batch` and `microbatches` are planned for
    6 = { data = 3, model = 2 }      # sizes of axes of the mesh, where there are 6 devices
    4 = "four.toml"                  # or a layout
    memory_every = 20                # see `checkpoints.copies`

The layout is that of the run, whose axes of the size "rest" take the devices that there are, unless
the table names another one. The batch stays as it is: on fewer devices it is run in more
microbatches, so that a device needs no more memory for it than planned. The configuration that the
run keeps is the one that was planned.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction
from typing import Any

from meshdsl.errors import MeshDSLError, nearest
from meshdsl.mesh import abstract_mesh, axis_sizes
from meshdsl.train.config import Config
from meshdsl.train.elastic_settings import PLANNED
from meshdsl.train.job import Job
from meshdsl.train.stored_layout import as_table, find_layout


def fitted(config: Config, devices: int) -> Config:
    """The settings of a run on so many devices.

    Raises:
      MeshDSLError: they do not fit, or the layout lacks an axis that the table gives a size.
    """
    refused: MeshDSLError | None = None
    for each in _candidates(config, devices):
        layout = find_layout(each.layout)
        mesh: Any = abstract_mesh(axis_sizes(layout.mesh, devices, layout.name), "cpu")
        try:
            job = Job(each, layout, mesh)
            _ = job.batch, job.held_out, job.state
            return each
        except MeshDSLError as error:
            refused = refused or error
    assert refused
    raise refused


def _candidates(config: Config, devices: int) -> Iterator[Config]:
    """Settings for so many devices, with as few microbatches as the memory of a device allows."""
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
