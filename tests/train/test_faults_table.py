"""Each fault is one line on stderr and exit code 2, and costs nothing of the run that meets it."""

import re
import shutil
from contextlib import chdir
from pathlib import Path

import numpy as np
import pytest

import meshdsl_cli as cli
from meshdsl.train.folder import RunFolder
from tests.train.common import SHORT, contents

FSDP = [*SHORT, "--layout", "fsdp", "--devices", "2", "checkpoint.every=1"]
AGAIN = ["--out", "run", "--resume", "--steps", "3"]
NEW = ["--out", "other", "--data", "text.txt", "--steps", "2", *FSDP]


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A folder with a run of two steps, both saved, and the text that it was trained on."""
    folder = tmp_path_factory.mktemp("faults")
    (folder / "text.txt").write_bytes(
        bytes(np.random.default_rng(0).integers(97, 123, 9000, np.uint8))
    )
    with chdir(folder):
        assert cli.main(["train", "--out", "run", "--data", "text.txt", "--steps", "2", *FSDP]) == 0
    return folder


def every(change, pattern):
    """A fault of the file `pattern` (the largest of several) in both checkpoints."""

    def fault():
        for step in "12":
            path = max(
                Path("run/checkpoints", step).glob(pattern), key=lambda path: path.stat().st_size
            )
            path.unlink() if change is None else path.write_bytes(change(path.read_bytes()))

    return fault


def short(data):
    return data[: len(data) // 2]


def flip(data):
    """One bit of each byte in the middle half; in array data some of it is sure to be read."""
    quarter = len(data) // 4
    return data[:quarter] + bytes(byte ^ 1 for byte in data[quarter:-quarter]) + data[-quarter:]


def holding(name, data):
    """A fault that is a file."""
    return lambda: Path(name).write_bytes(data)


def change(name, old, new):
    Path(name).write_text(Path(name).read_text().replace(old, new))


def nothing():
    pass


# Of every kind of file and damage: tests/train/checkpoints/test_damage.py.
CHECKPOINTS = {
    "truncated meshdsl.json": (
        *(every(short, "meshdsl.json"), AGAIN),
        "meshdsl.json is not what was written",
    ),
    "flipped d/*": (every(flip, "d/*"), AGAIN, "`"),
    "missing _METADATA": (every(None, "_METADATA"), AGAIN, "_METADATA is missing"),
}
OTHER = "holds a checkpoint of another model or optimizer: "
FAULTS = {
    "the configuration is no TOML": (
        *(holding("run/config.toml", b"steps = "), AGAIN),
        "run/config.toml: not TOML",
    ),
    "the configuration has an unknown key": (
        *(holding("run/config.toml", b"stepps = 1"), AGAIN),
        "did you mean `steps`",
    ),
    "another optimizer": (nothing, [*AGAIN, "optimizer.name=lion"], f"{OTHER}`opt_state"),
    "its own data is gone": (
        lambda: change("run/config.toml", "text.txt", "gone.txt"),
        *(AGAIN, "gone.txt`"),
    ),
    "other data": (
        holding("x.txt", bytes(range(97, 123)) * 200),
        *([*AGAIN, "--data", "x.txt"], "this run began with other data"),
    ),
    "a read-only place": (nothing, [*NEW, "--out", "/proc/run"], "/proc/run: cannot be written"),
    "a warm start from another model": (
        *(nothing, [*NEW, "--warm-start", "run", "model.d_model=32", "model.vocab=300"]),
        "warm_start=run: none of its 12 parameters is one of this model's",
    ),
}


@pytest.mark.parametrize("name", [*CHECKPOINTS, *FAULTS])
def test_one_error_and_nothing_lost(name, trained, tmp_path, capsys):
    shutil.copytree(trained, tmp_path / "copy")
    fault, words, text = (CHECKPOINTS | FAULTS)[name]
    with chdir(tmp_path / "copy"):
        fault()
        refused(words, capsys, text)


def refused(words, capsys, *texts):
    """The command says `texts` in one line, and changes nothing of the run."""
    before = contents(Path("run"))
    assert cli.main(["train", *words]) == 2
    said = capsys.readouterr().err.splitlines()
    assert len(said) == 1
    assert said[0].startswith("meshdsl train: ")
    for text in texts:
        assert text in said[0]
    assert contents(Path("run")) == before
    assert not Path("other/config.toml").exists()


def test_two_runs_in_one_folder(trained, capsys):
    with chdir(trained), RunFolder(Path("run")).locked():
        refused(
            AGAIN,
            capsys,
            "--out run: another process is running this run; wait for it, or choose another folder",
        )


def test_a_full_disk_is_met_before_the_first_step(trained, capsys, monkeypatch):
    usage = shutil.disk_usage(".")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=1000))
    with chdir(trained):
        refused(AGAIN, capsys, "free")


def test_a_damaged_checkpoint_is_named_and_the_one_before_is_used(trained, tmp_path, capsys):
    shutil.copytree(trained, tmp_path / "copy")
    with chdir(tmp_path / "copy"):
        Path("run/checkpoints/2/manifest.ocdbt").unlink()
        assert cli.main(["train", *AGAIN]) == 0
        out = capsys.readouterr().out
        assert "the checkpoint of step 2 is damaged: manifest.ocdbt is missing; using step 1" in out
        assert "resumed after step 1" in out
        assert cli.main(["checkpoint", "ls", "run"]) == 0
        aside = r"2\.damaged: [\d.]+ KiB, was damaged, and set aside when the run went on"
        assert re.search(aside, capsys.readouterr().out)
        assert cli.main(["checkpoint", "verify", "run"]) == 0
        assert capsys.readouterr().out.splitlines() == ["step 2: good", "step 3: good"]
