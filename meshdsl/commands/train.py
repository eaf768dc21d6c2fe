"""`meshdsl train`."""

from __future__ import annotations

import argparse
from pathlib import Path

from meshdsl.commands.find import find_layout, pick_devices
from meshdsl.commands.flags import count
from meshdsl.errors import MeshDSLError


def add(commands) -> None:
    train = commands.add_parser(
        "train",
        help="train a transformer on text",
        usage="%(prog)s [--layout FILE|NAME] [--model NAME] [--devices N] [--steps N] [--out FOLDER] [--data PATH...] [--resume] "
        "[--executable FILE] [key=value...]",
        epilog="Any other setting is key=value, for example: model.d_model=256 optimizer.name=lion checkpoint.every=50",
    )
    train.add_argument("--layout", help="a layout file, or the name of a shipped one (see `meshdsl layouts`)")
    train.add_argument("--model", help="a published size such as llama3-8b (see `meshdsl models`), or a style: gpt2 or llama")
    train.add_argument("--devices", type=count, help="so many virtual CPU devices; where there is an accelerator, its first ones")
    train.add_argument("--steps", type=count, help="how many steps to train")
    train.add_argument("--out", type=Path, help="the folder of the run; by default a new one in runs/")
    train.add_argument("--data", nargs="+", metavar="PATH", dest="data.paths", help="files and folders; by default Python's own library")
    train.add_argument("--resume", action="store_true", help="go on from the newest checkpoint in --out")
    train.add_argument("--executable", type=Path, metavar="FILE", help="the compiled step, from `meshdsl compile --save FILE`, instead of compiling it")
    train.set_defaults(command=_run)


def _run(arguments: argparse.Namespace, settings: list[str]) -> int:
    from meshdsl.commands.settings import model_values
    from meshdsl.train.config import Config, override
    from meshdsl.train.folder import RunFolder
    from meshdsl.train.loop import train

    if arguments.resume and arguments.out is None:
        raise MeshDSLError("--resume: say which run, with --out FOLDER")
    config = RunFolder(arguments.out).stored_config() if arguments.resume else Config()
    flags = {key: value for key in ("layout", "devices", "steps", "data.paths") if (value := getattr(arguments, key)) is not None}
    config = override(config, settings, **model_values(arguments.model), **flags)
    layout = find_layout(config.layout)
    folder = RunFolder(arguments.out) if arguments.out else RunFolder.unused(Path("runs"), Path(config.layout).stem)
    return train(config, layout, pick_devices(layout, config.devices), folder, resume=arguments.resume, executable=arguments.executable)
