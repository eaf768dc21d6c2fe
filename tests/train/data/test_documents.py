"""The documents of each format."""

import json

import pyarrow
import pytest
from pyarrow import parquet

from meshdsl.train.data import documents as reading
from meshdsl.train.data.files import find_files

TEXTS = ["one", "zwei: ü", "日本", "a\nb"]


def texts_of(path, field="text", **how):
    return [
        b"".join(document).decode()
        for file in find_files([str(path)], **how)
        for document in reading.documents(file, field)
    ]


def test_jsonl_gives_a_field_of_each_line(tmp_path):
    lines = [json.dumps({"body": text, "text": "not this"}) for text in [*TEXTS, ""]]
    (tmp_path / "a.jsonl").write_text("\n".join([*lines[:2], "", *lines[2:]]))
    assert texts_of(tmp_path, "body") == TEXTS


@pytest.mark.parametrize("kind", ["string", "large_string", "dictionary"])
def test_parquet_gives_a_column_over_all_row_groups(tmp_path, kind):
    types = {
        "string": pyarrow.string(),
        "large_string": pyarrow.large_string(),
        "dictionary": pyarrow.dictionary(pyarrow.int32(), pyarrow.string()),
    }
    column = pyarrow.array(TEXTS, pyarrow.string()).cast(types[kind])
    parquet.write_table(
        pyarrow.table({"n": [1, 2, 3, 4], "body": column}), tmp_path / "a.parquet", row_group_size=2
    )
    assert texts_of(tmp_path, "body") == TEXTS


def test_a_long_text_comes_in_blocks_that_end_with_lines(tmp_path, monkeypatch):
    monkeypatch.setattr(reading, "BLOCK", 64)
    text = "".join(f"line {i} of the text\n" for i in range(50)) + "x" * 200 + " the end"
    (tmp_path / "a.txt").write_text(text)
    (file,) = find_files([str(tmp_path)])
    (document,) = reading.documents(file, "text")
    blocks = list(document)
    assert b"".join(blocks).decode() == text and list(document) == blocks
    assert len(blocks) > 10 and all(block.endswith(b"\n") for block in blocks[:10])


@pytest.mark.parametrize("text", ["日本" * 200, "é" * 200, "x🐈" * 100, "x" * 500])
def test_a_long_text_without_lines_or_words_is_not_cut_inside_a_character(
    tmp_path, monkeypatch, text
):
    (tmp_path / "a.txt").write_text(text, encoding="utf-8")
    (file,) = find_files([str(tmp_path)])
    for block in range(64, 68):
        monkeypatch.setattr(reading, "BLOCK", block)
        (document,) = reading.documents(file, "text")
        assert "".join(each.decode() for each in document) == text


def test_bytes_that_are_no_text_come_whole(tmp_path, monkeypatch):
    monkeypatch.setattr(reading, "BLOCK", 64)
    for content in (b"\x80" * 129, b"\xff" * 200, b"x" * 64 + b"\x80"):
        (tmp_path / "a.txt").write_bytes(content)
        (file,) = find_files([str(tmp_path)])
        (document,) = reading.documents(file, "text")
        assert b"".join(document) == content
