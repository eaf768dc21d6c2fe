"""Checkpoints: what is saved comes back, under any layout, and never into another model."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from meshdsl.dims import Dim
from meshdsl.errors import MeshDSLError
from meshdsl.layout import Layout
from meshdsl.lowering.spmd import shardings
from meshdsl.mesh import make_mesh
from meshdsl.tensor import parameter
from meshdsl.train.checkpoint import Checkpoints, named
from meshdsl.train.config import Optimizer
from meshdsl.train.optimizer import make_optimizer

FSDP = Layout(["batch -> data"], parameters=["d_model -> data"], mesh={"data": 8}, name="fsdp")
TENSOR = Layout(["batch -> data", "d_ff -> model"], mesh={"data": 2, "model": 2}, name="tensor")


class State(NamedTuple):
    step: Any
    params: Any
    opt_state: Any
    key: Any


def make_state(layout, d_ff=16, optimizer="adamw", seed=0):
    """A state of one matrix and one scale, as arrays on the mesh of `layout`."""
    mesh = make_mesh(layout)
    model, ff = Dim("d_model", 8), Dim("d_ff", d_ff)
    params = {
        "up": parameter(jax.random.normal(jax.random.key(seed), (8, d_ff)), (model, ff), ins=(model,)),
        "scale": parameter(jnp.ones(8), (model,)),
    }
    opt_state = make_optimizer(Optimizer(name=optimizer), steps=10).init(params)
    state = State(jnp.int32(seed), params, opt_state, jax.random.key(seed))
    return jax.device_put(state, shardings(state, layout, mesh))


def assert_equal(one, two):
    plain = lambda x: jax.random.key_data(x) if jax.dtypes.issubdtype(x.dtype, jax.dtypes.prng_key) else x
    jax.tree.map(lambda a, b: np.testing.assert_array_equal(plain(a), plain(b)), one, two)


def saved(folder, *states, keep=2):
    checkpoints = Checkpoints(folder, keep)
    for step, state in enumerate(states, 1):
        checkpoints.save(step, state, {"next_index": step})
    checkpoints.close()


@pytest.mark.parametrize("optimizer", ["adamw", "adafactor", "muon"])
def test_a_state_comes_back_under_another_layout_and_number_of_devices(tmp_path, optimizer):
    state = make_state(FSDP, optimizer=optimizer, seed=3)
    saved(tmp_path / "checkpoints", state)
    like = make_state(TENSOR, optimizer=optimizer)
    found, data = Checkpoints(tmp_path / "checkpoints", 2).restore(like)
    assert_equal(found, state)
    assert [x.sharding for x in jax.tree.leaves(found)] == [x.sharding for x in jax.tree.leaves(like)]
    assert data == {"next_index": 1}


def test_a_state_is_restored_from_its_description_alone(tmp_path):
    state = make_state(FSDP, seed=3)
    saved(tmp_path / "checkpoints", state)
    like = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding), state)
    found, _ = Checkpoints(tmp_path / "checkpoints", 2).restore(like)
    assert_equal(found, state)


def test_the_newest_are_kept(tmp_path):
    saved(tmp_path / "checkpoints", *[make_state(FSDP, seed=seed) for seed in range(4)])
    checkpoints = Checkpoints(tmp_path / "checkpoints", 2)
    assert checkpoints.latest == 4
    assert {path.name for path in (tmp_path / "checkpoints").iterdir()} == {"3", "4"}


def test_a_half_written_checkpoint_is_not_seen(tmp_path):
    saved(tmp_path / "checkpoints", make_state(FSDP))
    (tmp_path / "checkpoints" / "7.orbax-checkpoint-tmp").mkdir()
    assert Checkpoints(tmp_path / "checkpoints", 2).latest == 1


def test_a_folder_without_checkpoints_has_no_latest_and_is_not_made(tmp_path):
    assert Checkpoints(tmp_path / "checkpoints", 2).latest is None
    assert not (tmp_path / "checkpoints").exists()


@pytest.mark.parametrize(
    ("other", "text"),
    [
        (
            {"d_ff": 32},
            "holds a checkpoint of another model or optimizer: "
            "`params.up` is [d_model=8, d_ff=16] float32 there and [d_model=8, d_ff=32] float32 here",
        ),
        ({"optimizer": "lion"}, "`opt_state.0.nu.scale` is [d_model=8] float32 there and absent here"),
    ],
)
def test_a_checkpoint_of_another_model_is_refused_with(tmp_path, other, text):
    saved(tmp_path / "checkpoints", make_state(FSDP))
    before = {path: path.stat().st_mtime for path in tmp_path.rglob("*")}
    checkpoints = Checkpoints(tmp_path / "checkpoints", 2)
    for refuse in (checkpoints.check, checkpoints.restore):
        with pytest.raises(MeshDSLError) as error:
            refuse(make_state(FSDP, **other))
        assert text in str(error.value)
    assert {path: path.stat().st_mtime for path in tmp_path.rglob("*")} == before


def test_leaves_are_named_by_their_path():
    names = list(named(make_state(FSDP)))
    assert names[:3] == ["step", "params.scale", "params.up"]
    assert "opt_state.0.mu.up" in names
