"""Batches: the right ones, the same for everyone, and the next one after any interruption."""

import threading
import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshdsl.train.config import Config
from meshdsl.train.data import open_data
from tests.train.data.common import (
    assert_batches,
    config,
    reads,
    take,
    write_jsonl,
    write_texts,
    write_tokens,
)

ROWS = np.arange(4)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Two sources of tokens that tell where they are from: `a` has ids below 1000 and `b`
    above, each 40 windows of 8; long ones; and one of text.
    """
    folder = tmp_path_factory.mktemp("data")
    write_tokens(folder / "a.bin", np.arange(321) % 1000)
    write_tokens(folder / "b.bin", 1000 + np.arange(321))
    write_tokens(folder / "long_a.bin", np.zeros(40_001))
    write_tokens(folder / "long_b.bin", np.full(40_001, 1000))
    write_texts(folder / "texts", [b"document %d " % i * (i % 7 + 1) for i in range(100)])
    return folder


def mixture(folder, a=1.0, b=1.0, kind="", **values):
    sources = {
        f"data__sources__{name}__paths": [str(folder / f"{kind}{name}.bin")] for name in "ab"
    }
    weights = {"data__sources__a__weight": a, "data__sources__b__weight": b}
    return open_data(
        config(model__vocab=2000, data__validation=0.0, **sources, **weights, **values)
    )


def test_the_default_is_the_standard_library():
    corpus = open_data(Config())
    batch = next(corpus.train(np.arange(32)))
    assert batch["tokens"].shape == batch["targets"].shape == (32, 128)
    np.testing.assert_array_equal(batch["tokens"][:, 1:], batch["targets"][:, :-1])
    assert corpus.bytes_per_token == {"python": 1.0} and corpus.train_bytes_per_token == 1.0
    assert "data, by the tokenizer bytes of 256 tokens:\n  python: " in corpus.describe()
    assert {name: len(batches) for name, batches in corpus.validation(np.arange(32)).items()} == {
        "python": 16
    }


def test_batches_are_a_function_of_the_seed(folder):
    one, same, other = (
        take(open_data(reads(folder / "texts", seed=seed)).train(ROWS), 5) for seed in (1, 1, 2)
    )
    assert_batches(one, same)
    assert not any(
        np.array_equal(a["tokens"], b["tokens"]) for a, b in zip(one, other, strict=True)
    )


def test_an_epoch_reads_every_window_once_and_the_next_in_another_order(folder):
    batches = open_data(reads(folder / "a.bin", model__vocab=1000, data__validation=0.0)).train(
        ROWS
    )
    epochs = [
        np.concatenate([batch["tokens"][:, 0] for batch in take(batches, 10)]).tolist()
        for _ in range(2)
    ]
    assert [sorted(epoch) for epoch in epochs] == [list(range(0, 320, 8))] * 2
    assert epochs[0] != epochs[1]


@given(
    owners=st.lists(st.sets(st.integers(0, 7), max_size=3), min_size=8, max_size=8),
    separate=st.booleans(),
)
def test_any_split_of_the_rows_over_processes_gives_the_same_batches(folder, owners, separate):
    corpus = open_data(reads(folder / "texts", batch=8, data__separate=separate))
    everything = corpus.train(np.arange(8))
    whole, state = take(everything, 3), everything.get_state()
    assert state["rows"] == 3 * 8
    for process in set().union(*owners):
        rows = np.array([row for row, who in enumerate(owners) if process in who])
        batches = corpus.train(rows)
        assert_batches(
            take(batches, 3),
            [{key: value[rows] for key, value in batch.items()} for batch in whole],
        )
        assert batches.get_state() == state


@given(step=st.integers(0, 60), b=st.floats(0.1, 10))
def test_a_run_goes_on_with_the_very_next_batch_from_any_step(folder, step, b):
    corpus = mixture(folder, b=b, kind="long_" if step % 2 else "")
    batches = corpus.train(ROWS)
    take(batches, step)
    state = batches.get_state()
    expected = take(batches, 3)
    other = corpus.train(np.array([3, 1]))  # on another process, that reads other rows
    next(other)
    other.set_state(state)
    assert_batches(
        take(other, 3), [{key: value[[3, 1]] for key, value in batch.items()} for batch in expected]
    )


def test_a_run_goes_on_with_the_very_next_row_in_batches_of_another_size(folder):
    path = folder / "a.bin"
    one = open_data(reads(path, model__vocab=1000)).train(np.arange(4))
    take(one, 3)
    other = open_data(reads(path, model__vocab=1000, batch=8)).train(np.arange(8))
    other.set_state(one.get_state())
    rows = np.concatenate([batch["tokens"] for batch in take(one, 6)])
    np.testing.assert_array_equal(
        np.concatenate([batch["tokens"] for batch in take(other, 3)]), rows
    )
    assert other.get_state() == one.get_state()


@given(b=st.floats(0.05, 20))
def test_a_mixture_keeps_its_weights_at_every_moment(folder, b):
    batches = mixture(folder, b=b, kind="long_").train(ROWS)
    first = np.concatenate([batch["tokens"][:, 0] for batch in take(batches, 100)])
    of_b = np.cumsum(first >= 1000)
    expected = b / (1 + b) * np.arange(1, len(first) + 1)
    assert np.abs(of_b - expected).max() < 1 + 0.01 * len(first)


def test_a_dataset_of_a_mixture_starts_again_when_it_is_read(folder):
    batches = mixture(folder, a=4.0).train(ROWS)
    first = np.concatenate([batch["tokens"][:, 0] for batch in take(batches, 25)])
    assert sorted(first[first < 1000]) == sorted(list(range(0, 320, 8)) * 2)
    assert len(set(first[first >= 1000])) == (first >= 1000).sum() == 20


def test_every_held_out_window_is_used_once_and_the_last_batch_is_filled_up(folder):
    corpus = open_data(
        reads(folder / "a.bin", model__vocab=1000, data__validation=0.5, batch=8, microbatches=2)
    )
    (batches,) = corpus.validation(ROWS).values()
    targets = np.concatenate([batch["targets"].reshape(-1) for batch in batches])
    held_out = np.arange(321)[161:]
    np.testing.assert_array_equal(targets[targets >= 0], held_out[1:])
    assert len(batches) == 5 and all(batch["targets"].shape == (4, 8) for batch in batches)
    assert_batches(corpus.validation(ROWS)["a"], batches)
    some = corpus.validation(ROWS[1:3])["a"]
    assert_batches(some, [{key: value[1:3] for key, value in batch.items()} for batch in batches])


def test_of_much_held_out_text_so_many_batches_are_spread_evenly(folder):
    corpus = open_data(
        reads(folder / "a.bin", model__vocab=1000, data__validation=0.9, validation__batches=3)
    )
    batches = corpus.validation(ROWS)["a"]
    first = np.concatenate([batch["tokens"][:, 0] for batch in batches])
    assert len(batches) == 3 and first[0] == 33 and first[-1] == 33 + 8 * 35
    assert set(np.diff(first) // 8) == {3, 4}


def test_a_dataset_may_bring_what_is_held_out(folder, tmp_path):
    path = write_jsonl(tmp_path / "v.jsonl", ["held out text"] * 3)
    corpus = open_data(reads(folder / "texts", data__sources__a__validation=[str(path)]))
    targets = np.concatenate(
        [batch["targets"].reshape(-1) for batch in corpus.validation(ROWS)["a"]]
    )
    assert bytes(targets[targets >= 0].astype(np.uint8)) == b"\0".join([b"held out text"] * 3)[1:]
    assert "of 100 documents; held out 41 tokens of 3 documents" in corpus.describe()


def test_nothing_held_out_is_nothing_to_validate(folder):
    corpus = open_data(reads(folder / "texts", data__validation=0.0))
    assert corpus.validation(ROWS) == {} and corpus.bytes_per_token == {}


def test_bytes_per_token_compare_tokenizers(folder, tokenizer_file):
    text = open_data(reads(folder / "texts", data__tokenizer=str(tokenizer_file), model__vocab=277))
    assert 1.0 <= text.bytes_per_token["a"] < 4.0 and 1.0 <= text.train_bytes_per_token < 4.0
    tokens = mixture(folder)
    assert tokens.train_bytes_per_token is None
    assert open_data(
        reads(folder / "a.bin", model__vocab=1000, data__validation=0.5)
    ).bytes_per_token == {"a": None}


def test_token_files_have_the_bytes_that_they_decode_to(tmp_path, tokenizer_file):
    from meshdsl.train.data import load_tokenizer

    ids = load_tokenizer(str(tokenizer_file)).encode("the cat sat on the mat " * 50)
    write_tokens(tmp_path / "a.bin", ids, "uint32")
    corpus = open_data(
        reads(
            tmp_path / "a.bin",
            data__tokenizer=str(tokenizer_file),
            model__vocab=277,
            data__sources__a__dtype="uint32",
            data__validation=0.5,
        )
    )
    assert corpus.train_bytes_per_token == pytest.approx(23 * 50 / len(ids), rel=0.05)
    assert corpus.bytes_per_token["a"] == pytest.approx(23 * 50 / len(ids), rel=0.05)


def test_separate_documents_say_so_in_every_batch(folder):
    corpus = open_data(reads(folder / "texts", data__separate=True))
    for batch in [*take(corpus.train(ROWS), 5), *corpus.validation(ROWS)["a"]]:
        assert list(batch) == ["tokens", "targets", "segments", "positions"]
        assert (batch["targets"][batch["tokens"] == 0] == -1).all()
        assert (batch["positions"][:, 1:][np.diff(batch["segments"], axis=1) == 1] == 0).all()


def test_reading_ahead_ends_with_the_iterator(folder):
    batches = open_data(reads(folder / "texts")).train(ROWS)
    next(batches)
    assert _readers()
    batches.close()
    deadline = time.monotonic() + 5
    while _readers() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not _readers()


def _readers():
    return [thread for thread in threading.enumerate() if thread.name.startswith("grain-prefetch")]
