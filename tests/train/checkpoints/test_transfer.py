"""Parameters go out to safetensors and come back, a chunk at a time."""

import json
import tracemalloc

import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
import safetensors

from meshdsl.dims import Dim
from meshdsl.errors import MeshDSLError
from meshdsl.tensor import parameter
from meshdsl.train.checkpoints import saved_arrays, transfer, tree_leaves, warm_start, writer
from meshdsl.train.checkpoints.safetensors_files import TensorFiles
from meshdsl.train.checkpoints.saved_arrays import verify
from tests.train.checkpoints.states import FSDP, TENSOR, assert_equal, make_state, opened, saved


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("run")
    saved(folder, {5: make_state(FSDP, seed=1)})
    return folder


def export(run, out, limit=1 << 30):
    return transfer.export_parameters(run / "checkpoints", 5, out, "steps = 1\n", limit)


def imported(folder, like):
    """Import `x.safetensors` into `checkpoints`, both in a folder; gives what was not used."""
    files = TensorFiles(folder / "x.safetensors")
    return transfer.import_parameters(files, like, folder / "checkpoints")


def test_an_export_is_read_by_safetensors_with_names_dims_and_configuration(run, tmp_path):
    assert export(run, tmp_path / "x.safetensors") == [tmp_path / "x.safetensors"]
    expected = make_state(FSDP, seed=1).params
    with safetensors.safe_open(tmp_path / "x.safetensors", framework="np") as file:
        found = sorted(file.keys())
        for name in found:
            assert file.get_tensor(name).dtype == expected[name].dtype
            np.testing.assert_array_equal(file.get_tensor(name), expected[name].array)
        about = file.metadata()
    assert found == ["scale", "up"]
    assert about["step"] == "5"
    assert about["config"] == "steps = 1\n"
    assert json.loads(about["dims"]) == {
        "scale": [["d_model", 8]],
        "up": [["d_model", 8], ["d_ff", 16]],
    }


def test_large_models_become_several_files_with_an_index(run, tmp_path):
    files = export(run, tmp_path / "x.safetensors", limit=100)
    assert [file.name for file in files] == [
        "x-00001-of-00002.safetensors",
        "x-00002-of-00002.safetensors",
        "x.safetensors.index.json",
    ]
    assert json.loads(files[-1].read_text()) == {
        "metadata": {"total_size": 8 * 2 + 8 * 16 * 4},
        "weight_map": {
            "scale": "x-00001-of-00002.safetensors",
            "up": "x-00002-of-00002.safetensors",
        },
    }
    for source in (tmp_path, files[-1]):
        found, _ = warm_start(source, make_state(TENSOR).params)
        assert_equal(found, make_state(FSDP, seed=1).params)


def test_what_was_exported_comes_back_by_import_and_warm_start(run, tmp_path):
    export(run, tmp_path / "x.safetensors")
    expected = make_state(FSDP, seed=1).params
    unused = imported(tmp_path, tree_leaves.describe(expected))
    assert unused == []
    assert not verify(tmp_path / "checkpoints" / "0")
    found, report = warm_start(tmp_path, make_state(TENSOR).params)
    assert_equal(found, expected)
    assert report == f"warm start from {tmp_path}, step 0: 2 of 2 parameters"
    for refuse in (opened(tmp_path).check, opened(tmp_path).restore):
        said = f"{tmp_path} holds parameters only; a new run begins with them by warm_start="
        with pytest.raises(MeshDSLError, match=said):
            refuse(make_state(FSDP))


def test_an_import_of_another_model_is_refused_and_writes_nothing(run, tmp_path):
    export(run, tmp_path / "x.safetensors")
    like = tree_leaves.describe(
        {
            "up": parameter(jnp.ones((8, 4)), (Dim("d_model", 8), Dim("d_ff", 4))),
            "head": parameter(jnp.ones(2), (Dim("vocab", 2),)),
        }
    )
    with pytest.raises(MeshDSLError) as error:
        imported(tmp_path, like)
    assert str(error.value) == (
        f"{tmp_path}/x.safetensors: does not hold the parameters of this model; not there: `head`; "
        "of another shape: `up` is [d_model=8, d_ff=16] float32 there and [d_model=8, "
        "d_ff=4] float32 here"
    )
    assert not (tmp_path / "checkpoints").exists()


def test_an_export_of_a_damaged_checkpoint_leaves_no_file(run, tmp_path, monkeypatch):
    monkeypatch.setattr(saved_arrays, "chunk_digest", lambda *args: 1)
    said = "the checkpoint of step 5 is damaged: `params.scale` is not what was saved; choose an"
    with pytest.raises(MeshDSLError, match=said):
        export(run, tmp_path / "x.safetensors")
    assert not list(tmp_path.iterdir())


@pytest.fixture
def large(tmp_path, monkeypatch):
    """A parameter of 16 MB that one device saved, in chunks of 256 kB."""
    for module in (transfer, writer):
        monkeypatch.setattr(module, "CHUNK", 1 << 18)
    array = np.random.default_rng(0).normal(size=(3, 1000, 1400)).astype(np.float32)
    dims = Dim("layers", 3), Dim("d_model", 1000), Dim("d_ff", 1400)
    saved(tmp_path / "run", {5: {"params": {"w": parameter(jnp.asarray(array), dims)}}})
    return tmp_path, array


def peak(fn):
    tracemalloc.start()
    fn()
    size = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return size


def test_no_more_than_some_chunks_are_in_memory(large):
    folder, array = large
    out = folder / "x.safetensors"
    assert peak(lambda: export(folder / "run", out)) < 4 << 20 < array.nbytes / 4
    leaf = {"is": "bfloat16", "dims": None, "shape": [3, 1000, 1400], "dtype": "bfloat16"}
    assert peak(lambda: imported(folder, {"w": leaf})) < 4 << 20
    assert peak(lambda: verify(folder / "checkpoints" / "0")) < 4 << 20
    with safetensors.safe_open(out, framework="np") as file:
        np.testing.assert_array_equal(file.get_tensor("w"), array)
    transfer.export_parameters(folder / "checkpoints", 0, folder / "y.safetensors", "", 1 << 30)
    with safetensors.safe_open(folder / "y.safetensors", framework="np") as file:
        np.testing.assert_array_equal(file.get_tensor("w"), array.astype(ml_dtypes.bfloat16))
