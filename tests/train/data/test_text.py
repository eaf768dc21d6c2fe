"""Batches of text: which sequences they have, what is held out, and the bytes of a token."""

import threading
import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshdsl.train.data import load_tokenizer, open_data
from tests.train.data.common import (
    ROWS,
    assert_batches,
    config,
    of_rows,
    reads,
    take,
    whole,
    write_table,
    write_texts,
    write_tokens,
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Sources of tokens that tell where they are from, and one of text.

    `a` has ids below 1000 and `b` above, each 40 sequences of 8; `long_a` and `long_b` are long.
    """
    folder = tmp_path_factory.mktemp("data")
    write_tokens(folder / "a.bin", np.arange(321) % 1000)
    write_tokens(folder / "b.bin", 1000 + np.arange(321))
    write_tokens(folder / "long_a.bin", np.zeros(40_001))
    write_tokens(folder / "long_b.bin", np.full(40_001, 1000))
    write_texts(folder / "texts", [b"document %d " % i * (i % 7 + 1) for i in range(100)])
    return folder


def mixture(folder, kind="", **weights):
    sources = {f"data__sources__{at}__paths": [str(folder / f"{kind}{at}.bin")] for at in "ab"}
    weights = {f"data__sources__{name}__weight": value for name, value in weights.items()}
    return open_data(config(model__vocab=2000, data__validation=0.0, **sources, **weights))


def firsts(batches, count):
    """The first token of each sequence of some batches."""
    return whole(take(batches, count))["tokens"][:, 0]


def test_an_epoch_reads_every_window_once_and_the_next_in_another_order(folder):
    path = folder / "a.bin"
    batches = open_data(reads(path, model__vocab=1000, data__validation=0.0)).train(ROWS)
    epochs = [firsts(batches, 10).tolist() for _ in range(2)]
    assert [sorted(epoch) for epoch in epochs] == [list(range(0, 320, 8))] * 2
    assert epochs[0] != epochs[1]


@given(b=st.floats(0.05, 20))
def test_a_mixture_keeps_its_weights_at_every_moment(folder, b):
    first = firsts(mixture(folder, "long_", b=b).train(ROWS), 50)
    expected = b / (1 + b) * np.arange(1, len(first) + 1)
    assert np.abs(np.cumsum(first >= 1000) - expected).max() < 1 + 0.01 * len(first)


def test_a_dataset_of_a_mixture_starts_again_when_it_is_read(folder):
    first = firsts(mixture(folder, a=4.0).train(ROWS), 25)
    assert sorted(first[first < 1000]) == sorted(list(range(0, 320, 8)) * 2)
    assert len(set(first[first >= 1000])) == (first >= 1000).sum() == 20


def test_every_held_out_window_is_used_once_and_the_last_batch_is_filled_up(folder):
    settings = {"model__vocab": 1000, "data__validation": 0.5, "batch": 8, "microbatches": 2}
    corpus = open_data(reads(folder / "a.bin", **settings))
    (batches,) = corpus.validation(ROWS).values()
    targets = whole(batches)["targets"].reshape(-1)
    np.testing.assert_array_equal(targets[targets >= 0], np.arange(321)[162:])
    assert len(batches) == 5 and all(batch["targets"].shape == (4, 8) for batch in batches)
    assert_batches(corpus.validation(ROWS[1:3])["a"], of_rows(batches, [1, 2]))


def test_of_much_held_out_text_so_many_batches_are_spread_evenly(folder):
    settings = {"model__vocab": 1000, "data__validation": 0.9, "validation__batches": 3}
    batches = open_data(reads(folder / "a.bin", **settings)).validation(ROWS)["a"]
    first = whole(batches)["tokens"][:, 0]
    assert len(batches) == 3 and first[0] == 33 and first[-1] == 33 + 8 * 35
    assert set(np.diff(first) // 8) == {3, 4}


def test_a_dataset_may_bring_what_is_held_out(folder, tmp_path):
    path = write_table(tmp_path / "v.jsonl", text=["held out text"] * 3)
    corpus = open_data(reads(folder / "texts", data__sources__a__validation=[str(path)]))
    targets = whole(corpus.validation(ROWS)["a"])["targets"].reshape(-1)
    assert bytes(targets[targets >= 0].astype(np.uint8)) == b"\0".join([b"held out text"] * 3)[1:]
    assert "of 100 documents; held out 41 tokens of 3 documents" in corpus.describe()


def test_nothing_held_out_is_nothing_to_validate(folder):
    corpus = open_data(reads(folder / "texts", data__validation=0.0))
    assert corpus.validation(ROWS) == {} and corpus.bytes_per_token == {}


def test_bytes_per_token_compare_tokenizers(folder, tokenizer_file, tmp_path):
    settings = {"data__tokenizer": str(tokenizer_file), "model__vocab": 277}
    text = open_data(reads(folder / "texts", **settings))
    assert 1.0 <= text.bytes_per_token["a"] < 4.0 and 1.0 <= text.train_bytes_per_token < 4.0
    assert mixture(folder).train_bytes_per_token is None
    unknown = open_data(reads(folder / "a.bin", model__vocab=1000, data__validation=0.5))
    assert unknown.bytes_per_token == {"a": None}
    # Of token files they are the bytes that the tokens decode to.
    ids = load_tokenizer(str(tokenizer_file)).encode("the cat sat on the mat " * 50)
    path = write_tokens(tmp_path / "a.bin", ids, "uint32")
    settings |= {"data__sources__a__dtype": "uint32", "data__validation": 0.5}
    tokens = open_data(reads(path, **settings))
    expected = pytest.approx(23 * 50 / len(ids), rel=0.05)
    assert tokens.train_bytes_per_token == expected and tokens.bytes_per_token["a"] == expected


def test_reading_ahead_ends_with_the_iterator(folder):
    others = _readers()  # those of batches that other tests have left
    batches = open_data(reads(folder / "texts")).train(ROWS)
    next(batches)
    assert _readers() > others
    batches.close()
    deadline = time.monotonic() + 5
    while _readers() - others and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not _readers() - others


def _readers():
    return {thread for thread in threading.enumerate() if thread.name.startswith("grain-prefetch")}
