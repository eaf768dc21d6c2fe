"""Workers that train apart and exchange what they learned: `local` of the settings."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import meshdsl as md
from meshdsl.errors import MeshDSLError
from meshdsl.models.unet import Config as UNetConfig
from meshdsl.models.unet import UNet
from meshdsl.tensor import is_tensor
from meshdsl.train.config import Config
from meshdsl.train.job import Job
from meshdsl.train.local import LocalStep
from meshdsl.train.settings import override
from meshdsl.train.step import State
from meshdsl.train.stored_layout import find_layout
from meshdsl.train.timetable import Timetable
from tests.helpers import data, dims, distance, only
from tests.train.common import TINY

LAYERS = ("model.layers=4", "model.d_ff=32")
EXPERTS = ("model.experts=4", "model.d_ff=32")
LATE = ("local.fragments=2", "local.delay=1", "steps=4")
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
    "fragments": ("fsdp", 2, (*LATE, "model.layers=4")),
    "fragments, experts": ("experts", 2, (*LATE, *EXPERTS)),
    "fragments, pipeline": ("pipeline", 2, (*LATE, *LAYERS)),
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
    return Job(override(Config(), [*TINY, "local.every=2", "steps=3", *settings]), layout, mesh)


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


@functools.cache
def on_one_device(*settings: str) -> tuple[State, list[float]]:
    return trained(local_job(md.Layout(), *settings))


def trained(job: Job) -> tuple[State, list[float]]:
    """The state after the steps of a run, with exchanges, and the losses."""
    state, losses = job.step.init(jax.random.key(0)), []
    timetable = Timetable(job)
    for number in range(1, job.config.steps + 1):
        state, measured = timetable.step(job.step, state, batch_of(job, number), number)
        losses.append(float(job.step.told([measured])[0]["loss"]))
    return state, losses


@functools.cache
def in_slices(layout: str, workers: int, *settings: str) -> tuple[Job, State, list[float]]:
    """The job of a worker on each slice, and what it trains."""
    job = local_job(with_workers(layout, workers), f"local.workers={workers}", *settings)
    return job, *trained(job)


def assert_alike(found: State, wanted: State, tolerance: float = 1e-6) -> None:
    for tree in ("params", "adapters"):
        pairs = zip(*(jax.tree.leaves(getattr(s, tree)) for s in (found, wanted)), strict=True)
        assert max((distance(a, b, floor=1e-6) for a, b in pairs), default=0) < tolerance


# Each of the others lies between two of these.
OFTEN = ["fsdp-once", "fsdp-sequence", "context-ring", "pipeline-rounds", "experts-exchange"]
OFTEN += ["few bits", "adapters", "muon", "dropout", "fragments, experts"]


@pytest.mark.parametrize("name", only(["fsdp"], CASES, OFTEN))
def test_slices_train_as_workers_on_one_device(name):
    layout, workers, more = CASES[name]
    job, found, losses = in_slices(layout, workers, *more)
    assert not any("replica" in c.axes for c in job.program().collectives)
    wanted, of_one = on_one_device(f"local.workers={workers}", *more)
    np.testing.assert_allclose(losses, of_one, rtol=1e-6)
    assert_alike(found, wanted)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("layout", "settings"),
    [
        (with_workers("fsdp", 2), ("local.workers=4", "batch=16")),  # two workers on each slice
        (find_layout("fsdp"), ("local.workers=2", "batch=16")),  # all workers on all devices
        (with_workers("fsdp", 2, optimizer=["d_ff, vocab -> replica"]), ("local.workers=2",)),
    ],
    ids=["two of four", "without a rule", "optimizer"],
)
def test_workers_are_anywhere(layout, settings):
    found, losses = trained(local_job(layout, *settings))
    wanted, of_one = on_one_device(*settings)
    np.testing.assert_allclose(losses, of_one, rtol=1e-6)
    assert_alike(found, wanted, 1e-5)


@pytest.mark.slow
def test_a_unet_trains_as_on_one_device():
    config = UNetConfig(levels=2, channels=4, colors=3, outputs=2)
    worker, batch, height, width, colors = dims(worker=2, batch=4, height=8, width=16, colors=3)

    def loss(model, given, key):
        return md.mean(md.square(model(given["images"]))), {}

    def trained(layout):
        mesh = md.make_mesh(layout)
        outer = optax.sgd(0.7, 0.9, nesterov=True)
        how = {"workers": 2, "outer": outer, "fragments": 2}
        init = lambda key: UNet.init(key, config)
        step = LocalStep(init, loss, optax.adamw(1e-3), layout, mesh, **how)
        images = lambda i: {"images": data(worker, batch, height, width, colors, seed=i)}
        state, first = step(step.init(jax.random.key(0)), images(1))
        state, second = step.sending(state, images(2), 1)  # a fragment, behind this step
        state, third = step(step.exchange(step.arrive(state, 1), 0), images(3))
        return state, [each["loss"] for each in step.told([first, second, third])]

    rules = ["worker -> replica", "batch -> data", "height -> rows"]
    mesh = {"replica": 2, "data": 2, "rows": 2}
    split = md.Layout(rules, mesh=mesh, parameters=["channels, hidden -> data"])
    (found, losses), (wanted, of_one) = trained(split), trained(md.Layout())
    np.testing.assert_allclose(losses, of_one, rtol=1e-6)
    assert_alike(found, wanted, 1e-5)


SGD = (
    *("optimizer.name=sgd", "optimizer.settings.momentum=0.0", "optimizer.settings.nesterov=false"),
    *("optimizer.weight_decay=0", "optimizer.clip=0", "optimizer.learning_rate=0.1"),
)
MEAN = (
    *("local.outer.settings.momentum=0.0", "local.outer.settings.nesterov=false"),
    "local.outer.learning_rate=1",
)


@pytest.mark.slow  # test_diloco compares with plain JAX by default
def test_an_exchange_after_every_step_of_sgd_is_data_parallelism():
    layout = with_workers("data", 4)
    found, losses = trained(local_job(layout, "local.workers=4", "local.every=1", *SGD, *MEAN))
    wanted, together = trained(local_job(find_layout("data"), *SGD))
    np.testing.assert_allclose(losses, together, rtol=1e-6)
    assert_alike(found, wanted)
    of_workers = zip(*map(jax.tree.leaves, (found.workers.params, found.params)), strict=True)
    assert all(np.array_equal(own[i], outer) for own, outer in of_workers for i in range(4))


@pytest.mark.slow
def test_the_state_of_the_outer_optimizer_may_be_split_over_slices():
    job = local_job(with_workers("fsdp", 2, optimizer=["vocab -> replica"]), "local.workers=2")
    assert job.local is not None
    operations = {c.operation for c in job.local.exchange_program().collectives}
    assert operations == {"psum", "psum_scatter", "all_gather"}
    (momentum,) = [
        x
        for x in jax.tree.leaves(job.state.opt_state, is_leaf=is_tensor)
        if is_tensor(x) and [d.name for d in x.dims] == ["vocab", "d_model"]
    ]
    assert tuple(momentum.array.sharding.spec) == ("replica", "data")


ERRORS = {
    "odd": (
        {"rules": ["worker -> replica"], "mesh": {"replica": 2}},
        "local.workers=3 batch=9",
        "layout, rule 1: worker -> replica: local.workers=3 does not divide over `replica`=2",
    ),
    "rows": ({}, "local.workers=3", "batch=8 does not divide over local.workers=3"),
    "microbatches": (
        {},
        "local.workers=4 microbatches=4",
        "batch=8 does not divide over local.workers=4 of 4 microbatches",
    ),
    "every": ({}, "local.workers=2 local.every=0", "local.every=0: must be at least 1"),
    "above": (
        {"rules": ["batch -> replica", "worker -> replica"], "mesh": {"replica": 2}},
        "local.workers=2",
        "layout, rule 2: worker -> replica: `worker` stands in every loop nest of a worker's step, "
        "and `batch` takes `replica` above it, in layout, rule 1: batch -> replica; move the rule "
        "of `worker` above that",
    ),
    "parameters": (
        {
            "rules": ["worker -> replica"],
            "mesh": {"replica": 2},
            "parameters": ["d_model -> replica"],
        },
        "local.workers=2",
        "layout, parameters rule 1: d_model -> replica: splits `embedding.table` over `replica`, "
        "by its `d_model`, and each worker along `replica` has parameters of its own; the list "
        "`optimizer` may split the state of the outer optimizer so",
    ),
    "list": (
        {"parameters": ["worker -> replica"], "mesh": {"replica": 2}},
        "local.workers=2",
        "layout, parameters rule 1: worker -> replica: workers are apart in all that they do, so "
        "`worker` is of the list `rules`",
    ),
    "move": (
        {"rules": [{"rule": "worker -> replica", "move": "ring"}], "mesh": {"replica": 2}},
        "local.workers=2",
        "layout, rule 1: worker -> replica: a rule of `worker` says nothing but its axes",
    ),
    "no workers": (
        {"rules": ["worker -> replica"], "mesh": {"replica": 2}},
        "local.workers=0",
        "layout, rule 1: worker -> replica: there are no workers; set local.workers",
    ),
    "fragments": (
        {},
        "local.workers=2 local.every=2 local.fragments=3",
        "local.fragments=3: more than local.every=2; there is one exchange after a step",
    ),
    "few layers": (
        {},
        "local.workers=2 local.every=99 local.fragments=50",
        "local.fragments=50: the model has layers and parameters for ",
    ),
    "delay": (
        {},
        "local.workers=2 local.every=2 local.delay=3",
        "local.delay=3: longer than local.every=2, so a fragment would be sent again before it has "
        "arrived",
    ),
    "wire": (
        {"rules": ["worker -> replica"], "mesh": {"replica": 2}},
        "local.workers=2 local.wire=int7",
        "local.wire: gradients are sent over `replica` as ",
    ),
    "wire of nobody": (
        {},
        "local.workers=2 local.wire=int7",
        "local.wire: gradients are sent over ",
    ),
    "gradients' wire": (
        {"rules": ["worker -> replica"], "mesh": {"replica": 2}},
        "local.workers=2 precision.wire.replica=int8",
        "precision.wire: no gradient is summed over `replica`, which is an axis of `worker`; "
        "local.wire is for what the workers exchange",
    ),
    "average": (
        {},
        "local.workers=2 optimizer.average=0.9",
        "optimizer.average: is not there yet with local.workers=2",
    ),
    "repeat": ({}, "local.workers=2 guard.repeat=2", "guard.repeat: is not there yet with local."),
    "offload": (
        {},
        "local.workers=2 offload=optimizer",
        "offload=optimizer: is not there yet with local.workers=2",
    ),
    "outer": (
        {},
        "local.workers=2 local.outer.name=nesterof",
        "local.outer.name=nesterof: expected adamw, adafactor, lion, sgd, muon, another optimizer",
    ),
    "setting": (
        {},
        "local.workers=2 local.outer.settings.momentun=1.0",
        "local.outer.settings.momentun: sgd has no such setting; did you mean `momentum`?",
    ),
    "loss": (
        {},
        "local.workers=2 local.outer.name=momo",
        "local.outer.name=momo: cannot be used in a run: ",
    ),
    "muon": (
        {},
        "local.workers=2 local.outer.name=muon",
        "local.outer.name=muon: is not there yet for workers",
    ),
}


@pytest.mark.parametrize("name", ERRORS)
def test_errors(name):
    rules, settings, said = ERRORS[name]
    with pytest.raises(MeshDSLError) as error:
        local_job(md.Layout(**rules), *settings.split()).program()
    assert str(error.value).startswith(said)


def test_a_model_with_a_dim_of_that_name_is_refused():
    worker = md.Dim("worker", 2)
    init = lambda key: {"w": md.parameter(jnp.ones(2), worker)}
    how = {"workers": 2, "outer": optax.sgd(1.0)}
    layout = md.Layout()
    with pytest.raises(MeshDSLError, match="^local.workers: `w` has a dim `worker` of its own"):
        LocalStep(init, lambda *_: None, optax.sgd(1.0), layout, md.make_mesh(layout), **how)


@pytest.mark.slow  # tests/lowering/test_wire.py has what travels in few bits by default
def test_what_is_exchanged_travels_in_few_bits():
    """Near to the exact exchange, and in few bytes: here a block has 16 numbers and a scale."""
    exact, wanted, _ = in_slices("fsdp", 4)
    job, found, _ = in_slices("fsdp", 4, "local.wire=int8")
    pairs = zip(*(jax.tree.leaves(s.params) for s in (found, wanted)), strict=True)
    farthest = max(distance(a, b, floor=1e-6) for a, b in pairs)
    assert 1e-6 < farthest < 2e-2
    for own in jax.tree.leaves(found.workers.params):
        np.testing.assert_array_equal(own[0], own[1])
    sent = lambda job: [c for c in job.local.exchange_program().collectives if "replica" in c.axes]
    assert {c.operation for c in sent(job)} == {"all_to_all", "all_gather", "psum"}
    assert {c.operation for c in sent(exact)} == {"psum"}
    matrices = [c for c in sent(job) if c.operation == "all_to_all"]
    assert sum(c.total_bytes for c in matrices) < 0.35 * sum(c.total_bytes for c in sent(exact))
