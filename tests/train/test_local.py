"""Workers that train apart and exchange what they learned: `local` of the settings."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import meshdsl as md
from meshdsl.errors import MeshDSLError
from meshdsl.predict.compiler.collectives import from_hlo
from meshdsl.train.config import Config
from meshdsl.train.job import Job
from meshdsl.train.local import LocalStep
from meshdsl.train.settings import override
from meshdsl.train.step import State, TrainStep
from meshdsl.train.stored_layout import find_layout
from tests.helpers import distance, only
from tests.train.common import TINY

LAYERS = ("model.layers=4", "model.d_ff=32")
EXPERTS = ("model.experts=4", "model.d_ff=32")
UNET = (
    *("model.family=unet", "model.channels=8", "model.size=16"),
    *("data.task=images",),
)
# By a shipped layout, on whose devices there are so many workers, and the settings of the run.
CASES = {
    "fsdp": ("fsdp", 4, ()),
    "data": ("data", 2, ()),
    "tensor": ("tensor", 2, ()),
    "zero2": ("zero2", 2, ()),
    "fsdp-once": ("fsdp-once", 4, ("microbatches=2", "batch=16")),
    "fsdp-sequence": ("fsdp-sequence", 2, ("model.remat=full", "model.layers=2")),
    "context-ring": ("context-ring", 2, ()),
    "pipeline": ("pipeline", 2, LAYERS),
    "pipeline-fsdp": ("pipeline-fsdp", 2, LAYERS),
    "pipeline-rounds": ("pipeline-rounds", 2, ("model.layers=8",)),
    "experts": ("experts", 2, EXPERTS),
    "experts-exchange": ("experts-exchange", 2, EXPERTS),
    "few bits": ("fsdp", 2, ("precision.matmul=int8",)),
    "frozen": ("fsdp", 2, ("frozen=embedding.*",)),
    "adapters": ("fsdp", 2, ("lora.parameters=blocks.*.weight", "lora.rank=2")),
    "muon": ("fsdp", 2, ("optimizer.name=muon",)),
    "adafactor": ("fsdp", 2, ("optimizer.name=adafactor", "model.d_model=128")),
    "dropout": ("fsdp", 2, ("model.dropout=0.1", "precision.loss_scale=dynamic")),
}


def with_workers(name: str, replicas: int, **changes) -> md.Layout:
    """A shipped layout, in each of so many slices, with workers over them."""
    found = find_layout(name)
    rules = ["worker -> replica", *found.rules]
    mesh = {"replica": replicas, **found.mesh}
    how = {"gather": found.gather, "gradients": found.gradients, "uneven": found.uneven}
    how |= {"parameters": found.parameters, "optimizer": found.optimizer, **changes}
    return md.Layout(rules, mesh=mesh, **how)


def local_job(layout: md.Layout, *settings: str) -> Job:
    mesh = md.make_mesh(layout)
    return Job(override(Config(), [*TINY, "local.every=2", *settings]), layout, mesh)


def batch_of(job: Job, number: int) -> dict[str, md.Tensor]:
    """The rows of a batch are the same however they are placed."""
    random = np.random.default_rng(number)

    def rows(x: md.Tensor) -> np.ndarray:
        after = [dim.name for dim in x.dims].index("batch") + 1
        shape = job.config.batch, *(dim.size for dim in x.dims[after:])
        if np.issubdtype(x.dtype, np.integer):
            return random.integers(0, 10, shape, x.dtype)
        return random.normal(size=shape).astype(x.dtype)

    return job.place({name: rows(x) for name, x in job.batch.items()})


def trained(job: Job, steps: int = 3) -> tuple[State, list[float]]:
    """The state after so many steps, with exchanges, and the losses."""
    state, losses = job.step.init(jax.random.key(0)), []
    for number in range(1, steps + 1):
        state, measured = job.step(state, batch_of(job, number))
        losses.append(float(job.step.told(measured)["loss"]))
        if job.local and job.config.local.due(number, steps):
            state = job.local.exchange(state)
    return state, losses


def assert_alike(found: State, wanted: State, tolerance: float = 1e-6) -> None:
    for tree in ("params", "adapters"):
        pairs = zip(*(jax.tree.leaves(getattr(s, tree)) for s in (found, wanted)), strict=True)
        assert max((distance(a, b, floor=1e-6) for a, b in pairs), default=0) < tolerance


@pytest.mark.parametrize("name", only(["fsdp"], CASES))
def test_slices_train_as_workers_on_one_device(name):
    layout, workers, more = CASES[name]
    settings = f"local.workers={workers}", *more
    job = local_job(with_workers(layout, workers), *settings)
    assert not any("replica" in c.axes for c in job.program().collectives)
    found, losses = trained(job)
    wanted, of_one = trained(local_job(md.Layout(), *settings))
    np.testing.assert_allclose(losses, of_one, rtol=1e-6)
    assert_alike(found, wanted)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("layout", "settings"),
    [
        (with_workers("fsdp", 2), ("local.workers=4",)),  # two workers on each slice
        (find_layout("fsdp"), ("local.workers=2",)),  # all workers on all devices
        (with_workers("fsdp", 2, optimizer=["d_ff, vocab -> replica"]), ("local.workers=2",)),
    ],
    ids=["two of four", "without a rule", "optimizer"],
)
def test_workers_are_anywhere(layout, settings):
    found, losses = trained(local_job(layout, *settings))
    wanted, of_one = trained(local_job(md.Layout(), *settings))
    np.testing.assert_allclose(losses, of_one, rtol=1e-6)
    assert_alike(found, wanted)
