"""Text becomes tokens once, and nothing that goes wrong leaves half of them."""

import json
import os
import threading

import numpy as np
import pytest

from meshdsl.train.data import cache, cache_entry
from meshdsl.train.data.files import find_files
from meshdsl.train.data.tokenizer import load_tokenizer
from tests.train.data.common import write_texts


@pytest.fixture
def folder(tmp_path):
    return write_texts(tmp_path / "texts", [b"%02d" % i for i in range(60)])


@pytest.fixture(autouse=True)
def tell_of_little_text(monkeypatch):
    monkeypatch.setattr(cache, "_WORTH_TELLING", 0)


def tokens_of(folder, where, held_out=0.2, tokenizer="bytes", **how):
    found = cache.cached_tokens(
        find_files([str(folder)]), "text", load_tokenizer(str(tokenizer)), held_out, where, **how
    )
    return [each.tokens for each in found], found


def whole(tokens):
    return tokens.read(0, len(tokens)).astype(np.uint8).tobytes()


def test_documents_are_split_by_their_content(folder, tmp_path):
    tokens, parts = tokens_of(folder, tmp_path / "cache")
    train, held_out = (set(whole(part).split(b"\0")) for part in tokens)
    assert train | held_out == {b"%02d" % i for i in range(60)}
    assert not train & held_out
    assert [part.documents for part in parts] == [len(train), len(held_out)]
    assert [part.bytes for part in parts] == [len(part) for part in tokens]
    (folder / "new.txt").write_bytes(b"new")
    again, _ = tokens_of(folder, tmp_path / "cache")
    assert held_out <= set(whole(again[1]).split(b"\0"))


def test_a_document_is_held_out_by_its_bytes_and_not_by_its_blocks():
    sides = [cache._subset([b"%d" % i], 0.2) for i in range(500)]
    assert 60 < sum(sides) < 140
    assert sides == [cache._subset([b"%d" % i, b""], 0.2) for i in range(500)]
    assert not any(cache._subset([b"%d" % i], 0.0) for i in range(50))


def test_the_end_of_a_single_document_is_held_out(tmp_path):
    path = tmp_path / "a.txt"
    path.write_bytes(bytes(range(1, 101)))
    (train, held_out), parts = tokens_of(path, tmp_path / "cache", 0.1)
    assert whole(train) == bytes(range(1, 91)) and whole(held_out) == bytes(range(91, 101))
    assert [part.bytes for part in parts] == [90, 10]


def test_a_long_text_is_the_same_tokens_as_in_one_block(tmp_path, monkeypatch, tokenizer_file):
    text = "the cat sat on the mat\n" * 40
    (tmp_path / "a.txt").write_text(text)
    monkeypatch.setattr("meshdsl.train.data.documents.BLOCK", 100)
    monkeypatch.setattr(cache_entry, "AT_ONCE", 300)
    (train, _), parts = tokens_of(tmp_path / "a.txt", tmp_path / "cache", 0.0, tokenizer_file)
    np.testing.assert_array_equal(
        train.read(0, len(train)), load_tokenizer(str(tokenizer_file)).encode(text)
    )
    assert (parts[0].documents, parts[0].bytes) == (1, len(text))


def test_separators_stand_between_documents(tmp_path, tokenizer_file):
    tokenizer = load_tokenizer(str(tokenizer_file))
    folder = write_texts(tmp_path / "texts", [b"the cat", b"the dog", b"<|endoftext|>"])
    (train, _), _ = tokens_of(folder, tmp_path / "cache", 0.0, tokenizer_file)
    parts = [tokenizer.encode(text).tolist() for text in ("the cat", "the dog", "<|endoftext|>")]
    assert all(tokenizer.separator not in part for part in parts)
    end = [tokenizer.separator]
    assert train.read(0, len(train)).tolist() == [*parts[0], *end, *parts[1], *end, *parts[2]]


def test_text_is_tokenized_once_for_each_way_to_read_it(folder, tmp_path, tokenizer_file):
    told = []
    for how in ({}, {}, {"held_out": 0.3}, {"tokenizer": tokenizer_file}, {"held_out": 0.3}):
        tokens_of(folder, tmp_path / "cache", report=told.append, **how)
    assert [text.split()[0] for text in told] == ["tokenizing", "tokenized"] * 3
    os.utime(folder / "0000.txt", ns=(1, 1))
    tokens_of(folder, tmp_path / "cache", report=told.append)
    assert len(told) == 8
    cache._WORTH_TELLING = 2**20
    tokens_of(folder, tmp_path / "cache", 0.4, report=told.append)
    assert len(told) == 8


@pytest.mark.parametrize("damage", ["truncated", "missing", "no parts", "bad parts"])
def test_a_damaged_cache_is_made_again(folder, tmp_path, damage):
    expected = [whole(part) for part in tokens_of(folder, tmp_path / "cache")[0]]
    (place,) = (path for path in (tmp_path / "cache").iterdir() if path.is_dir())
    if damage == "truncated":
        os.truncate(place / "train.bin", 10)
    elif damage == "missing":
        (place / "validation.bin").unlink()
    elif damage == "no parts":
        (place / "parts.json").unlink()
    else:
        (place / "parts.json").write_text(json.dumps({"train": 3}))
    assert [whole(part) for part in tokens_of(folder, tmp_path / "cache")[0]] == expected


def test_what_ends_a_build_leaves_nothing(folder, tmp_path, monkeypatch):
    def killed(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(cache, "_write", killed)
        with pytest.raises(KeyboardInterrupt):
            tokens_of(folder, tmp_path / "cache")
    assert not [path for path in (tmp_path / "cache").iterdir() if path.is_dir()]
    left = (
        tmp_path / "cache" / f"{next((tmp_path / 'cache').iterdir()).stem}.partial-killed"
    )  # SIGKILL leaves its folder
    left.mkdir()
    os.utime(left, (0, 0))
    tokens_of(folder, tmp_path / "cache")
    assert not left.exists()


@pytest.mark.parametrize("locks", [True, False])
def test_processes_that_come_at_once_all_find_whole_tokens(folder, tmp_path, monkeypatch, locks):
    if not locks:
        monkeypatch.setattr(cache_entry.fcntl, "flock", _no_locks)
    told, found = [], []
    read = lambda: found.append(
        [whole(part) for part in tokens_of(folder, tmp_path / "cache", report=told.append)[0]]
    )
    threads = [threading.Thread(target=read) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 6 and all(each == found[0] for each in found)
    assert len(told) == 2 or not locks
    assert not list((tmp_path / "cache").glob("*.partial-*"))


def _no_locks(*_):
    raise OSError(95, "not supported")
