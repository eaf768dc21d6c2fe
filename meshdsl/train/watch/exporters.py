"""Metrics for other programs: TensorBoard, Weights & Biases and MLflow; all three are extras."""

from __future__ import annotations

import os
import re
import time
import tomllib
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

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


_ILLEGAL = re.compile(r"[^\w\-. :/]")  # in the name of a metric or a parameter of MLflow
_PARAMETERS = 100  # that MLflow takes at once
_MLFLOW = "log.mlflow"


def ask_mlflow(where: str) -> None:
    """Make sure that MLflow can be asked, before anything is written; raises as below."""
    _experiment(where)


def _experiment(where: str) -> tuple[Any, str, str | None]:
    """The client of MLflow for a setting `log.mlflow`, the name of the experiment, and its id.

    The id is None where there is no such experiment yet.

    Args:
      where: the address of a tracking server, or of a database, and the name of the experiment
        after the last slash; the name alone where MLflow knows the address by itself.

    Raises:
      MeshDSLError: mlflow is not installed, there is no name, or the server cannot be asked.
    """
    with extra("mlflow", _MLFLOW):
        import mlflow  # pyright: ignore[reportMissingImports]
    address, _, name = where.rpartition("/")
    if not name:
        raise MeshDSLError(
            f"{_MLFLOW}={where}: expected the name of an experiment at the end, as "
            "https://HOST:5000/NAME"
        )
    try:
        client = mlflow.MlflowClient(tracking_uri=address or None)
        found = client.get_experiment_by_name(name)
    except mlflow.MlflowException as error:
        raise MeshDSLError(f"{_MLFLOW}={where}: {' '.join(str(error).split())}") from None
    return client, name, found.experiment_id if found else None


class MLflow:
    """Logs to a run of MLflow, which is the same one after a resume.

    Its id is in the file `mlflow-id` of the run's folder. Threads of MLflow's own send what is
    logged. Of a step that is run again the values of both times are there.

    Args:
      where: the setting `log.mlflow`: an address, a slash, and the name of an experiment.
      folder: of the run.
      config: the file with the run's configuration; its settings are shown as the parameters of a
        new run.

    Raises:
      MeshDSLError: mlflow is not installed, or refuses the run.
    """

    def __init__(self, where: str, folder: Path, config: Path):
        self._client, name, experiment = _experiment(where)
        with extra("mlflow", _MLFLOW):
            import mlflow  # pyright: ignore[reportMissingImports]
        self._entities, self._sent = mlflow.entities, None
        id_file = folder / "mlflow-id"
        try:
            if id_file.exists():
                self._id = id_file.read_text(encoding="utf-8").strip()
                self._client.update_run(self._id, status="RUNNING")
                return
            experiment = experiment or self._client.create_experiment(name)
            self._id = self._client.create_run(experiment, run_name=folder.name).info.run_id
            id_file.write_text(self._id, encoding="utf-8")
            self._show(tomllib.loads(config.read_text("utf-8")) if config.exists() else {})
        except mlflow.MlflowException as error:
            text = " ".join(str(error).split())
            raise MeshDSLError(f"{_MLFLOW}={where}: {text}") from None

    def _show(self, settings: Mapping[str, Any]) -> None:
        shown = [self._entities.Param(_legal(key), str(it)) for key, it in _leaves(settings)]
        for first in range(0, len(shown), _PARAMETERS):
            self._client.log_batch(self._id, params=shown[first : first + _PARAMETERS])

    def write(self, metrics: StepMetrics) -> None:
        """Log the metrics of a step."""
        when = int(1000 * metrics["time"])
        each = [
            self._entities.Metric(_legal(name), value, when, metrics["step"])
            for name, value in metrics.items()
            if name not in ("step", "time")
        ]
        self._sent = self._client.log_batch(self._id, metrics=each, synchronous=False)

    def rewind(self, done: int) -> None:
        """Do nothing: the steps after `done` come again, with later times."""

    def close(self) -> None:
        """Send what is waiting, and end the run there."""
        if self._sent is not None:
            self._sent.wait()
        self._client.set_terminated(self._id)


def _legal(name: str) -> str:
    """A name that MLflow takes."""
    return _ILLEGAL.sub("_", name)


def _leaves(settings: Mapping[str, Any], under: str = "") -> Iterator[tuple[str, Any]]:
    """Each setting with its name, `model.d_model` say."""
    for key, value in settings.items():
        if isinstance(value, Mapping):
            yield from _leaves(value, f"{under}{key}.")
        else:
            yield f"{under}{key}", value
