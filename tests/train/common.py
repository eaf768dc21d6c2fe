"""What tests of training share: a small job, and what a run leaves in its folder."""

import dataclasses
import functools
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest

import meshdsl as md
from meshdsl.commands.lookup import devices_of_mesh
from meshdsl.train.config import Config
from meshdsl.train.job import Job
from meshdsl.train.settings import override
from meshdsl.train.step import State, TrainStep
from meshdsl.train.stored_layout import find_layout
from meshdsl_cli import main

TINY = "model.d_model=16 model.layers=1 model.heads=8 model.d_ff=16 model.length=16 batch=8".split()
# Of runs of a few steps.
SHORT = [
    *(*TINY, "model.dropout=0.1", "schedule.warmup=2"),
    *("validation.batches=1", "sample.tokens=0", "proof=off"),
]


def layout_words(layout: str, folder: Path) -> list[str]:
    """What a command line says of a shipped layout, or of `workers`: two of them, and no more."""
    if layout != "workers":
        return ["--layout", layout]
    path = folder / "workers.toml"
    path.write_text('mesh = { replica = 2 }\nlayout = { rules = ["worker -> replica"] }\n')
    return ["--layout", str(path), "local.workers=2", "local.every=3"]


def tiny_job(layout: str, *settings: str) -> Job:
    """A job of a tiny model under a shipped layout, with as many devices as that has."""
    found = find_layout(layout)
    mesh = md.make_mesh(found, jax.devices()[: devices_of_mesh(found)])
    return Job(override(Config(), [*TINY, *settings]), found, mesh)


def first_state(job: Job, *settings: str) -> State:
    """The first state of a tiny job with these settings, computed on one device.

    So jobs of one model under many layouts compile this once. That a state is the same where its
    devices make it has tests of its own, such as those of the first parameters in test_parity.py.
    """
    # A step takes the memory of the state that it gets, which must not be that of the one kept.
    copy = jax.tree.map(jnp.copy, _state_of_one_device(settings))
    return jax.device_put(copy, job.step.shardings)


@functools.cache
def _state_of_one_device(settings: tuple[str, ...]) -> State:
    return tiny_job("single", *settings).step.init(jax.random.key(0))


@contextmanager
def jobs_made_once() -> Iterator[None]:
    """Within it, runs whose steps are the same share one step and all that is compiled of it.

    What a run stores, and what it reads where it goes on, is as ever.
    """
    made, firsts, make = {}, {}, Job.__init__

    def once(job, config, layout, mesh):
        key = (
            type(config.model),
            repr(config.model),
            repr((config.batch, config.microbatches, config.steps, config.precision)),
            repr((config.optimizer, config.schedule, config.guard.nonfinite, config.offload)),
            repr((config.frozen, config.lora, config.local)),
            repr(dataclasses.replace(layout, name="")),
            mesh,
        )
        if key not in made:
            make(job, config, layout, mesh)
            made[key] = job
        vars(job).update(vars(made[key]) | {"config": config, "layout": layout})

    def first_state(step, key):
        if step not in firsts:
            firsts[step] = jax.jit(step._first_state, out_shardings=step.shardings)
        return firsts[step](key)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Job, "__init__", once)
        patch.setattr(TrainStep, "init", first_state)
        yield


def records(out: Path) -> list[dict]:
    """What a run has in its folder of each step."""
    return [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]


def losses(out: Path) -> list[float]:
    """The losses of a run by step; each step from the first has one record."""
    found = records(out)
    assert [record["step"] for record in found] == list(range(1, len(found) + 1))
    return [record["loss"] for record in found]


def train(out: Path, *words: str) -> tuple[int, list[float]]:
    """`meshdsl train` in the folder `out`: its exit code, and the losses of all steps there."""
    return main(["train", "--out", str(out), *words]), losses(out)


def contents(folder: Path) -> dict[str, bytes]:
    """Every file under `folder`, but for the lock that a run holds while it goes on."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name != "lock"
    }
