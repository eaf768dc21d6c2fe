"""Certificates: what a file says was proved, and whether it still holds."""

import json

import pytest

import meshdsl as md
from meshdsl.proof.certificate import Certificate
from meshdsl.proof.verified import Verified

MADE = {"batch": "32", "mesh data": "4", "platform": "cpu"}
PROOF = Verified("the step", ("loss", "w"), lemmas={"mul": 2}, assumed=("a kernel",))


def test_a_certificate_holds_as_long_as_nothing_changes(tmp_path):
    Certificate.of(MADE, PROOF).write(tmp_path / "proof.json")
    found = Certificate.read(tmp_path / "proof.json")
    assert found.proof == PROOF and found.proof.proved
    assert found.changes(MADE) == []
    assert found.changes({**MADE, "mesh data": "8"}) == ["mesh data 4 -> 8"]


def test_what_is_not_proved_is_kept_too(tmp_path):
    doubt = Verified("the step", ("loss", "w"), ("w",), "there is no lemma", "`mul`", ("a.py:3",))
    Certificate.of(MADE, doubt).write(tmp_path / "proof.json")
    found = Certificate.read(tmp_path / "proof.json").proof
    assert found == doubt and not found.proved


def test_other_code_and_versions_end_it(tmp_path, monkeypatch):
    model, path = tmp_path / "model.py", tmp_path / "proof.json"
    model.write_text("first")
    proof = Verified("the step", ("loss",), files=(str(model),))
    Certificate.of(MADE, proof).write(path)
    assert Certificate.read(path).changes(MADE) == []
    model.write_text("second")
    assert Certificate.read(path).changes(MADE) == [f"the code of {model}"]
    written = json.loads(path.read_text())
    written["code"]["meshdsl"], written["versions"]["jax"] = "other", "0.1"
    path.write_text(json.dumps(written))
    changes = Certificate.read(path).changes(MADE)
    assert any(change.startswith("jax 0.1 -> ") for change in changes)
    assert "the code of meshdsl" in changes


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"format": "meshdsl certificate 1"}'])
def test_another_file_is_no_certificate(tmp_path, text):
    (tmp_path / "proof.json").write_text(text)
    with pytest.raises(md.MeshDSLError, match="proof.json: is no certificate"):
        Certificate.read(tmp_path / "proof.json")


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(md.MeshDSLError, match="none.json: No such file"):
        Certificate.read(tmp_path / "none.json")
