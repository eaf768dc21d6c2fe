"""`meshdsl checkpoint`: what its parts print, and that they leave checkpoints as they are."""

import errno
import os
import re
import shutil
from pathlib import Path

import jax
import pytest
import safetensors

from meshdsl.models.transformer import Transformer
from meshdsl.train.checkpoints import folders, transfer
from meshdsl.train.config import Config
from meshdsl.train.settings import override, to_toml
from meshdsl_cli import main
from tests.train.checkpoints.states import saved
from tests.train.common import TINY, contents


@pytest.fixture(scope="module")
def original(tmp_path_factory):
    """A run of a tiny transformer with checkpoints of two steps, and its configuration."""
    config, folder = override(Config(), TINY), tmp_path_factory.mktemp("original")
    state = {"params": jax.jit(lambda: Transformer.init(jax.random.key(0), config.model))()}
    saved(folder, {3: state, 6: state})
    (folder / "config.toml").write_text(to_toml(config))
    return folder


@pytest.fixture
def run(original, tmp_path):
    return Path(shutil.copytree(original, tmp_path / "run"))


@pytest.fixture
def said(capsys):
    """Runs `meshdsl checkpoint` and returns its exit code and the lines that it prints."""

    def ask(*words):
        code = main(["checkpoint", *map(str, words)])
        printed = capsys.readouterr()
        return code, (printed.out + printed.err).splitlines()

    return ask


def damage(path):
    path.write_bytes(bytes(byte ^ 1 for byte in path.read_bytes()))


def largest(run, step):
    return max((run / "checkpoints" / step / "d").iterdir(), key=lambda path: path.stat().st_size)


def test_ls_says_which_are_whole_without_reading_arrays(run, said):
    damage(run / "checkpoints" / "3" / "_METADATA")
    damage(largest(run, "6"))
    code, lines = said("ls", run)
    assert code == 0
    assert lines[0].split() == ["step", "size", "written", "whole"]
    assert re.fullmatch(
        r" +3  [\d.]+ KiB  20\d\d-\d\d-\d\d \d\d:\d\d:\d\d  no: _METADATA is not what was written",
        lines[1],
    )
    assert lines[2].endswith("  yes")


def test_verify_reads_all_and_its_exit_code_says_so(run, said):
    assert said("verify", run) == (0, ["step 3: good", "step 6: good"])
    damage(largest(run, "6"))
    before = contents(run)
    code, lines = said("verify", run)
    assert code == 1
    assert lines[0] == "step 3: good"
    assert lines[1].startswith("step 6: damaged: `params.")
    assert contents(run) == before


def test_prune_removes_what_was_set_aside_and_says_how_large_it_was(run, said):
    folders.set_aside(run / "checkpoints", [6])
    code, lines = said("ls", run)
    line = re.fullmatch(r"6\.damaged: ([\d.]+ KiB), was damaged, and set aside .*", lines[-1])
    assert code == 0 and line, lines
    assert said("prune", run) == (0, [f"removed 6.damaged, {line[1]}"])
    assert said("prune", run) == (0, [])
    assert [path.name for path in (run / "checkpoints").iterdir()] == ["3"]


def test_show_lists_arrays_with_dims_dtype_and_size(run, said):
    code, lines = said("show", run, "--step", 3)
    assert code == 0
    assert lines[0].startswith(f"step 3 of {run}, written 20")
    assert "params.blocks.layer.mlp.up.weight [layers=1, d_model=16, d_ff=16] float32 1.0 KiB" in [
        " ".join(line.split()) for line in lines
    ]


def test_export_and_import_give_a_run_to_begin_with(run, said, tmp_path):
    assert said("export", run, "--out", tmp_path / "x.safetensors") == (
        0,
        [f"wrote {tmp_path}/x.safetensors"],
    )
    with safetensors.safe_open(tmp_path / "x.safetensors", framework="np") as file:
        assert "blocks.layer.mlp.up.weight" in list(file.keys())
        assert file.metadata()["config"] == (run / "config.toml").read_text()
    for like in (run, run / "config.toml"):
        out = tmp_path / f"from-{like.name}"
        wrote = [f"wrote {out}; a run begins with it by warm_start={out}"]
        assert said("import", tmp_path / "x.safetensors", "--like", like, "--out", out) == (
            0,
            wrote,
        )
        assert (out / "config.toml").read_text() == (run / "config.toml").read_text()
        assert said("verify", out) == (0, ["step 0: good"])
    assert said("ls", out)[1][1].endswith("  yes, parameters only")


def test_the_folder_of_the_checkpoints_stands_for_the_run(run, said, tmp_path, monkeypatch):
    monkeypatch.chdir(run / "checkpoints")
    for name, folder in (("a", run / "checkpoints"), ("b", Path())):
        assert said("verify", folder) == (0, ["step 3: good", "step 6: good"])
        assert said("export", folder, "--out", tmp_path / f"{name}.safetensors")[0] == 0
        taken = ("import", tmp_path / f"{name}.safetensors", "--like", folder)
        assert said(*taken, "--out", tmp_path / name)[0] == 0


def test_what_cannot_be_written_is_one_line_and_nothing_is_left(run, said, tmp_path, monkeypatch):
    tensors, file, out = tmp_path / "x.safetensors", tmp_path / "file", tmp_path / "new" / "run"
    said("export", run, "--out", tensors)
    file.write_text("")
    before = sorted(tmp_path.iterdir())

    def refused(line, *words, owner=None, name="", fault=None):
        """The one line of a command, where a function of the system may fail."""
        with monkeypatch.context() as patch:
            if owner is not None:
                patch.setattr(owner, name, fault or full)
            assert said(*words) == (2, [f"meshdsl checkpoint: {line}"])
        assert sorted(tmp_path.iterdir()) == before

    def full(*args, **how):
        raise OSError(errno.ENOSPC, "No space left on device")

    def full_for_tensorstore(*args):
        raise ValueError("RESOURCE_EXHAUSTED: No space left on device [source locations='x']")

    take, give = ("import", tensors, "--like", run, "--out"), ("export", run, "--out")
    refused(f"--out {file}/run: Not a directory", *take, file / "run")
    refused(f"{file}/y.safetensors: Not a directory", *give, file / "y.safetensors")
    said_by_it = f"{out}/checkpoints cannot be written: RESOURCE_EXHAUSTED: No space left on device"
    refused(said_by_it, *take, out, owner=transfer, name="_copy", fault=full_for_tensorstore)
    # The configuration, when all else is there.
    refused(f"--out {out}: No space left on device", *take, out, owner=Path, name="write_text")
    y = tmp_path / "y.safetensors"
    refused(f"{y}: No space left on device", *give, y, owner=os, name="posix_fallocate")


def test_a_large_export_is_several_files(run, said, tmp_path):
    code, lines = said(
        "export", run, "--step", 3, "--out", tmp_path / "x.safetensors", "--limit", "2e-5"
    )
    assert code == 0
    assert lines[-1] == f"wrote {tmp_path}/x.safetensors.index.json"
    assert len(lines) > 2


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ("ls none", "none: there are no checkpoints"),
        ("show run --step 4", "--step 4: there is no such checkpoint; there are those of steps 3"),
        ("export run --out x.bin", "--out x.bin: expected a name that ends with .safetensors"),
        ("export run --out no/x.safetensors", "no/x.safetensors: No such file or directory"),
        ("export run --out x.safetensors --limit 0", "--limit 0: must be more than 0"),
        ("import none --like run --out new", "none: not safetensors: No such file or directory"),
        ("import run --like none.toml --out new", "none.toml: No such file or directory"),
        ("import run --like run --out run", "run: has 0 safetensors files; name one"),
        ("ls run steps=3", "`steps=3`: `checkpoint` has no settings"),
    ],
)
def test_one_line_for_what_cannot_be(run, said, monkeypatch, words, text):
    monkeypatch.chdir(run.parent)
    before = contents(run.parent)
    code, lines = said(*words.split())
    assert (code, len(lines)) == (2, 1)
    assert lines[0].startswith(f"meshdsl checkpoint: {text}")
    assert contents(run.parent) == before


def test_an_import_never_touches_a_run(run, said, tmp_path):
    said("export", run, "--out", tmp_path / "x.safetensors")
    before = contents(run)
    code, lines = said("import", tmp_path / "x.safetensors", "--like", run, "--out", run)
    assert (code, lines) == (
        2,
        [
            f"meshdsl checkpoint: --out {run}: holds a run; go on with it by --resume, or choose "
            "another folder"
        ],
    )
    assert contents(run) == before
