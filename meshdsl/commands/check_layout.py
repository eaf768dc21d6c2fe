"""`meshdsl layouts check`: whether a model can be trained under a layout, and how it is split."""

from __future__ import annotations

import argparse
from typing import Any

from meshdsl.commands.lookup import devices_of_mesh
from meshdsl.commands.settings import model_values
from meshdsl.mesh import abstract_mesh, axis_sizes
from meshdsl.predict.compiler.topology import compile_only
from meshdsl.train import overview
from meshdsl.train.config import Config
from meshdsl.train.job import Job
from meshdsl.train.settings import override
from meshdsl.train.stored_layout import find_layout


def check_layout(arguments: argparse.Namespace) -> int:
    """Trace a step of training under a layout, without devices, and describe what it does.

    Raises:
      MeshDSLError: there is no such layout or model, or the layout cannot be used for it.
    """
    compile_only()
    layout = find_layout(arguments.file)
    flags = {} if arguments.devices is None else {"devices": arguments.devices}
    config = override(Config(), arguments.settings, **model_values(arguments.model), **flags)
    sizes = axis_sizes(layout.mesh, config.devices or devices_of_mesh(layout), layout.name)
    mesh: Any = abstract_mesh(sizes)
    job = Job(config, layout, mesh)
    print(overview.describe(layout, job.mesh, job.state, job.program().collectives))
    return 0
