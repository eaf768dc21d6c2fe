"""`meshdsl layouts`, `layouts check` and `models`: what there is to train, and to train under."""

from __future__ import annotations

import argparse
from typing import Any

from meshdsl.commands.lookup import devices_of_mesh
from meshdsl.commands.settings import model_values, sizes
from meshdsl.layout import shipped
from meshdsl.mesh import abstract_mesh, axis_sizes
from meshdsl.predict.compiler.topology import compile_only
from meshdsl.train import overview
from meshdsl.train.config import Config
from meshdsl.train.job import Job
from meshdsl.train.settings import override
from meshdsl.train.stored_layout import find_layout


def list_layouts(arguments: argparse.Namespace) -> int:
    """Print a line for each shipped layout: its name, and the first line of its file."""
    width = max(map(len, shipped()))
    for name, path in shipped().items():
        first = path.read_text(encoding="utf-8").partition("\n")[0]
        print(f"{name:{width}}  {first.lstrip('# ').strip()}")
    return 0


def list_models(arguments: argparse.Namespace) -> int:
    """Print a line for each published size: its name, and the whole numbers that it stands for."""
    for _, name, settings in sizes():
        numbers = [f"{key}={value}" for key, value in settings.items() if isinstance(value, int)]
        if numbers:
            print(f"{name:16}  {' '.join(numbers)}")
    return 0


def check_layout(arguments: argparse.Namespace) -> int:
    """Trace a step of training under a layout, without devices, and describe what it does.

    Raises:
      MeshDSLError: there is no such layout or model, or the layout cannot be used for it.
    """
    compile_only()
    layout = find_layout(arguments.file)
    flags = {} if arguments.devices is None else {"devices": arguments.devices}
    config = override(Config(), arguments.settings, **model_values(arguments.model), **flags)
    mesh: Any = abstract_mesh(
        axis_sizes(layout.mesh, config.devices or devices_of_mesh(layout), layout.name)
    )
    job = Job(config, layout, mesh)
    print(overview.describe(layout, job.mesh, job.state, job.program().collectives))
    return 0
