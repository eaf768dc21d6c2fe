"""The versions of what computes are told, kept with a run, and compared where it goes on."""

import json

from meshdsl.train.folder import RunFolder
from meshdsl.versions import changes, versions


def test_a_run_that_goes_on_with_others_says_which(tmp_path):
    folder, now = RunFolder(tmp_path), versions()
    assert folder.note_versions() == [] and folder.note_versions() == []
    assert json.loads((tmp_path / "versions.json").read_text()) == now
    before = {**now, "jax": "0.1", "older": "2"}
    (tmp_path / "versions.json").write_text(json.dumps(before))
    assert folder.note_versions() == [f"jax 0.1 -> {now['jax']}", "older 2 -> none"]
    (tmp_path / "versions.json").write_text("[")
    assert folder.note_versions() == []
    assert changes({}, {"a": "1"}) == ["a none -> 1"]
