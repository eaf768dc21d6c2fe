"""TensorBoard and Weights & Biases, where they are installed."""

import sys
import time

import pytest

from meshdsl import MeshDSLError
from meshdsl.train.config import Log
from meshdsl.train.watch import check
from tests.train.watch.runs import measured, run, watch


@pytest.mark.parametrize(
    ("log", "module", "name"),
    [(Log(tensorboard=True), "tensorboardX", "tensorboard"), (Log(wandb="a"), "wandb", "wandb")],
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
