"""Text becomes tokens once, and nothing that goes wrong leaves half of them."""

import os
import threading

import numpy as np
import pytest

from meshdsl.train.data import cache, cache_entry, documents
from meshdsl.train.data.files import find_files
from meshdsl.train.data.tokenizer import Bytes, load_tokenizer
from tests.train.data.common import write_bytes, write_texts


@pytest.fixture
def folder(tmp_path):
    return write_texts(tmp_path / "texts", [b"%02d" % i for i in range(60)])


@pytest.fixture(autouse=True)
def tell_of_little_text(monkeypatch):
    monkeypatch.setattr(cache, "WORTH_TELLING", 0)


def cached(folder, held_out=0.2, tokenizer="bytes", **how):
    """The two subsets of the text in a folder or file, by the cache beside it."""
    tokenizer = load_tokenizer(str(tokenizer)) if not isinstance(tokenizer, Bytes) else tokenizer
    files = find_files([str(folder)])
    return cache.cached_tokens(files, "text", tokenizer, held_out, beside(folder), **how)


def beside(folder):
    return folder.parent / "cache"


def entries(folder):
    return [path for path in beside(folder).iterdir() if path.is_dir()]


def ids(subset):
    return subset.tokens.read(0, len(subset.tokens))


def texts(subsets):
    return [ids(subset).astype(np.uint8).tobytes() for subset in subsets]


def test_documents_are_split_by_their_content(folder, monkeypatch):
    subsets = cached(folder)
    train, held_out = (set(text.split(b"\0")) for text in texts(subsets))
    assert train | held_out == {b"%02d" % i for i in range(60)}
    assert not train & held_out and 2 < len(held_out) < 25
    assert [each.documents for each in subsets] == [len(train), len(held_out)]
    assert [each.bytes for each in subsets] == [len(each.tokens) for each in subsets]
    write_bytes(folder / "new.txt", b"new")
    monkeypatch.setattr(documents, "BLOCK", 1)  # in which blocks a document comes is all the same
    again = [set(text.split(b"\0")) for text in texts(cached(folder))]
    assert train <= again[0] and held_out <= again[1]


def test_the_end_of_a_single_document_is_held_out(tmp_path):
    subsets = cached(write_bytes(tmp_path / "a.txt", bytes(range(1, 101))), 0.1)
    assert texts(subsets) == [bytes(range(1, 91)), bytes(range(91, 101))]
    assert [each.bytes for each in subsets] == [90, 10]


def test_a_long_text_is_the_same_tokens_as_in_one_block(tmp_path, monkeypatch, tokenizer_file):
    text = "the cat sat on the mat\n" * 40
    monkeypatch.setattr(documents, "BLOCK", 100)
    monkeypatch.setattr(cache_entry, "AT_ONCE", 300)
    path = write_bytes(tmp_path / "a.txt", text.encode())
    train, _ = cached(path, 0.0, tokenizer_file)
    np.testing.assert_array_equal(ids(train), load_tokenizer(str(tokenizer_file)).encode(text))
    assert (train.documents, train.bytes) == (1, len(text))


def test_separators_stand_between_documents(tmp_path, tokenizer_file):
    tokenizer, written = load_tokenizer(str(tokenizer_file)), ["the cat", "dog", "<|endoftext|>"]
    folder = write_texts(tmp_path / "texts", [text.encode() for text in written])
    parts = [tokenizer.encode(text).tolist() for text in written]
    end = [tokenizer.separator]
    assert all(tokenizer.separator not in part for part in parts)
    found = ids(cached(folder, 0.0, tokenizer_file)[0]).tolist()
    assert found == [*parts[0], *end, *parts[1], *end, *parts[2]]


def test_text_is_tokenized_once_for_each_way_to_read_it(folder, tokenizer_file):
    told = []
    for how in ({}, {}, {"held_out": 0.3}, {"tokenizer": tokenizer_file}, {"held_out": 0.3}):
        cached(folder, report=told.append, **how)
    assert [text.split()[0] for text in told] == ["tokenizing", "tokenized"] * 3
    os.utime(folder / "0000.txt", ns=(1, 1))
    cached(folder, report=told.append)
    assert len(told) == 8
    cache.WORTH_TELLING = 2**20
    cached(folder, 0.4, report=told.append)
    assert len(told) == 8


DAMAGE = {
    "truncated": lambda entry: os.truncate(entry / "train.bin", 10),
    "missing": lambda entry: (entry / "validation.bin").unlink(),
    "no parts": lambda entry: (entry / "parts.json").unlink(),
    "bad parts": lambda entry: (entry / "parts.json").write_text('{"train": 3}'),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_a_damaged_cache_is_made_again(folder, name):
    expected = texts(cached(folder))
    DAMAGE[name](*entries(folder))
    assert texts(cached(folder)) == expected


class Killed(Bytes):
    def encode_blocks(self, blocks):
        raise KeyboardInterrupt


def test_what_ends_a_build_leaves_nothing(folder):
    with pytest.raises(KeyboardInterrupt):
        cached(folder, tokenizer=Killed())
    assert not entries(folder)
    [lock] = beside(folder).iterdir()
    left = beside(folder) / f"{lock.stem}.partial-killed"  # SIGKILL leaves its folder
    left.mkdir()
    os.utime(left, (0, 0))
    cached(folder)
    assert not left.exists()


@pytest.mark.parametrize("locks", [True, False])
def test_processes_that_come_at_once_all_find_whole_tokens(folder, monkeypatch, locks):
    if not locks:
        monkeypatch.setattr(cache_entry.fcntl, "flock", _no_locks)
    told, found = [], []
    read = lambda: found.append(texts(cached(folder, report=told.append)))
    threads = [threading.Thread(target=read) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 6 and all(each == found[0] for each in found)
    assert len(told) == 2 or not locks
    assert not list(beside(folder).glob("*.partial-*"))


def _no_locks(*_):
    raise OSError(95, "not supported")
