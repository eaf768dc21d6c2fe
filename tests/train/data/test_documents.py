"""Which files are read, in which order, and the documents in them."""

import os

import pyarrow
import pytest
from pyarrow import parquet

from meshdsl.errors import MeshDSLError
from meshdsl.train.data import documents as reading
from meshdsl.train.data.files import find_files, library_folder
from tests.train.data.common import write_bytes, write_table

TEXTS = ["one", "zwei: ü", "日本", "a\nb"]


def texts_of(path, field="text", **how):
    return [
        b"".join(document).decode()
        for file in find_files([str(path)], **how)
        for document in reading.documents(file, field)
    ]


def test_the_default_text_is_the_standard_library():
    files = find_files([library_folder()], suffix=".py")
    assert {"argparse.py", "dataclasses.py"} <= {file.path.name for file in files}
    parts = [file.path.parts for file in files]
    assert all("site-packages" not in each and each[-1].endswith(".py") for each in parts)
    assert 20e6 < sum(file.size for file in files) < 60e6


def test_folders_give_their_files_in_order_but_for_hidden_ones(tmp_path):
    for name in ("b/2.txt", "b/1.txt", "a.txt", "b.txt", ".hidden", ".git/x", "__pycache__/x.pyc"):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(name)
    os.symlink(tmp_path / "a.txt", tmp_path / "c.txt")
    found = find_files([str(tmp_path), str(tmp_path / "a.txt")])
    names = [str(file.path.relative_to(tmp_path)) for file in found]
    assert names == ["a.txt", "b/1.txt", "b/2.txt", "b.txt"], "none twice"


def test_endings_say_the_format_unless_it_is_given(tmp_path):
    formats = {
        "a.txt": "text",
        "b.jsonl": "jsonl",
        "c.ndjson": "jsonl",
        "d.parquet": "parquet",
        "e.bin": "tokens",
        "f": "text",
    }
    for name in formats:
        (tmp_path / name).write_text("x")
    assert {file.path.name: file.format for file in find_files([str(tmp_path)])} == formats
    lines = find_files([str(tmp_path)], "jsonl")
    assert [file.path.name for file in lines] == ["b.jsonl", "c.ndjson"]
    assert [file.format for file in find_files([str(tmp_path / "a.txt")], "jsonl")] == ["jsonl"]


def test_jsonl_gives_a_field_of_each_line(tmp_path):
    path = write_table(tmp_path / "a.jsonl", body=[*TEXTS, ""], text=["not this"] * 5)
    path.write_text(path.read_text().replace("\n", "\n\n", 2))
    assert texts_of(tmp_path, "body") == TEXTS


@pytest.mark.parametrize("kind", ["string", "large_string", "dictionary"])
def test_parquet_gives_a_column_over_all_row_groups(tmp_path, kind):
    types = {
        "string": pyarrow.string(),
        "large_string": pyarrow.large_string(),
        "dictionary": pyarrow.dictionary(pyarrow.int32(), pyarrow.string()),
    }
    column = pyarrow.array(TEXTS, pyarrow.string()).cast(types[kind])
    table = pyarrow.table({"n": [1, 2, 3, 4], "body": column})
    parquet.write_table(table, tmp_path / "a.parquet", row_group_size=2)
    assert texts_of(tmp_path, "body") == TEXTS


@pytest.mark.parametrize("make", [pyarrow.ipc.new_stream, pyarrow.ipc.new_file])
def test_arrow_is_read_as_datasets_write_it(tmp_path, make):
    path = tmp_path / "data-00000-of-00001.arrow"
    table = pyarrow.table({"text": TEXTS, "number": [1, 2, 3, 4]})
    with make(str(path), table.schema) as out:
        out.write_table(table, max_chunksize=2)
    for name in ("state.json", "dataset_info.json"):
        (tmp_path / name).write_text("{}")
    assert texts_of(tmp_path) == TEXTS
    assert texts_of(path.rename(tmp_path / "other"), format="arrow") == TEXTS
    for field, said in {"txt": "no column `txt`; did", "number": "row 1: `number` is 1"}.items():
        with pytest.raises(MeshDSLError, match=said):
            texts_of(tmp_path / "other", field, format="arrow")


def test_a_long_text_comes_in_blocks_that_end_with_lines(tmp_path, monkeypatch):
    monkeypatch.setattr(reading, "BLOCK", 64)
    text = "".join(f"line {i} of the text\n" for i in range(50)) + "x" * 200 + " the end"
    (file,) = find_files([str(write_bytes(tmp_path / "a.txt", text.encode()))])
    (document,) = reading.documents(file, "text")
    blocks = list(document)
    assert b"".join(blocks).decode() == text and list(document) == blocks
    assert len(blocks) > 10 and all(block.endswith(b"\n") for block in blocks[:10])


@pytest.mark.parametrize("text", ["日本" * 200, "é" * 200, "x🐈" * 100, "x" * 500])
def test_a_long_text_without_lines_or_words_is_not_cut_inside_a_character(
    tmp_path, monkeypatch, text
):
    (file,) = find_files([str(write_bytes(tmp_path / "a.txt", text.encode()))])
    for block in range(64, 68):
        monkeypatch.setattr(reading, "BLOCK", block)
        (document,) = reading.documents(file, "text")
        assert "".join(each.decode() for each in document) == text


def test_bytes_that_are_no_text_come_whole(tmp_path, monkeypatch):
    monkeypatch.setattr(reading, "BLOCK", 64)
    for content in (b"\x80" * 129, b"\xff" * 200, b"x" * 64 + b"\x80"):
        (file,) = find_files([str(write_bytes(tmp_path / "a.txt", content))])
        (document,) = reading.documents(file, "text")
        assert b"".join(document) == content
