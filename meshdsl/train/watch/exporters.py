"""Metrics for other programs: event files of TensorBoard, and Weights & Biases; both are extras."""

from __future__ import annotations

import importlib
import os
import tomllib
import uuid
from pathlib import Path
from typing import Any

from meshdsl import hosts
from meshdsl.errors import MeshDSLError
from meshdsl.train.watch.metrics_file import StepMetrics


def import_extra(module: str, extra: str, setting: str) -> Any:
    """Import a module that an extra of this package installs.

    Args:
      extra: its name, as in `pip install "meshdsl[plot]"`.
      setting: what needs the module, for the error.

    Raises:
      MeshDSLError: it is not installed.
    """
    try:
        return importlib.import_module(module)
    except ImportError:
        raise MeshDSLError(
            f"{setting}: needs {module}, which is not installed; "
            f'pip install "meshdsl[{extra}]" brings it'
        ) from None


class TensorBoard:
    """Writes event files of TensorBoard into `folder`.

    What a killed run left there of steps after `done` is not shown. A step is one event with all
    its values; `SummaryWriter.add_scalar` would make one event of each, at several times the cost.
    """

    def __init__(self, folder: Path, done: int):
        module = import_extra("tensorboardX", "tensorboard", "log.tensorboard")
        self._event = importlib.import_module("tensorboardX.proto.event_pb2")
        self._summary = importlib.import_module("tensorboardX.proto.summary_pb2").Summary
        # With the suffix a resume within a second has a file of its own.
        self._writer = module.FileWriter(
            folder, max_queue=1000, flush_secs=30, filename_suffix=f".{done}"
        )
        self._writer.add_event(self._event.Event(step=done + 1, file_version="brain.Event:2"))
        self.rewind(done)

    def write(self, metrics: StepMetrics) -> None:
        """Write the metrics of a step as one event."""
        values = [
            self._summary.Value(tag=name, simple_value=value)
            for name, value in metrics.items()
            if name != "step"
        ]
        self._writer.add_summary(self._summary(value=values), metrics["step"])

    def rewind(self, done: int) -> None:
        """Tell TensorBoard to forget the steps after `done`."""
        started = self._event.SessionLog(status=self._event.SessionLog.START)
        self._writer.add_event(self._event.Event(step=done + 1, session_log=started))

    def close(self) -> None:
        """Write what is waiting, and close the file."""
        self._writer.close()


def log_in(project: str) -> None:
    """Make sure that Weights & Biases knows the user, unless `WANDB_MODE` needs no network.

    Raises:
      MeshDSLError: it does not, or wandb is not installed.
    """
    module = import_extra("wandb", "wandb", "log.wandb")
    if hosts.first() and os.environ.get("WANDB_MODE", "online") == "online":
        try:
            module.login()
        except module.errors.Error as error:
            raise MeshDSLError(f"log.wandb={project}: {error}") from None


class WandB:
    """Logs to a run of Weights & Biases, which is the same one after a resume.

    Its id is in the file `wandb-id` of the run's folder. Values are logged with their `step` as a
    metric, because a step that is run again after a resume could not be logged otherwise.

    Args:
      folder: of the run.
      config: the file with the run's configuration, which is shown there.

    Raises:
      MeshDSLError: wandb is not installed, or refuses the run.
    """

    def __init__(self, project: str, folder: Path, config: Path):
        module = import_extra("wandb", "wandb", "log.wandb")
        id_file = folder / "wandb-id"
        wandb_id = (
            id_file.read_text(encoding="utf-8").strip()
            if id_file.exists()
            else uuid.uuid4().hex[:8]
        )
        values = tomllib.loads(config.read_text(encoding="utf-8")) if config.exists() else None
        try:
            self._run = module.init(
                project=project,
                id=wandb_id,
                resume="allow",
                name=folder.name,
                dir=str(folder),
                config=values,
            )
        except module.errors.Error as error:
            raise MeshDSLError(f"log.wandb={project}: {error}") from None
        id_file.write_text(wandb_id, encoding="utf-8")
        self._run.define_metric("*", step_metric="step")

    def write(self, metrics: StepMetrics) -> None:
        """Log the metrics of a step."""
        self._run.log(metrics)

    def rewind(self, done: int) -> None:
        """Do nothing: the steps after `done` come again, and of each the later values are shown."""

    def close(self) -> None:
        """Send what is waiting, and end the run there."""
        self._run.finish()
