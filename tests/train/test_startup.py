"""A run says what its start took, and finds what it compiled before."""

import os

import jax
import pytest

from meshdsl.predict.compiler import executables as module
from meshdsl.predict.compiler.executables import compile_cache
from meshdsl.train.startup import Startup, process_age
from meshdsl_cli import main
from tests.train.common import SHORT, records


@pytest.fixture
def no_cache():
    """JAX has no cache of compiled programs, as with most users."""
    given = jax.config.values["jax_compilation_cache_dir"]
    jax.config.update("jax_compilation_cache_dir", None)
    yield
    jax.config.update("jax_compilation_cache_dir", given)


def test_phases_add_up():
    startup = Startup(already=2.0)
    for phase in ("import", "data", "import"):
        startup.done(phase)
    values = startup.values()
    assert list(values) == ["startup_seconds", "startup_import_seconds", "startup_data_seconds"]
    each = [values[name] for name in list(values)[1:]]
    assert values["startup_seconds"] == pytest.approx(sum(each))
    assert values["startup_import_seconds"] > 2 and 0 < process_age() < 1e6
    assert startup.line() == "started in 2.0 s: import 2.0, data 0.0"


def test_a_folder_that_others_may_write_is_not_read(tmp_path, no_cache):
    said, mine = [], os.geteuid()
    tmp_path.chmod(0o777)
    (tmp_path / "here").write_text("a file")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_kind_of_cpu", lambda: "mine")
        (tmp_path / "cpu-mine").mkdir()
        (tmp_path / "cpu-mine").chmod(0o775)
        for folder in (tmp_path, tmp_path / "here"):
            with compile_cache(folder, said.append):
                assert jax.config.values["jax_compilation_cache_dir"] is None
        patch.setattr(os, "geteuid", lambda: 12345)
        (tmp_path / "cpu-mine").chmod(0o755)
        with compile_cache(tmp_path, said.append):
            assert jax.config.values["jax_compilation_cache_dir"] is None
    assert [line.rpartition(": ")[2] for line in said] == [
        "can be written by other users",
        "Not a directory",
        f"belongs to user {mine}, and this run is of user 12345",
    ]


@pytest.mark.slow
def test_a_run_that_goes_on_finds_its_compiled_step(tmp_path, monkeypatch, capsys, no_cache):
    monkeypatch.setattr(module, "_LEAST", 0.0)
    run = ["train", "--layout", "data", *SHORT, "checkpoint.every=2", "log.every=1"]
    assert main([*run, "--out", str(tmp_path / "none"), "compile_cache=false", "steps=1"]) == 0
    assert not (tmp_path / "none/compiled").exists()
    assert main([*run, "--out", str(tmp_path / "run"), "compile_cache=true", "steps=4"]) == 0
    kept = list((tmp_path / "run").glob("compiled/cpu-*/*one_step*-cache"))
    first = records(tmp_path / "run")
    (tmp_path / "run/checkpoints/4").rename(tmp_path / "4")
    jax.clear_caches()
    written = [path.stat().st_mtime_ns for path in kept]
    assert main(["train", "--resume", "--out", str(tmp_path / "run")]) == 0
    assert jax.config.values["jax_compilation_cache_dir"] is None
    assert len(kept) == 1 and [path.stat().st_mtime_ns for path in kept] == written
    again = records(tmp_path / "run")
    assert [line["loss"] for line in again] == [line["loss"] for line in first]
    told = [line["step"] for line in again if "startup_seconds" in line]
    assert told == [1, 3]  # the first step of each start
    phases = ("import", "prepare", "join", "data", "restore", "compile", "first_step")
    assert {f"startup_{phase}_seconds" for phase in phases} <= again[2].keys()
    assert "started in " in capsys.readouterr().out
