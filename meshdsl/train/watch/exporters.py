"""Metrics for other programs: TensorBoard's event files, and Weights & Biases. Both are extras."""

from __future__ import annotations

import importlib
import os
import tomllib
import uuid
from pathlib import Path
from typing import Any

from meshdsl import hosts
from meshdsl.errors import MeshDSLError
from meshdsl.train.watch.metrics_file import Record


def extra(module: str, name: str, setting: str) -> Any:
    """The module that an extra of this package brings.

    Raises:
      MeshDSLError: it is not installed.
    """
    try:
        return importlib.import_module(module)
    except ImportError:
        raise MeshDSLError(
            f'{setting}: needs {module}, which is not installed; pip install "meshdsl[{name}]" brings it'
        ) from None


class TensorBoard:
    """Event files in `folder`. What a killed run left there of steps after `done` is not shown.

    A step is one event with all its values; `SummaryWriter.add_scalar` would make one of each, at several times the cost.
    """

    def __init__(self, folder: Path, done: int):
        module = extra("tensorboardX", "tensorboard", "log.tensorboard")
        self._event = importlib.import_module("tensorboardX.proto.event_pb2")
        self._summary = importlib.import_module("tensorboardX.proto.summary_pb2").Summary
        self._writer = module.FileWriter(
            folder, max_queue=1000, flush_secs=30, filename_suffix=f".{done}"
        )  # a resume within a second has a file of its own
        self._writer.add_event(self._event.Event(step=done + 1, file_version="brain.Event:2"))
        self.rewind(done)

    def write(self, record: Record) -> None:
        values = [
            self._summary.Value(tag=name, simple_value=value)
            for name, value in record.items()
            if name != "step"
        ]
        self._writer.add_summary(self._summary(value=values), record["step"])

    def rewind(self, done: int) -> None:
        started = self._event.SessionLog(status=self._event.SessionLog.START)
        self._writer.add_event(self._event.Event(step=done + 1, session_log=started))

    def close(self) -> None:
        self._writer.close()


def log_in(project: str) -> None:
    """Make sure that Weights & Biases knows the user; nothing where `WANDB_MODE` needs no network.

    Raises:
      MeshDSLError: it does not.
    """
    module = extra("wandb", "wandb", "log.wandb")
    if hosts.first() and os.environ.get("WANDB_MODE", "online") == "online":
        try:
            module.login()
        except module.errors.Error as error:
            raise MeshDSLError(f"log.wandb={project}: {error}") from None


class WandB:
    """A run of Weights & Biases, the same one after a resume: its id is kept in the run's folder.

    Values are logged with their `step` as a metric, because a step that is run again after a resume could not be logged otherwise.
    """

    def __init__(self, project: str, folder: Path, config: Path):
        module = extra("wandb", "wandb", "log.wandb")
        stored = folder / "wandb-id"
        name = (
            stored.read_text(encoding="utf-8").strip() if stored.exists() else uuid.uuid4().hex[:8]
        )
        values = tomllib.loads(config.read_text(encoding="utf-8")) if config.exists() else None
        try:
            self._run = module.init(
                project=project,
                id=name,
                resume="allow",
                name=folder.name,
                dir=str(folder),
                config=values,
            )
        except module.errors.Error as error:
            raise MeshDSLError(f"log.wandb={project}: {error}") from None
        stored.write_text(name, encoding="utf-8")
        self._run.define_metric("*", step_metric="step")

    def write(self, record: Record) -> None:
        self._run.log(record)

    def rewind(self, done: int) -> None:
        """Nothing: the steps after `done` come again, and the later values of a step are shown."""

    def close(self) -> None:
        self._run.finish()
