"""What a row is cut from, and how documents in a row are told apart."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshdsl.train.data.sequences import Sequences, TokenRange, Tokens, batch_of
from tests.train.data.common import write_tokens

DOCUMENTS = st.lists(st.lists(st.integers(1, 9), min_size=1, max_size=12), min_size=1, max_size=8)


def tokens_in(path, *files):
    paths = [write_tokens(path / f"{i}.bin", tokens) for i, tokens in enumerate(files)]
    return Tokens(
        [
            TokenRange(each, "uint16", 0, len(tokens))
            for each, tokens in zip(paths, files, strict=True)
        ]
    )


def all_sequences(tokens, length, partial):
    sequences = Sequences(tokens, length, partial)
    rows = [sequences[i] for i in range(len(sequences))]
    return np.stack(rows) if rows else np.zeros((0, length + 1), np.int32)


def test_targets_are_the_next_tokens_and_every_token_is_a_target_once(tmp_path):
    tokens = tokens_in(tmp_path, np.arange(2000))
    batch = batch_of(all_sequences(tokens, 10, partial=False), None)
    np.testing.assert_array_equal(batch["targets"].reshape(-1), np.arange(1, 1991))
    np.testing.assert_array_equal(batch["tokens"].reshape(-1), np.arange(1990))
    assert batch["tokens"].dtype == batch["targets"].dtype == np.int32


@given(sizes=st.lists(st.integers(0, 20), min_size=1, max_size=5), data=st.data())
def test_files_are_joined_end_to_end(tmp_path_factory, sizes, data):
    numbers = np.arange(sum(sizes))
    tokens = (
        tokens_in(tmp_path_factory.mktemp("tokens"), *np.split(numbers, np.cumsum(sizes)[:-1]))
        if sum(sizes)
        else None
    )
    if tokens is not None:
        assert len(tokens) == len(numbers)
        start = data.draw(st.integers(0, len(numbers) - 1))
        stop = data.draw(st.integers(start + 1, len(numbers)))
        np.testing.assert_array_equal(tokens.read(start, stop), numbers[start:stop])


def _packed(documents, length):
    """Row by row and token by token, what `batch_of` has to say."""
    stream = [
        (token, number) for number, document in enumerate(documents) for token in [*document, 0]
    ][:-1]
    rows = []
    for start in range(0, len(stream) - 1, length):
        row, first = [], stream[start][1]
        for at in range(start, start + length):
            if at >= len(stream):
                row.append((0, -1, None, None))
                continue
            token, number = stream[at]
            same = at + 1 < len(stream) and stream[at + 1][1] == number
            position = sum(number == other for _, other in stream[start:at])
            row.append((token, stream[at + 1][0] if same else -1, number - first, position))
        rows.append(row)
    return rows


@given(documents=DOCUMENTS, length=st.integers(2, 7))
def test_packing_covers_every_token_once_and_keeps_documents_apart(
    tmp_path_factory, documents, length
):
    stream = [token for document in documents for token in [*document, 0]][:-1]
    if len(stream) < 2:
        return
    batch = batch_of(
        all_sequences(tokens_in(tmp_path_factory.mktemp("tokens"), stream), length, partial=True),
        separator=0,
    )
    expected = _packed(documents, length)
    assert batch["tokens"].shape == (len(expected), length)
    for r, row in enumerate(expected):
        for c, (token, target, segment, position) in enumerate(row):
            assert (batch["tokens"][r, c], batch["targets"][r, c]) == (token, target)
            if segment is not None:
                assert (batch["segments"][r, c], batch["positions"][r, c]) == (segment, position)
            else:  # padding is one document more, so it is attended to by no other
                assert batch["segments"][r, c] == row_segments(row) and batch["targets"][r, c] == -1
    # every token but the first of a document is a target once, where no sequence ends between them
    inside = sum(len(document) + 1 for document in documents) - 1 - len(documents)
    assert (batch["targets"] >= 0).sum() == inside
    assert all(
        value.dtype == np.int32 and value.shape == batch["tokens"].shape for value in batch.values()
    )


def row_segments(row):
    return 1 + max(segment for _, _, segment, _ in row if segment is not None)


@pytest.mark.parametrize("separator", [None, 0])
def test_a_row_without_tokens_has_nothing_to_train_on(separator):
    batch = batch_of(np.full((2, 9), -1, np.int32), separator)
    assert (batch["targets"] == -1).all() and (batch["tokens"] == 0).all()
    assert separator is None or (batch["segments"] == 0).all()
