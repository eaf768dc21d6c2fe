"""`meshdsl layouts`: the shipped ones, and a check of one; `meshdsl models`."""

from __future__ import annotations

import argparse
from pathlib import Path

from meshdsl.commands.flags import count
from meshdsl.commands.lookup import devices_of_mesh, find_layout
from meshdsl.errors import MeshDSLError
from meshdsl.layout import shipped


def add(commands) -> None:
    listing = commands.add_parser("layouts", help="list the shipped layouts, or check one")
    listing.set_defaults(command=_list)
    check = listing.add_subparsers(metavar="check").add_parser(
        "check",
        help="check a layout against a model and a number of devices",
        usage="%(prog)s FILE|NAME [--model NAME] [--devices N] [key=value...]",
    )
    check.add_argument("file", help="a layout file, or the name of a shipped one")
    check.add_argument(
        "--model",
        default="gpt2",
        help="a published size (see `meshdsl models`), or a style: gpt2 or llama",
    )
    check.add_argument("--devices", type=count, help="by default what the mesh asks for")
    check.set_defaults(command=_check)
    models = commands.add_parser("models", help="list the published sizes that have a name")
    models.set_defaults(command=_models)


def _list(arguments: argparse.Namespace, settings: list[str]) -> int:
    _refuse(settings)
    width = max(map(len, shipped()))
    for name, path in shipped().items():
        print(f"{name:{width}}  {_summary(path)}")
    return 0


def _summary(path: Path) -> str:
    """The first line of the comment that a layout file begins with."""
    return path.read_text(encoding="utf-8").partition("\n")[0].lstrip("# ").strip()


def _check(arguments: argparse.Namespace, settings: list[str]) -> int:
    from meshdsl.commands.settings import model_values
    from meshdsl.compiled.topology import compile_only
    from meshdsl.mesh import abstract_mesh, axis_sizes
    from meshdsl.train import overview
    from meshdsl.train.config import Config
    from meshdsl.train.job import Job
    from meshdsl.train.settings import override

    compile_only()
    layout = find_layout(arguments.file)
    flags = {} if arguments.devices is None else {"devices": arguments.devices}
    config = override(Config(), settings, **model_values(arguments.model), **flags)
    sizes = axis_sizes(layout.mesh, config.devices or devices_of_mesh(layout), layout.name)
    job = Job(config, layout, abstract_mesh(sizes))
    print(overview.describe(layout, job.mesh, job.state, job.program().collectives))
    return 0


def _models(arguments: argparse.Namespace, settings: list[str]) -> int:
    from meshdsl.models.sizes import SIZES

    _refuse(settings)
    for name, fields in SIZES.items():
        shown = (
            f"{key}={fields[key]}"
            for key in ("layers", "d_model", "heads", "kv_heads", "d_ff", "vocab", "length")
            if key in fields
        )
        print(f"{name:12}  {' '.join(shown)}")
    return 0


def _refuse(settings: list[str]) -> None:
    if settings:
        raise MeshDSLError(f"`{settings[0]}`: settings belong to `check`")
