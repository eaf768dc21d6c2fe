"""Metrics for other programs: event files of TensorBoard, and Weights & Biases; both are extras."""

from __future__ import annotations

import os
import time
import tomllib
import uuid
from pathlib import Path

from meshdsl import hosts
from meshdsl.errors import MeshDSLError
from meshdsl.extras import extra
from meshdsl.train.watch.metrics_file import StepMetrics


class TensorBoard:
    """Writes event files of TensorBoard into `folder`.

    What a killed run left there of steps after `done` is not shown.
    """

    def __init__(self, folder: Path, done: int):
        self._folder = folder
        self.rewind(done)

    def write(self, metrics: StepMetrics) -> None:
        """Write the metrics of a step."""
        for name, value in metrics.items():
            if name not in ("step", "time"):  # an event has its own time
                self._writer.add_scalar(name, value, metrics["step"])

    def rewind(self, done: int) -> None:
        """Go on in another file, which tells TensorBoard to forget the steps after `done`."""
        with extra("tensorboard", "log.tensorboard"):
            from tensorboardX import SummaryWriter
        if hasattr(self, "_writer"):
            self._writer.close()
        self._writer = SummaryWriter(
            str(self._folder),
            purge_step=done + 1,
            max_queue=1000,
            flush_secs=30,
            filename_suffix=f".{time.time_ns()}",  # else files of one second have one name
        )

    def close(self) -> None:
        """Write what is waiting, and close the file."""
        self._writer.close()


def log_in(project: str) -> None:
    """Make sure that Weights & Biases knows the user, unless `WANDB_MODE` needs no network.

    Raises:
      MeshDSLError: it does not, or wandb is not installed.
    """
    with extra("wandb", "log.wandb"):
        import wandb
        from wandb.errors import Error
    if hosts.first() and os.environ.get("WANDB_MODE", "online") == "online":
        try:
            wandb.login()
        except Error as error:
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
        with extra("wandb", "log.wandb"):
            import wandb
            from wandb.errors import Error
        id_file = folder / "wandb-id"
        wandb_id = (
            id_file.read_text(encoding="utf-8").strip()
            if id_file.exists()
            else uuid.uuid4().hex[:8]
        )
        values = tomllib.loads(config.read_text(encoding="utf-8")) if config.exists() else None
        try:
            self._run = wandb.init(
                project=project,
                id=wandb_id,
                resume="allow",
                name=folder.name,
                dir=str(folder),
                config=values,
            )
        except Error as error:
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
