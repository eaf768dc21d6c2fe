"""A run's folder is never taken from another run."""

import pytest

from meshdsl.errors import MeshDSLError
from meshdsl.layout import Layout
from meshdsl.train.config import Config
from meshdsl.train.folder import RunFolder
from meshdsl.train.settings import override


def test_a_folder_that_a_run_has_is_refused_to_another(tmp_path):
    folder = RunFolder(tmp_path / "runs" / "a")
    folder.refuse_used()
    folder.write_config(Config(steps=7))
    assert folder.stored_config() == Config(steps=7)
    with pytest.raises(
        MeshDSLError, match="holds a run; go on with it by --resume, or choose another folder"
    ):
        folder.refuse_used()


def test_a_run_that_was_killed_before_it_was_told_of_can_begin_again(tmp_path):
    """Programs of the first state are compiled, and kept, before the configuration is written."""
    folder = RunFolder(tmp_path)
    folder.compiled.mkdir()
    folder.certificate().write_text("")
    with folder.locked():
        folder.refuse_used()


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda path: path.write_text("x"), "is a file"),
        (lambda path: (path / "other").mkdir(parents=True), "is not empty"),
    ],
)
def test_a_path_that_cannot_be_a_new_run_is_refused_with(tmp_path, make, text):
    make(tmp_path / "a")
    with pytest.raises(MeshDSLError, match=text):
        RunFolder(tmp_path / "a").refuse_used()


@pytest.mark.parametrize(
    "use",
    [lambda folder: folder.write_config(Config()), lambda folder: folder.locked().__enter__()],
    ids=["written to", "locked"],
)
def test_a_folder_below_a_file_is_one_error(tmp_path, use):
    (tmp_path / "file").write_text("x")
    with pytest.raises(MeshDSLError, match="Not a directory"):
        use(RunFolder(tmp_path / "file" / "a"))


def test_there_is_nothing_to_resume_in_an_empty_folder(tmp_path):
    with pytest.raises(MeshDSLError, match="there is no run in"):
        RunFolder(tmp_path).stored_config()


def test_unused_folders_are_distinct(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    layout = Layout.load("fsdp")
    first = RunFolder.unused(layout)
    first.write_config(Config())
    second = RunFolder.unused(layout)
    assert first.path.name.endswith("-fsdp") and second.path != first.path


def test_a_folder_has_one_run_at_a_time(tmp_path):
    folder = RunFolder(tmp_path / "a")
    with (
        folder.locked(),
        pytest.raises(MeshDSLError, match="another process is running this run"),
        folder.locked(),
    ):
        pass
    with folder.locked():
        folder.refuse_used()


def test_the_paths_of_a_kept_configuration_hold_from_any_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folder = RunFolder(tmp_path / "a")
    settings = ["data.sources.web.paths=web,s3://bucket/x", "data.tokenizer=t.json"]
    settings += ["data.sources.a.dataset=mine.py:rows", "data.sources.b.dataset=package.mine:rows"]
    folder.write_config(override(Config(), settings))
    kept = folder.stored_config().data
    assert kept.sources["web"].paths == (str(tmp_path / "web"), "s3://bucket/x")
    assert kept.sources["a"].dataset == f"{tmp_path / 'mine.py'}:rows"
    assert kept.sources["b"].dataset == "package.mine:rows"
    assert kept.tokenizer == str(tmp_path / "t.json")
    folder.write_config(Config())
    assert folder.stored_config() == Config()
