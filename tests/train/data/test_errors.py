"""Data that cannot be read or does not fit gets one clear sentence, before anything is done."""

import json
import os
import sys

import numpy as np
import pyarrow
import pytest
from pyarrow import parquet

from meshdsl.errors import MeshDSLError
from meshdsl.train.data import open_data
from tests.train.data.common import (
    config,
    reads,
    take,
    write_jsonl,
    write_texts,
    write_tokens,
)


def jsonl(line, field="text"):
    """Files whose second line is `line`."""

    def write(folder):
        good = json.dumps({field: "good"}).encode()
        (folder / "a.jsonl").write_bytes(good + b"\n" + line + b"\n" + good + b"\n")
        return folder / "a.jsonl"

    return write


def table(**columns):
    def write(folder):
        parquet.write_table(pyarrow.table(columns), folder / "a.parquet")
        return folder / "a.parquet"

    return write


def content(name, data=b"x" * 99):
    def write(folder):
        (folder / name).write_bytes(data)
        return folder / name

    return write


def damaged_parquet(folder):
    path = table(text=["some text"] * 1000)(folder)
    whole = path.read_bytes()
    path.write_bytes(whole[:50] + bytes(100) + whole[150:])
    return path


def empty_folder(folder):
    (folder / "empty").mkdir()
    return folder / "empty"


def text_and_tokens(folder):
    write_tokens(folder / "a.bin", range(99))
    content("a.txt")(folder)
    return folder


FILES = {
    "missing": (lambda folder: folder / "no.txt", {}, "no file or folder `{path}`"),
    "empty": (content("a.txt", b""), {}, "nothing to read in `{path}`"),
    "empty tokens": (content("a.bin", b""), {}, "nothing to read in `{path}`"),
    "an empty folder": (empty_folder, {}, "nothing to read in `{path}`"),
    "lines without text": (
        content("a.jsonl", b'{"text": ""}\n' * 9),
        {},
        "nothing to read in `{path}`",
    ),
    "another ending": (
        content("a.jsonl.7z"),
        {},
        (
            "`{path}`: files that end in .7z cannot be read; unpack it or turn it into text, "
            "JSONL (.jsonl), parquet"
        ),
    ),
    "text and tokens": (text_and_tokens, {}, "token files and text in one dataset; make it two"),
    "little": (
        content("a.txt", b"x" * 30),
        {},
        (
            "data: 29 tokens of `a` for training are less than one batch=4 of length=8 (33 "
            "tokens); give more data, or set"
        ),
    ),
    "no JSON": (jsonl(b"{'text': 1}"), {}, "`{path}` line 2: not JSON: "),
    "half a line": (jsonl(b'{"text": "some'), {}, "`{path}` line 2: not JSON: "),
    "no object": (jsonl(b"[1, 2]"), {}, "`{path}` line 2: expected an object with a field `text`"),
    "no UTF-8": (jsonl(b'{"text": "\xff\xfe"}'), {}, "`{path}` line 2: not UTF-8: "),
    "no field": (
        jsonl(b'{"texts": "a", "id": 3}'),
        {},
        "`{path}` line 2: no field `text`; did you mean `texts`?",
    ),
    "a field of another name": (
        jsonl(b'{"body": "a"}'),
        {},
        "`{path}` line 2: no field `text`; known: `body`",
    ),
    "a number": (jsonl(b'{"text": 3}'), {}, "`{path}` line 2: `text` is 3, not text"),
    "null": (jsonl(b'{"text": null}'), {}, "`{path}` line 2: `text` is None, not text"),
    "no column": (table(texts=["a"]), {}, "`{path}`: no column `text`; did you mean `texts`?"),
    "a column of numbers": (
        table(text=[1]),
        {},
        "`{path}` row 1: `text` is 1, not text",
    ),
    "a column with gaps": (
        table(text=["a", None]),
        {},
        "`{path}` row 2: `text` is None, not text",
    ),
    "no parquet": (content("a.parquet"), {}, "`{path}`: not parquet, or damaged: "),
    "damaged parquet": (damaged_parquet, {}, "`{path}`"),
    "half a token": (
        content("a.bin"),
        {},
        "`{path}`: 99 bytes are no whole number of uint16 tokens of 2 bytes",
    ),
    "uint32 read as uint16": (
        content("a.bin", b"\x05\x00\x00\x00" * 400),
        {},
        "every other token of `{path}` is 0, as if it were uint32; set data.sources.a.dtype=uint32",
    ),
    "another dtype": (
        content("a.bin", b"x" * 98),
        {"data__sources__a__dtype": "uint32"},
        "`{path}`: 98 bytes are no whole number of uint32 tokens of 4 bytes",
    ),
    "ids": (
        lambda folder: write_tokens(folder / "a.bin", [*range(99), 256]),
        {},
        "`{path}`: the token at position 99, read as uint16, is not less than model.vocab=256",
    ),
    "not its tokens": (
        lambda folder: write_tokens(folder / "a.bin", range(999)),
        {"data__separate": True, "model__vocab": 1000},
        (
            "data.separate: where documents end is told by the tokenizer, and these are not "
            "its tokens; set data.tokenizer"
        ),
    ),
}


@pytest.mark.parametrize("name", FILES)
def test_files_are_refused(tmp_path, name):
    write, values, text = FILES[name]
    path = write(tmp_path)
    with pytest.raises(MeshDSLError) as error:
        open_data(reads(path, **values))
    assert str(error.value).startswith(("data: ", "data.sources.a: ", "data.separate: "))
    assert text.format(path=path) in str(error.value)


def tokenizer_without_an_end(folder):
    import tokenizers

    tokenizers.Tokenizer(tokenizers.models.WordLevel({"a": 0, "b": 1}, "a")).save(
        str(folder / "t.json")
    )
    return folder / "t.json"


TOKENIZERS = {
    "missing": (
        lambda folder: folder / "t.json",
        (
            "data.tokenizer: `{path}`: No such file or directory; expected bytes, or a "
            "Hugging Face tokenizer.json"
        ),
    ),
    "a folder without one": (
        empty_folder,
        "data.tokenizer: `{path}/tokenizer.json`: No such file or directory",
    ),
    "no tokenizer": (
        content("t.json", b'{"a": 3}'),
        "data.tokenizer: `{path}` is no tokenizer.json of Hugging Face: ",
    ),
    "no text": (
        content("t.json", b"\xff\xfe"),
        "data.tokenizer: `{path}` is no tokenizer.json of Hugging Face: ",
    ),
    "no end": (
        tokenizer_without_an_end,
        "data.tokenizer: `{path}` has no token that ends a document; add one of `<|endoftext|>`, ",
    ),
}


@pytest.mark.parametrize("name", TOKENIZERS)
def test_tokenizers_are_refused(tmp_path, name):
    write, text = TOKENIZERS[name]
    path = write(tmp_path)
    with pytest.raises(MeshDSLError) as error:
        open_data(config(data__tokenizer=str(path)))
    assert text.format(path=path) in str(error.value)


def test_a_tokenizer_with_more_tokens_than_the_model_is_refused(tokenizer_file):
    with pytest.raises(
        MeshDSLError, match=r"has 277 tokens, more than model\.vocab=256; set model\.vocab=277"
    ):
        open_data(config(data__tokenizer=str(tokenizer_file)))
    with pytest.raises(
        MeshDSLError,
        match=r"`bytes` has 256 tokens, more than model\.vocab=100; set model\.vocab=256",
    ):
        open_data(config(model__vocab=100))


@pytest.mark.parametrize("name", ["missing", "ids", "no field", "no column", "another ending"])
def test_what_is_wrong_with_one_dataset_is_told_before_another_is_tokenized(tmp_path, name):
    folder = write_texts(tmp_path / "texts", [b"some text"] * 9)
    write = FILES[name][0]
    path = (
        write(tmp_path) if name != "no field" else write_jsonl(tmp_path / "a.jsonl", ["a"], "texts")
    )
    sources = {
        "data__sources__first__paths": [str(folder)],
        "data__sources__second__paths": [str(path)],
    }
    with pytest.raises(MeshDSLError, match=r"^data\.sources\.second: "):
        open_data(config(data__cache=str(tmp_path / "cache"), **sources))
    assert not (tmp_path / "cache").exists()


def test_a_dataset_without_files_is_refused():
    with pytest.raises(
        MeshDSLError, match=r"data\.sources\.web: no files; set data\.sources\.web\.paths"
    ):
        open_data(config(data__sources__web__weight=2.0))


def test_an_id_that_no_sample_found_is_refused_when_it_is_read(tmp_path):
    tokens = np.zeros(64 * 1024 * 4, np.uint16)
    tokens[3000] = 500
    write_tokens(tmp_path / "a.bin", tokens)
    batches = open_data(reads(tmp_path / "a.bin", batch=64, model__length=1024)).train(
        np.arange(64)
    )
    with pytest.raises(
        MeshDSLError,
        match=(
            r"a\.bin`: the token at position 3,000, read as uint16, is not less than "
            r"model\.vocab=256"
        ),
    ):
        take(batches, 8)


def test_parquet_without_pyarrow_names_what_to_install(tmp_path, monkeypatch):
    path = content("a.parquet")(tmp_path)
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(
        MeshDSLError,
        match=r"needs pyarrow, which is not installed; pip install .meshdsl\[train\]",
    ):
        open_data(reads(path))


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
def test_unreadable_files_are_refused(tmp_path):
    path = content("a.txt")(tmp_path)
    path.chmod(0)
    with pytest.raises(MeshDSLError, match=r"a\.txt` cannot be read: Permission denied"):
        open_data(reads(path))


def test_a_file_that_fails_while_it_is_read_is_named(tmp_path, monkeypatch):
    path = content("a.txt")(tmp_path)
    monkeypatch.setattr(type(path), "read_bytes", lambda self: _fails())
    with pytest.raises(
        MeshDSLError, match=r"data\.sources\.a: `.*a\.txt` cannot be read: Input/output error"
    ):
        open_data(reads(path))


def _fails():
    raise OSError(5, "Input/output error")


def test_a_cache_that_cannot_be_written_is_refused(tmp_path):
    folder = write_texts(tmp_path / "texts", [b"some text"] * 9)
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(
        MeshDSLError, match=r"^data\.cache: `.*/file` cannot be written: .*; choose another folder"
    ):
        open_data(reads(folder, data__cache=str(tmp_path / "file")))


def test_a_full_disk_leaves_nothing_and_is_named(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    path = write_jsonl(tmp_path / "a.jsonl", ["some text"] * 9)
    monkeypatch.setattr("meshdsl.train.data.cache._write", full)
    with pytest.raises(
        MeshDSLError, match=r"data\.cache: `.*/cache` cannot be written: No space left on device"
    ):
        open_data(reads(path, data__cache=str(tmp_path / "cache")))
    assert not [left for left in (tmp_path / "cache").iterdir() if left.is_dir()]


def test_a_run_does_not_go_on_with_other_data(tmp_path, tokenizer_file):
    folder = write_texts(tmp_path / "texts", [b"some text %d" % i for i in range(99)])
    state = json.loads(
        json.dumps(open_data(reads(folder, model__vocab=277)).train(np.arange(4)).get_state())
    )
    open_data(reads(folder, model__vocab=277)).train(np.arange(2)).set_state(state)
    with pytest.raises(
        MeshDSLError,
        match=(
            r"began with other data: the tokenizer was 256 tokens \(bytes\) and is 277 "
            r"tokens \(\w{12}\); go on with"
        ),
    ):
        open_data(
            config(
                model__vocab=277,
                data__tokenizer=str(tokenizer_file),
                data__sources__a__paths=[str(folder)],
            )
        ).train(np.arange(4)).set_state(state)
    (folder / "more.txt").write_text("more text")
    with pytest.raises(
        MeshDSLError,
        match=(
            r"began with other data: a was 1,\d+ tokens in \d+ windows of 8 and is 1,\d+ "
            r"tokens in \d+ windows of 8; go on with"
        ),
    ):
        open_data(reads(folder, model__vocab=277)).train(np.arange(4)).set_state(state)
