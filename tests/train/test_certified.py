"""The setting `proof`: what a run says of its step, and when it does not begin."""

from threading import Event

import pytest

import meshdsl as md
from meshdsl.train import certified as module
from meshdsl.train.certified import certified
from meshdsl_cli import main
from tests.train.common import SHORT, tiny_job

PROVED = "proved: all 44 results equal those of one device, up to the order of sums"


def said(job, path):
    lines = []
    program = job.program()
    with certified(job, lambda: program, path, lines.append):
        pass
    return lines


def test_what_is_proved_is_said_once_and_kept(tmp_path, monkeypatch):
    job, path = tiny_job("fsdp"), tmp_path / "proof.json"
    assert said(job, path) == [PROVED]
    with monkeypatch.context() as patch:
        patch.setattr(module, "verified", None)  # it is not looked for again
        assert said(job, path) == [PROVED]
        (line,) = said(tiny_job("fsdp", "optimizer.clip=2"), path)
        assert line.startswith("the step was not compared with that of one device: TypeError")


def test_a_run_that_requires_a_proof_does_not_begin_without(tmp_path, monkeypatch):
    doubt = module.Verified("the step", ("loss",), ("loss",), "there is no lemma for `f`")
    monkeypatch.setattr(module, "verified", lambda *_, **how: doubt)
    job = tiny_job("fsdp", "proof=require")
    with pytest.raises(md.MeshDSLError, match="proof=require: the step\nnot proved: its result"):
        said(job, tmp_path / "proof.json")


def test_a_run_does_not_wait_long_at_its_end(tmp_path, monkeypatch):
    ended = Event()
    monkeypatch.setattr(module, "verified", lambda *_, **how: ended.wait(60))
    monkeypatch.setattr(module, "_PATIENCE", 0.01)
    assert said(tiny_job("fsdp"), tmp_path / "proof.json") == []
    ended.set()


@pytest.mark.parametrize(("layout", "setting"), [("fsdp", "off"), ("single", "tell")])
def test_where_nothing_is_compared(layout, setting, tmp_path):
    assert said(tiny_job(layout, f"proof={setting}"), tmp_path / "proof.json") == []


@pytest.mark.slow
def test_a_run_keeps_its_certificate(tmp_path, capsys):
    run = ["train", "--layout", "fsdp", "--out", str(tmp_path / "run"), *SHORT, "proof=require"]
    assert main([*run, "--steps", "1"]) == 0
    assert PROVED in capsys.readouterr().out
    words = ["verify", "--layout", "fsdp", "--devices", "8", *SHORT, "steps=1"]
    assert main([*words, "--certificate", str(tmp_path / "run/proof.json")]) == 0
    assert "proof.json holds" in capsys.readouterr().out
