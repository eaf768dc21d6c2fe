"""Text that cannot be read or does not fit gets one clear sentence, before anything is done."""

import json
import os
import sys

import numpy as np
import pytest
from tokenizers import Tokenizer, models

from meshdsl.errors import MeshDSLError
from meshdsl.train.data import open_data
from tests.train.data.common import (
    ROWS,
    config,
    reads,
    refused,
    take,
    write_bytes,
    write_table,
    write_texts,
    write_tokens,
)


def line(content):
    """A file whose second line is `content`."""
    good = b'{"text": "good"}\n'
    return lambda at: write_bytes(at / "a.jsonl", good + content + b"\n" + good)


def table(**columns):
    return lambda at: write_table(at / "a.parquet", **columns)


def content(name, data=b"x" * 99):
    return lambda at: write_bytes(at / name, data)


def damaged_parquet(at):
    path = table(text=["some text"] * 1000)(at)
    whole = path.read_bytes()
    return write_bytes(path, whole[:50] + bytes(100) + whole[150:])


def empty_folder(at):
    (at / "empty").mkdir()
    return at / "empty"


def text_and_tokens(at):
    write_tokens(at / "a.bin", range(99))
    return content("a.txt")(at).parent


def ids(*tokens):
    return lambda at: write_tokens(at / "a.bin", tokens)


FILES = {
    "missing": (lambda at: at / "no.txt", "no file or folder `{path}`"),
    "empty": (content("a.txt", b""), "nothing to read in `{path}`"),
    "lines without text": (
        content("a.jsonl", b'{"text": ""}\n' * 9),
        "nothing to read in `{path}`",
    ),
    "another ending": (
        content("a.jsonl.7z"),
        "`{path}`: files that end in .7z cannot be read; unpack it or turn it into text, JSONL",
    ),
    "text and tokens": (text_and_tokens, "token files and text in one dataset; make it two"),
    "little": (
        content("a.txt", b"x" * 30),
        "data: 29 tokens of `a` for training are less than one batch=4 of length=8 (33 tokens); "
        "give more data, or set a smaller batch or model.length",
    ),
    "no JSON": (line(b"{'text': 1}"), "`{path}` line 2: not JSON: "),
    "no object": (line(b"[1, 2]"), "`{path}` line 2: expected an object with a field `text`"),
    "no UTF-8": (line(b'{"text": "\xff\xfe"}'), "`{path}` line 2: not UTF-8: "),
    "no field": (
        line(b'{"texts": "a", "id": 3}'),
        "`{path}` line 2: no field `text`; did you mean `texts`?",
    ),
    "a number": (line(b'{"text": 3}'), "`{path}` line 2: `text` is 3, not text"),
    "no column": (table(texts=["a"]), "`{path}`: no column `text`; did you mean `texts`?"),
    "a column of numbers": (table(text=[1]), "`{path}` row 1: `text` is 1, not text"),
    "a column with gaps": (table(text=["a", None]), "`{path}` row 2: `text` is None, not text"),
    "no parquet": (content("a.parquet"), "`{path}`: not parquet, or damaged: "),
    "damaged parquet": (damaged_parquet, "`{path}`"),
    "no Arrow": (content("a.arrow"), "`{path}`: not Arrow, or damaged: "),
    "half a token": (
        content("a.bin"),
        "`{path}`: 99 bytes are no whole number of uint16 tokens of 2 bytes",
    ),
    "uint32 read as uint16": (
        content("a.bin", b"\x05\x00\x00\x00" * 400),
        "every other token of `{path}` is 0, as if it were uint32; set data.sources.a.dtype=uint32",
    ),
    "ids": (
        ids(*range(99), 256),
        "`{path}`: the token at position 99, read as uint16, is not less than model.vocab=256",
    ),
}
SETTINGS = {
    "another dtype": (
        content("a.bin", b"x" * 98),
        "`{path}`: 98 bytes are no whole number of uint32 tokens of 4 bytes",
        {"data__sources__a__dtype": "uint32"},
    ),
    "not its tokens": (
        ids(*range(999)),
        "data.separate: where documents end is told by the tokenizer, and these are not its "
        "tokens; set data.tokenizer",
        {"data__separate": True, "model__vocab": 1000},
    ),
}


@pytest.mark.parametrize("name", [*FILES, *SETTINGS])
def test_files_are_refused(tmp_path, name):
    write, text, *values = {**FILES, **SETTINGS}[name]
    path = write(tmp_path)
    with refused(text.format(path=path)):
        open_data(reads(path, **(values[0] if values else {})))


def tokenizer_without_an_end(at):
    Tokenizer(models.WordLevel({"a": 0, "b": 1}, "a")).save(str(at / "t.json"))
    return at / "t.json"


ABSENT = "No such file or directory"
NO_TOKENIZER = "data.tokenizer: `{path}` is no tokenizer.json of Hugging Face: "
TOKENIZERS = {
    "missing": (
        lambda at: at / "t.json",
        f"data.tokenizer: `{{path}}`: {ABSENT}; expected bytes, or a Hugging Face tokenizer.json",
    ),
    "an empty folder": (empty_folder, f"data.tokenizer: `{{path}}/tokenizer.json`: {ABSENT}"),
    "no tokenizer": (content("t.json", b'{"a": 3}'), NO_TOKENIZER),
    "no text": (content("t.json", b"\xff\xfe"), NO_TOKENIZER),
    "no end": (
        tokenizer_without_an_end,
        "data.tokenizer: `{path}` has no token that ends a document; add one of `<|endoftext|>`, ",
    ),
}


@pytest.mark.parametrize("name", TOKENIZERS)
def test_tokenizers_are_refused(tmp_path, name):
    write, text = TOKENIZERS[name]
    path = write(tmp_path)
    with refused(text.format(path=path)):
        open_data(config(data__tokenizer=str(path)))


def test_a_tokenizer_with_more_tokens_than_the_model_is_refused(tokenizer_file):
    with refused("has 277 tokens, more than model.vocab=256; set model.vocab=277"):
        open_data(config(data__tokenizer=str(tokenizer_file)))
    with refused("`bytes` has 256 tokens, more than model.vocab=100; set model.vocab=256"):
        open_data(config(model__vocab=100))


@pytest.mark.parametrize("name", ["missing", "ids", "no field", "no column", "another ending"])
def test_what_is_wrong_with_one_dataset_is_told_before_another_is_tokenized(tmp_path, name):
    good = write_texts(tmp_path / "texts", [b"some text"] * 9)
    path = FILES[name][0](tmp_path) if name != "no field" else line(b"")(tmp_path)
    field = {"data__sources__b__field": "texts"} if name == "no field" else {}
    values = {"data__sources__b__paths": [str(path)], "data__cache": str(tmp_path / "cache")}
    with refused("data.sources.b: "):
        open_data(reads(good, **values, **field))
    assert not (tmp_path / "cache").exists()


def test_sources_that_give_no_text_are_refused():
    with refused("data.sources.web: no files; set data.sources.web.paths"):
        open_data(config(data__sources__web__weight=2.0))
    with refused("the task `text` reads files, not the function tests.train.", "=examples a func"):
        open_data(config(data__sources__a__dataset="tests.train.data.user_data:both"))
    with refused("does not read the format folders; it reads text, jsonl, parquet, arrow,"):
        open_data(reads("x", data__sources__a__format="folders"))


def test_an_id_that_no_sample_found_is_refused_when_it_is_read(tmp_path):
    tokens = np.zeros(64 * 1024 * 4, np.uint16)
    tokens[3000] = 500
    path = write_tokens(tmp_path / "a.bin", tokens)
    batches = open_data(reads(path, batch=64, model__length=1024)).train(np.arange(64))
    text = "a.bin`: the token at position 3,000, read as uint16, is not less than model.vocab=256"
    with pytest.raises(MeshDSLError, match=text):
        take(batches, 8)


def test_parquet_without_pyarrow_names_what_to_install(tmp_path, monkeypatch):
    path = content("a.parquet")(tmp_path)
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with refused('needs pyarrow, which is not installed; pip install "meshdsl[train]"'):
        open_data(reads(path))


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
def test_unreadable_files_are_refused(tmp_path):
    path = content("a.txt")(tmp_path)
    path.chmod(0)
    with refused("a.txt` cannot be read: Permission denied"):
        open_data(reads(path))


def test_a_file_that_fails_while_it_is_read_is_named(tmp_path, monkeypatch):
    def fails(path):
        raise OSError(5, "Input/output error")

    path = content("a.txt")(tmp_path)
    monkeypatch.setattr(type(path), "read_bytes", fails)
    with refused("data.sources.a: `", "a.txt` cannot be read: Input/output error"):
        open_data(reads(path))


def test_a_cache_that_cannot_be_written_is_refused(tmp_path):
    folder = write_texts(tmp_path / "texts", [b"some text"] * 9)
    (tmp_path / "file").write_text("in the way")
    with refused("data.cache: `", "/file` cannot be written: ", "; choose another folder"):
        open_data(reads(folder, data__cache=str(tmp_path / "file")))


def test_a_full_disk_leaves_nothing_and_is_named(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    path = content("a.txt")(tmp_path)
    monkeypatch.setattr(os, "fsync", full)
    with refused("data.cache: `", "/cache` cannot be written: No space left on device"):
        open_data(reads(path, data__cache=str(tmp_path / "cache")))
    assert not [left for left in (tmp_path / "cache").iterdir() if left.is_dir()]


def test_a_run_does_not_go_on_with_other_data(tmp_path, tokenizer_file):
    folder = write_texts(tmp_path / "texts", [b"some text %d" % i for i in range(99)])
    opened = lambda **how: open_data(reads(folder, model__vocab=277, **how)).train(ROWS)
    state = json.loads(json.dumps(opened().get_state()))
    opened().set_state(state)
    began = "data: this run began with other data: "
    with refused(f"{began}the tokenizer was 256 tokens (bytes) and is 277 tokens (", "; go on"):
        opened(data__tokenizer=str(tokenizer_file)).set_state(state)
    (folder / "more.txt").write_text("more text")
    with refused(f"{began}a was 1,", " windows of 8 and is 1,", "; go on with the same files"):
        opened().set_state(state)
