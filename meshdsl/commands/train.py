"""`meshdsl train`."""

from __future__ import annotations

import argparse
import dataclasses
from pathlib import Path
from typing import Any

from meshdsl import hosts
from meshdsl.commands.flags import count
from meshdsl.commands.lookup import as_table, find_layout, pick_devices
from meshdsl.errors import MeshDSLError
from meshdsl.hosts.signals import REASONS, heard

_USAGE = """%(prog)s [CONFIG.toml] [--layout FILE|NAME] [--model NAME] [--data PATH...] [--steps N] [--devices N]
                     [--out FOLDER] [--resume [auto]] [--warm-start RUN|FILE] [--profile FIRST:LAST] [--executable FILE]
                     [--print-config] [--coordinator HOST:PORT --processes N --process-id I] [key=value...]"""
_SET_BY_FLAG = {
    "layout": "layout",
    "devices": "devices",
    "steps": "steps",
    "warm_start": "warm_start",
    "profile": "log.profile",
}


def add(commands) -> None:
    train = commands.add_parser(
        "train",
        help="train a transformer on text",
        usage=_USAGE,
        epilog="Any other setting is key=value, for example: model.d_model=256 precision.compute=bfloat16; --print-config shows all",
    )
    train.add_argument(
        "config",
        nargs="?",
        type=Path,
        metavar="CONFIG.toml",
        help="settings of the run; with --resume, those of the run in whose folder it lies",
    )
    train.add_argument(
        "--layout", help="a layout file, or the name of a shipped one (see `meshdsl layouts`)"
    )
    train.add_argument(
        "--model",
        help="a published size such as llama3-8b (see `meshdsl models`), or a style: gpt2 or llama",
    )
    train.add_argument(
        "--devices",
        type=count,
        help="so many virtual CPU devices; where there is an accelerator, its first ones",
    )
    train.add_argument("--steps", type=count, help="how many steps to train")
    train.add_argument(
        "--out", type=Path, help="the folder of the run; by default a new one in runs/"
    )
    train.add_argument(
        "--data",
        nargs="+",
        metavar="PATH",
        help="files and folders; by default Python's own library",
    )
    train.add_argument(
        "--resume",
        nargs="?",
        const="yes",
        choices=("yes", "auto"),
        metavar="auto",
        help="go on from the newest checkpoint; auto: or begin, where there is no run yet",
    )
    train.add_argument(
        "--warm-start",
        metavar="PATH",
        help="begin with the parameters of another run, or of a safetensors file",
    )
    train.add_argument("--profile", metavar="FIRST:LAST", help="write a trace of these steps")
    train.add_argument(
        "--executable",
        type=Path,
        metavar="FILE",
        help="the compiled step, from `meshdsl compile --save FILE`, instead of compiling it",
    )
    what = "print every setting, resolved, with what it is, and end"
    train.add_argument("--print-config", action="store_true", help=what)
    hosts.add_flags(train)
    train.set_defaults(command=_run)


def _run(arguments: argparse.Namespace, settings: list[str]) -> int:
    from meshdsl.train.commented_toml import commented_toml
    from meshdsl.train.folder import RunFolder

    folder, resume = _folder(arguments)
    if arguments.resume == "yes" and (
        arguments.warm_start or any(setting.startswith("warm_start=") for setting in settings)
    ):
        raise MeshDSLError(
            "--warm-start: is for a new run; one that goes on has parameters of its own"
        )
    config = _configured(arguments, settings, folder, resume)
    layout = find_layout(config.layout)
    config = dataclasses.replace(config, layout=as_table(layout))
    if arguments.print_config:
        print(commented_toml(config), end="")
        return 0

    from meshdsl.train.training_run import train

    with heard(*REASONS):
        hosts.join(arguments.coordinator, arguments.processes, arguments.process_id)
        if folder is None:
            if hosts.count() > 1:
                raise MeshDSLError(
                    "--out: several processes need the folder of the run, the same for all, on a file system that all of them see"
                )
            folder = RunFolder.unused(Path("runs"), Path(layout.name.removeprefix("layout ")).stem)
        devices = pick_devices(layout, config.devices, arguments.devices)
        return train(
            config,
            layout,
            devices,
            folder,
            resume=resume,
            again=arguments.resume == "auto",
            executable=arguments.executable,
        )


def _folder(arguments: argparse.Namespace) -> tuple[Any, bool]:
    """The folder of the run, None for a new one, and whether the run in it goes on."""
    from meshdsl.train.folder import RunFolder

    path = arguments.out
    if (
        arguments.resume
        and path is None
        and arguments.config is not None
        and arguments.config.name == "config.toml"
    ):
        path = arguments.config.parent
    if arguments.resume and path is None:
        raise MeshDSLError("--resume: say which run, with --out FOLDER or as FOLDER/config.toml")
    if path is None:
        return None, False
    folder = RunFolder(path)
    if arguments.resume == "yes" and not folder.config.is_file():
        raise MeshDSLError(f"--resume: there is no run in {path}")
    return folder, bool(arguments.resume) and folder.config.is_file()


def _configured(
    arguments: argparse.Namespace, settings: list[str], folder: Any, resume: bool
) -> Any:
    """The configuration: that of the file, or of the run that goes on; then what flags and settings say."""
    from meshdsl.commands.settings import model_values
    from meshdsl.train.config import Config
    from meshdsl.train.settings import override, read

    config = Config()
    if arguments.config is not None:
        config = read(arguments.config, config)
    elif resume:
        config = folder.stored_config()
    flags = {
        key: value
        for flag, key in _SET_BY_FLAG.items()
        if (value := getattr(arguments, flag)) is not None
    }
    if arguments.data:
        config = dataclasses.replace(config, data=dataclasses.replace(config.data, sources={}))
        flags["data.sources.text.paths"] = arguments.data
    return override(config, settings, **model_values(arguments.model), **flags)
