"""TensorBoard and Weights & Biases where they are installed, and a stand-in for MLflow."""

import importlib.machinery
import re
import sys
import time
import types

import pytest

from meshdsl import MeshDSLError
from meshdsl.train.config import Log
from meshdsl.train.watch import check
from tests.train.watch.runs import measured, run, watch


@pytest.mark.parametrize(
    ("log", "module", "name"),
    [
        (Log(tensorboard=True), "tensorboardX", "tensorboard"),
        (Log(wandb="a"), "wandb", "wandb"),
        (Log(mlflow="a"), "mlflow", "mlflow"),
    ],
)
def test_what_is_not_installed_is_an_error_at_the_start(log, module, name, monkeypatch):
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(MeshDSLError) as error:
        check(log, steps=8)
    assert str(error.value) == (
        f"log.{name}: needs {module}, which is not installed; pip install "
        f'"meshdsl[{name}]" brings it'
    )


def scalars(folder):
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    read = accumulator.EventAccumulator(str(folder))
    read.Reload()
    return {
        tag: [(event.step, event.value) for event in read.Scalars(tag)]
        for tag in read.Tags()["scalars"]
    }


def test_tensorboard_shows_each_step_once_after_a_resume(tmp_path):
    pytest.importorskip("tensorboardX")
    run(tmp_path, 1, 4, log=Log(tensorboard=True))
    run(tmp_path, 3, 5, log=Log(tensorboard=True))
    shown = scalars(tmp_path / "tensorboard")
    assert shown["loss"] == [(step, 10.0 - step) for step in (1, 2, 3, 4, 5)]
    assert {"gradient_norm", "learning_rate", "tokens_per_second", "step_seconds"} < set(shown)


def test_tensorboard_forgets_steps_that_a_run_went_back_over(tmp_path):
    pytest.importorskip("tensorboardX")
    with watch(tmp_path, log=Log(tensorboard=True)) as seen:
        for step in (1, 2, 3):
            seen.step(step, measured(step))
        seen.rewind(1)
        seen.step(2, measured(2, loss=0.5))
    assert scalars(tmp_path / "tensorboard")["loss"] == [(1, 9.0), (2, 0.5)]


def test_wandb_goes_on_with_the_same_run_after_a_resume(tmp_path, monkeypatch):
    pytest.importorskip("wandb")
    for name, value in {"WANDB_MODE": "offline", "WANDB_SILENT": "true"}.items():
        monkeypatch.setenv(name, value)
    (tmp_path / "config.toml").write_text("steps = 8\n")
    run(tmp_path, 1, 2, log=Log(wandb="project"))
    name = (tmp_path / "wandb-id").read_text()
    run(tmp_path, 3, 3, log=Log(wandb="project"))
    assert (tmp_path / "wandb-id").read_text() == name
    written = list((tmp_path / "wandb").glob(f"offline-run-*/run-{name}.wandb"))
    deadline = time.monotonic() + 30  # a process of wandb's own writes them
    while not all(b"learning_rate" in path.read_bytes() for path in written):
        assert time.monotonic() < deadline
        time.sleep(0.1)
    assert written


def test_wandb_that_does_not_know_the_user_is_an_error_at_the_start(monkeypatch):
    wandb = pytest.importorskip("wandb")

    def login():
        raise wandb.errors.UsageError("No API key configured")

    monkeypatch.setattr(wandb, "login", login)
    monkeypatch.setenv("WANDB_MODE", "offline")
    check(Log(wandb="project"), 10)
    monkeypatch.delenv("WANDB_MODE")
    with pytest.raises(MeshDSLError, match="log.wandb=project: No API key configured"):
        check(Log(wandb="project"), 10)


class MLflowClient:
    """What MLflow has been told: parameters and metrics of its runs."""

    def __init__(self, tracking_uri=None):
        told.address, told.client = tracking_uri, self

    def get_experiment_by_name(self, name):
        if told.address == "http://nobody":
            raise told.MlflowException("no\n answer")
        return types.SimpleNamespace(experiment_id="7") if name == "there" else None

    def create_experiment(self, name):
        told.said.append(f"experiment {name}")
        return "8"

    def create_run(self, experiment, run_name):
        told.said.append(f"run {run_name} in {experiment}")
        return types.SimpleNamespace(info=types.SimpleNamespace(run_id="r1"))

    def update_run(self, run, status):
        told.said.append(f"{status} {run}")

    def log_batch(self, run, metrics=(), params=(), synchronous=True):
        told.metrics += [(run, *one) for one in metrics]
        told.params += params
        return types.SimpleNamespace(wait=lambda: told.said.append("sent"))

    def set_terminated(self, run):
        told.said.append(f"ended {run}")


@pytest.fixture
def mlflow(monkeypatch):
    """A module that stands in for MLflow."""
    global told
    told = types.ModuleType("mlflow")
    told.__spec__ = importlib.machinery.ModuleSpec("mlflow", None)
    told.MlflowClient, told.MlflowException = MLflowClient, type("Refused", (Exception,), {})
    told.entities = types.SimpleNamespace(Metric=lambda *it: it, Param=lambda *it: it)
    told.said, told.metrics, told.params = [], [], []
    monkeypatch.setitem(sys.modules, "mlflow", told)
    return told


def test_mlflow_goes_on_with_the_same_run_and_gets_every_metric_by_a_legal_name(tmp_path, mlflow):
    (tmp_path / "config.toml").write_text('steps = 8\n[data.sources."my $web"]\nweight = 2.0\n')
    log = Log(mlflow="http://host:5000/new")
    with watch(tmp_path, log=log) as seen:
        seen.step(1, measured(1, **{"validation/my $web/loss": 2.0}))
    assert mlflow.address == "http://host:5000" and (tmp_path / "mlflow-id").read_text() == "r1"
    assert mlflow.params == [("steps", "8"), ("data.sources.my _web.weight", "2.0")]
    run(tmp_path, 2, 2, log=log)
    name = tmp_path.name
    ends = ["sent", "ended r1"]
    assert mlflow.said == ["experiment new", f"run {name} in 8", *ends, "RUNNING r1", *ends]
    assert [one[-1] for one in mlflow.metrics if one[1] == "loss"] == [1, 2]
    names = {one[1] for one in mlflow.metrics}
    assert {"loss", "seconds", "validation/my _web/loss"} < names and "time" not in names
    assert all(re.fullmatch(r"[\w\-. :/]+", each) for each in names)
    assert all(abs(one[3] / 1000 - time.time()) < 600 for one in mlflow.metrics)


@pytest.mark.parametrize(
    ("where", "says"),
    [
        ("http://host:5000/", "expected the name of an experiment at the end, as https://HOST:500"),
        ("http://nobody/there", "no answer"),
    ],
)
def test_an_mlflow_that_cannot_be_asked_is_an_error_at_the_start(where, says, mlflow):
    with pytest.raises(MeshDSLError) as error:
        check(Log(mlflow=where), 8)
    assert str(error.value).startswith(f"log.mlflow={where}: {says}") and not mlflow.said
