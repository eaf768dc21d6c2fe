"""A warm start takes what matches, says what does not, and needs nothing else of the other run."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import safetensors.numpy

from meshdsl.dims import Dim
from meshdsl.errors import MeshDSLError
from meshdsl.lowering.shardings import shardings
from meshdsl.mesh import make_mesh
from meshdsl.tensor import parameter
from meshdsl.train.checkpoints import read_params, warm_start
from tests.train.checkpoints.states import FSDP, TENSOR, assert_equal, make_state, saved


def params(layout=TENSOR, **tensors):
    found = {name: parameter(array, dims) for name, (array, dims) in tensors.items()}
    return jax.device_put(found, shardings(found, layout, make_mesh(layout)))


@pytest.fixture
def run(tmp_path):
    saved(tmp_path / "run", {7: make_state(FSDP, seed=1)})
    return tmp_path / "run"


def test_all_parameters_come_under_another_layout_and_optimizer(run):
    like = make_state(TENSOR, optimizer="lion").params
    found, report = warm_start(run, like)
    assert_equal(found, make_state(FSDP, seed=1).params)
    for x, y in zip(jax.tree.leaves(found), jax.tree.leaves(like), strict=True):
        assert x.sharding == y.sharding
    assert report == f"warm start from {run}, step 7: 2 of 2 parameters"


def test_what_does_not_match_stays_and_is_reported(run):
    d_model, wide, vocab = Dim("d_model", 8), Dim("d_ff", 32), Dim("vocab", 4)
    like = params(
        up=(jnp.ones((8, 32)), (d_model, wide)),
        scale=(jnp.zeros(8), (d_model,)),
        head=(jnp.ones((8, 4)), (d_model, vocab)),
    )
    found, report = warm_start(run, like)
    assert report.splitlines() == [
        f"warm start from {run}, step 7: 1 of 3 parameters",
        "  not there: `head`",
        "  of another shape: `up` is [d_model=8, d_ff=16] float32 there and "
        "[d_model=8, d_ff=32] float32 here",
    ]
    for name in ("up", "head"):
        np.testing.assert_array_equal(found[name].array, like[name].array)
    assert found["scale"].dtype == jnp.float32  # the dtype of the run that begins
    expected = make_state(FSDP).params["scale"].array.astype(jnp.float32)
    np.testing.assert_array_equal(found["scale"].array, expected)


def test_the_same_shape_of_other_dims_does_not_match(run):
    like = params(up=(jnp.ones((8, 16)), (Dim("vocab", 8), Dim("d_ff", 16))))
    with pytest.raises(MeshDSLError) as error:
        warm_start(run, like)
    assert str(error.value) == (
        f"warm_start={run}: none of its 2 parameters is one of this model's; "
        "of another shape: `up` is [d_model=8, d_ff=16] float32 there and [vocab=8, "
        "d_ff=16] float32 here; not used: `scale`"
    )


def test_a_damaged_checkpoint_is_passed_over(run):
    saved(run, {9: make_state(FSDP, seed=9)})
    (run / "checkpoints" / "9" / "manifest.ocdbt").unlink()
    found, report = warm_start(run, make_state(TENSOR).params)
    assert_equal(found, make_state(FSDP, seed=1).params)
    assert (
        report.splitlines()[0]
        == "the checkpoint of step 9 is damaged: manifest.ocdbt is missing; using step 7"
    )


def test_from_safetensors_that_another_program_wrote(tmp_path):
    up = np.random.default_rng(0).normal(size=(8, 16)).astype(np.float16)
    safetensors.numpy.save_file({"up": up, "other": up}, tmp_path / "x.safetensors")
    like = make_state(TENSOR).params
    found, report = warm_start(tmp_path / "x.safetensors", like)
    np.testing.assert_array_equal(found["up"].array, up.astype(np.float32))
    assert found["up"].array.sharding == like["up"].array.sharding
    assert report.splitlines() == [
        f"warm start from {tmp_path}/x.safetensors: 1 of 2 parameters",
        "  not there: `scale`",
        "  not used: `other`",
    ]


@pytest.mark.parametrize(
    ("made", "text"),
    [
        (None, "x.safetensors: no such run, and no such file"),
        (b'\x08\0\0\0\0\0\0\0{"a": 1}', "not safetensors: "),
    ],
)
def test_what_holds_no_parameters_is_an_error(tmp_path, made, text):
    if made is not None:
        (tmp_path / "x.safetensors").write_bytes(made)
    with pytest.raises(MeshDSLError, match=text):
        warm_start(tmp_path / "x.safetensors", make_state(TENSOR).params)
    (tmp_path / "x.safetensors").unlink(missing_ok=True)
    with pytest.raises(MeshDSLError, match="has 0 safetensors files; name one"):
        warm_start(tmp_path, make_state(TENSOR).params)


def test_all_parameters_of_a_chosen_step_or_the_newest_good_one(run):
    saved(run, {9: make_state(FSDP, seed=9), 11: make_state(FSDP)}, keep=3)
    (run / "checkpoints" / "11" / "manifest.ocdbt").unlink()
    like, said = make_state(TENSOR, optimizer="lion").params, []
    step, found = read_params(run / "checkpoints", like, report=said.append)
    assert (step, said) == (
        9,
        ["the checkpoint of step 11 is damaged: manifest.ocdbt is missing; using step 9"],
    )
    assert_equal(found, make_state(FSDP, seed=9).params)
    step, found = read_params(run / "checkpoints", like, step=7)
    assert step == 7
    assert_equal(found, make_state(FSDP, seed=1).params)


@pytest.mark.parametrize(
    ("how", "text"),
    [
        ({"step": 8}, "there is no checkpoint of step 8; there are those of steps 7"),
        (
            {"d_ff": 4},
            "holds the parameters of another model; of another shape: `up` is ",
        ),
    ],
)
def test_parameters_that_are_not_there_are_an_error(run, how, text):
    like = make_state(TENSOR, d_ff=how.pop("d_ff", 16)).params
    with pytest.raises(MeshDSLError, match=text):
        read_params(run / "checkpoints", like, **how)
