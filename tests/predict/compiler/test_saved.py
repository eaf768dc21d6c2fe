"""A compiled step as a file: it computes the same, and is refused where it doesn't belong."""

import json
import os

import jax
import numpy as np
import pytest

import meshdsl as md
from meshdsl.train.config import Config
from meshdsl.train.job import Job
from meshdsl.train.settings import override

SETTINGS = [
    "model.layers=1",
    "model.d_model=16",
    "model.heads=2",
    "model.d_ff=16",
    "model.length=8",
    "batch=4",
]
LAYOUT = md.Layout(["batch -> data"], ["d_model -> data"], mesh={"data": "rest"})


def job(*settings, layout=LAYOUT, devices=4):
    return Job(
        override(Config(), [*SETTINGS, *settings]),
        layout,
        md.make_mesh(layout, jax.devices()[:devices]),
    )


@pytest.fixture(scope="module")
def compiled():
    made = job()
    return made, made.lowered.compile()


@pytest.fixture(scope="module")
def file(compiled, tmp_path_factory):
    made, executable = compiled
    path = tmp_path_factory.mktemp("saved") / "step"
    assert made.save(executable, path, {}) == path.stat().st_size
    return path


def refused(path, made):
    with pytest.raises(md.MeshDSLError) as error:
        made.load(path)
    return str(error.value).removeprefix(f"executable {path}: ")


def rewritten(file, tmp_path, **header):
    """The file with another header."""
    line, _, content = file.read_bytes().partition(b"\n")
    path = tmp_path / "other"
    path.write_bytes(json.dumps(json.loads(line) | header).encode() + b"\n" + content)
    return path


def test_a_loaded_step_computes_what_a_compiled_one_does(file, compiled):
    made, executable = compiled
    losses = []
    for step in (job().load(file), executable):
        state = made.step.init(jax.random.key(0))
        tokens = np.random.default_rng(0).integers(0, 256, (4, 8), np.int32)
        batch = made.place({"tokens": tokens, "targets": tokens})
        for _ in range(2):
            state, measured = step(state, batch)
        losses.append(float(measured["loss"]))
    assert losses[0] == losses[1]


def test_every_difference_is_one_clear_error(file, tmp_path):
    assert refused(file, job("model.length=16", "batch=8")) == (
        "was compiled with batch=4, model.length=8, and this run has batch=8, model.length=16"
    )
    assert refused(file, job("optimizer.learning_rate=0.5")).startswith(
        "was compiled with optimizer.learning_rate=0.001, and this run has"
    )
    assert refused(file, job(devices=2)) == "is for 4 cpu devices of " + _host(
        file
    ) + ", and this run has 2 cpu devices of " + _host(file)
    other = md.Layout(["batch -> data", "d_ff -> model"], mesh={"data": 2, "model": 2})
    assert (
        refused(file, job(layout=other))
        == "is for the mesh data=4, and this run has data=2 model=2"
    )
    rules = md.Layout(["batch -> data"], mesh={"data": "rest"})
    assert "was compiled with layout parameters 2=d_model -> data, " in refused(
        file, job(layout=rules)
    )
    assert refused(rewritten(file, tmp_path, jax="0.1"), job()).startswith(
        "was compiled with jax 0.1 and jaxlib"
    )
    assert refused(rewritten(file, tmp_path, kind="TPU v5", host=""), job()).startswith(
        "is for 4 TPU v5 devices, and this run has 4 cpu devices of"
    )
    assert refused(rewritten(file, tmp_path, program="0"), job()).startswith(
        "is of another program, though its settings are the same"
    )


def _host(file):
    return json.loads(file.read_bytes().partition(b"\n")[0])["host"]


def test_damaged_files_are_refused_before_anything_is_unpickled(file, tmp_path, monkeypatch):
    monkeypatch.setattr("jax.experimental.serialize_executable.deserialize_and_load", None)
    whole, path = file.read_bytes(), tmp_path / "damaged"
    path.write_bytes(whole[:-100])
    assert refused(path, job()).startswith("is cut off: it holds ")
    path.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    assert (
        refused(path, job())
        == "is damaged: its checksum is not that of its content; compile it again"
    )
    for content in (b"", b"hello", b'{"format": "meshdsl executable 1"}\n', whole[:100]):
        path.write_bytes(content)
        assert (
            refused(path, job()) == "is no file that `meshdsl compile --save` of this version wrote"
        )
    assert refused(tmp_path / "none", job()) == "No such file or directory"


def test_a_file_that_others_could_have_written_is_loaded_only_if_trusted(
    file, tmp_path, monkeypatch
):
    assert not file.stat().st_mode & 0o022
    monkeypatch.setattr("meshdsl.predict.compiler.executables._check", None)  # comes after
    remedy = "; loading it can run any code that is in it; compile it again, or say --trust-exec"
    path = tmp_path / "other"
    path.write_bytes(file.read_bytes())
    for mode in (0o620, 0o602):
        path.chmod(mode)
        assert refused(path, job()).startswith(f"can be written by other users{remedy}")
    path.chmod(0o600)
    monkeypatch.setattr("os.geteuid", lambda: path.stat().st_uid + 1)
    assert refused(path, job()).startswith(f"belongs to user {path.stat().st_uid}, and this run is")
    monkeypatch.undo()
    path.chmod(0o666)
    job().load(path, trusted=True)
    os.mkfifo(tmp_path / "pipe")
    for no_file in (tmp_path / "pipe", tmp_path):
        assert refused(no_file, job()) in ("is no file", "Is a directory")


def test_a_file_that_cannot_be_written_is_said_so(compiled, tmp_path):
    made, executable = compiled
    with pytest.raises(md.MeshDSLError, match="--save .*none/step: No such file or directory"):
        made.save(executable, tmp_path / "none" / "step", {})
