"""Which files are read, in which order, and as what."""

import os

from meshdsl.train.data.files import find_files, library_folder


def test_the_default_text_is_the_standard_library():
    files = find_files([library_folder()], suffix=".py")
    assert {"argparse.py", "dataclasses.py"} <= {file.path.name for file in files}
    assert all(
        file.path.suffix == ".py" and "site-packages" not in file.path.parts for file in files
    )
    assert 20e6 < sum(file.size for file in files) < 60e6


def test_folders_give_their_files_in_order_but_for_hidden_ones(tmp_path):
    for name in ("b/2.txt", "b/1.txt", "a.txt", "b.txt", ".hidden", ".git/x", "__pycache__/x.pyc"):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(name)
    found = [str(file.path.relative_to(tmp_path)) for file in find_files([str(tmp_path)])]
    assert found == ["a.txt", "b/1.txt", "b/2.txt", "b.txt"]


def test_a_file_that_is_named_twice_or_linked_to_is_read_once(tmp_path):
    (tmp_path / "a.txt").write_text("a")
    os.symlink(tmp_path / "a.txt", tmp_path / "b.txt")
    assert len(find_files([str(tmp_path), str(tmp_path / "a.txt")])) == 1


def test_endings_say_the_format_unless_it_is_given(tmp_path):
    for name in ("a.txt", "b.jsonl", "c.ndjson", "d.parquet", "e.bin", "f"):
        (tmp_path / name).write_text("x")
    assert [file.format for file in find_files([str(tmp_path)])] == [
        "text",
        "jsonl",
        "jsonl",
        "parquet",
        "tokens",
        "text",
    ]
    assert [file.path.name for file in find_files([str(tmp_path)], "jsonl")] == [
        "b.jsonl",
        "c.ndjson",
    ]
    assert [file.format for file in find_files([str(tmp_path / "a.txt")], "jsonl")] == ["jsonl"]
