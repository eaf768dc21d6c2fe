"""metrics.jsonl, whatever is killed."""

import os

import pytest

from meshdsl import MeshDSLError
from meshdsl.train.config import Log
from meshdsl.train.watch.metrics_file import MetricsFile, keep_until, read_metrics
from tests.train.common import records
from tests.train.watch.runs import measured, run, watch


def test_a_resumed_file_has_one_record_per_step(tmp_path):
    run(tmp_path, 1, 4)
    path = tmp_path / "metrics.jsonl"
    before = path.read_text().splitlines()
    path.write_text("\n".join(before) + '\n{"step": 5, "lo')  # killed while it wrote
    run(tmp_path, 3, 3)
    assert [record["step"] for record in records(tmp_path)] == [1, 2, 3]
    assert path.read_text().splitlines()[:2] == before[:2]


def test_what_is_damaged_is_dropped(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(
        b'{"step": 1, "loss": 2.0}\n\0\0\0\0\n[]\n{"step": 2, "loss": 1.0}\n'
        b'{"step": 3, "lo{"step": 3}\n'
    )
    assert [record["step"] for record in read_metrics(path)] == [1, 2]
    keep_until(path, 1)
    assert path.read_bytes() == b'{"step": 1, "loss": 2.0}\n'


def test_a_kill_while_a_file_is_cut_loses_nothing(tmp_path, monkeypatch):
    run(tmp_path, 1, 4)
    before = (tmp_path / "metrics.jsonl").read_bytes()

    def killed(descriptor):
        raise SystemExit

    monkeypatch.setattr(os, "fsync", killed)
    with pytest.raises(SystemExit):
        MetricsFile(tmp_path / "metrics.jsonl", 2)
    assert (tmp_path / "metrics.jsonl").read_bytes() == before


def full(file):
    """The disk is full from now on."""
    file._file.close()
    file._file = open("/dev/full", "a", buffering=1)


def test_a_full_disk_is_one_error_that_says_how_to_go_on(tmp_path):
    pytest.importorskip("tensorboardX")
    with pytest.raises(MeshDSLError) as error, watch(tmp_path, log=Log(tensorboard=True)) as seen:
        seen.step(1, measured(1))
        full(seen._outputs[0])
        seen.step(2, measured(2))
        seen.step(3, measured(3))
    path = tmp_path / "metrics.jsonl"
    assert str(error.value) == (
        f"{path}: cannot be written: No space left on device; the newest checkpoint is "
        "whole; free some and go on by --resume"
    )


def test_a_folder_that_cannot_be_written_any_more_is_an_error(tmp_path):
    file = MetricsFile(tmp_path / "metrics.jsonl", 0)
    (tmp_path / "metrics.jsonl.part").mkdir()
    said = (
        r"jsonl.part: cannot be written: Is a directory; the newest checkpoint is whole; mend that"
    )
    with pytest.raises(MeshDSLError, match=said):
        file.rewind(0)


def test_outputs_that_cannot_be_opened_are_an_error(tmp_path):
    pytest.importorskip("tensorboardX")
    (tmp_path / "tensorboard").write_text("")
    said = r"/tensorboard/.*: cannot be written: Not a directory; the newest checkpoint is whole; m"
    with pytest.raises(MeshDSLError, match=said):
        watch(tmp_path, log=Log(tensorboard=True))


def test_losses_that_are_not_finite_are_records(tmp_path):
    with (tmp_path / "metrics.jsonl").open("w") as file:
        file.write('{"step": 1, "loss": NaN}\n{"step": 2, "loss": Infinity}\n')
    assert [str(record["loss"]) for record in read_metrics(tmp_path / "metrics.jsonl")] == [
        "nan",
        "inf",
    ]
