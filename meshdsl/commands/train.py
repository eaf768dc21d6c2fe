"""`meshdsl train`."""

from __future__ import annotations

import argparse
import dataclasses
from pathlib import Path
from typing import Any

from meshdsl import hosts
from meshdsl.commands.lookup import pick_devices
from meshdsl.commands.relayout import change_layout
from meshdsl.commands.settings import model_values
from meshdsl.errors import MeshDSLError
from meshdsl.hosts.signals import REASONS, heard
from meshdsl.tools.ledger import write_ledger
from meshdsl.train.checkpoints.parameters import is_published
from meshdsl.train.config import Config
from meshdsl.train.deterministic import ask_for_determinism
from meshdsl.train.folder import RunFolder
from meshdsl.train.phases import with_stored_layouts
from meshdsl.train.published import published_settings
from meshdsl.train.settings import commented_toml, override, read
from meshdsl.train.startup import Startup, process_age
from meshdsl.train.stored_layout import find_layout
from meshdsl.train.training_run import run
from meshdsl.user_code import is_named

_SET_BY_FLAG = {
    "layout": "layout",
    "devices": "devices",
    "steps": "steps",
    "warm_start": "warm_start",
    "profile": "log.profile",
    "deterministic": "deterministic",
}
_FAMILY = "model.family"


def train_model(arguments: argparse.Namespace) -> int:
    """Train a model: a new run, or one that goes on.

    Raises:
      MeshDSLError: flags and settings contradict each other or the run that goes on, there is no
        such layout or data, or there are fewer devices than wanted.
    """
    if arguments.relayout:
        return change_layout(arguments)
    startup = Startup(process_age())
    startup.done("import")
    if arguments.hardware and not arguments.ledger:
        raise MeshDSLError("--hardware: has figures for the ledger; say --ledger too")
    folder, goes_on = _run_folder(arguments)
    if arguments.resume == "yes" and (
        arguments.warm_start or any(text.startswith("warm_start=") for text in arguments.settings)
    ):
        raise MeshDSLError(
            "--warm-start: is for a new run; one that goes on has parameters of its own"
        )
    config = _configured(arguments, folder if goes_on else None)
    config = with_stored_layouts(config)
    layout = find_layout(config.layout)
    if arguments.print_config:
        print(commented_toml(config), end="")
        return 0
    if config.deterministic:
        ask_for_determinism()
    with heard(*REASONS):
        startup.done("prepare")
        hosts.join(arguments.coordinator, arguments.processes, arguments.process_id)
        startup.done("join")
        if folder is None:
            if hosts.count() > 1:
                raise MeshDSLError(
                    "--out: several processes need the folder of the run, the same for all, on a "
                    "file system that all of them see"
                )
            folder = RunFolder.unused(layout)
        devices = pick_devices(layout, config.devices, arguments.devices)
        return run(
            config,
            devices,
            folder,
            resume=goes_on,
            again=arguments.resume == "auto",
            executable=arguments.executable,
            trust_executable=arguments.trust_executable,
            startup=startup,
            ledger=write_ledger if arguments.ledger else None,
            hardware=arguments.hardware,
        ).exit_code


def _run_folder(arguments: argparse.Namespace) -> tuple[RunFolder | None, bool]:
    """The folder of the run, None where one is still to be made, and whether its run goes on."""
    path, config = arguments.out, arguments.config
    if arguments.resume and path is None and config is not None and config.name == "config.toml":
        path = config.parent
    if arguments.resume and path is None:
        raise MeshDSLError("--resume: say which run, with --out FOLDER or as FOLDER/config.toml")
    if path is None:
        return None, False
    folder = RunFolder(path)
    if arguments.resume == "yes" and not folder.config.is_file():
        raise MeshDSLError(f"--resume: there is no run in {path}")
    return folder, bool(arguments.resume) and folder.config.is_file()


def _configured(arguments: argparse.Namespace, goes_on: RunFolder | None) -> Config:
    """The configuration of the run.

    It is that of the given file, or else of the run that goes on, with what flags and settings say.
    """
    config, model = _begun(arguments), model_values(arguments.model)
    named = {key: name for key, name in model.items() if key == _FAMILY}
    named |= dict(
        text.split("=", 1) for text in arguments.settings if text.startswith(f"{_FAMILY}=")
    )
    if arguments.config is not None:
        config = read(arguments.config, config, named)
    elif goes_on is not None:
        config = goes_on.stored_config(named)
    flags: dict[str, Any] = {
        key: value
        for flag, key in _SET_BY_FLAG.items()
        if (value := getattr(arguments, flag)) is not None
    }
    if arguments.data:
        config = dataclasses.replace(config, data=dataclasses.replace(config.data, sources={}))
        flags |= _data_values(arguments.data)
    return override(config, arguments.settings, **model, **flags)


def _begun(arguments: argparse.Namespace) -> Config:
    """The default settings: of a run that begins with a folder of Hugging Face those of its model.

    Raises:
      MeshDSLError: the model of the folder is not known here.
    """
    said = [text for text in arguments.settings if text.startswith("warm_start=")]
    start = arguments.warm_start or (said[-1].partition("=")[2] if said else "")
    if not start or not is_published(Path(start)):
        return Config()
    return override(Config(), (), **published_settings(Path(start)))


def _data_values(data: list[str]) -> dict[str, Any]:
    """The settings that `--data` stands for: files and folders, or a function of the user's."""
    functions = [name for name in data if is_named(name) and not Path(name).exists()]
    if not functions:
        return {"data.sources.text.paths": data}
    if len(data) > 1:
        raise MeshDSLError(
            f"--data {' '.join(data)}: a function that gives a dataset stands alone; several "
            "datasets are set by data.sources.NAME.dataset"
        )
    return {"data.sources.data.dataset": data[0]}
