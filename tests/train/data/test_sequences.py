"""What a row is cut from, and how documents in a row are told apart."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshdsl.train.data.sequences import (
    CHAT,
    END,
    NO_TOKEN,
    SAID,
    TokenRange,
    Tokens,
    batch_of,
    cut_sequences,
    packed_conversations,
)
from tests.train.data.common import write_tokens

DOCUMENTS = st.lists(st.lists(st.integers(1, 9), min_size=1, max_size=12), min_size=1, max_size=8)


def tokens_in(path, *files, dtype="uint16"):
    return Tokens(
        [
            TokenRange(write_tokens(path / f"{i}.bin", each, dtype), dtype, 0, len(each))
            for i, each in enumerate(files)
        ]
    )


def test_targets_are_the_next_tokens_and_every_token_is_a_target_once(tmp_path):
    tokens = tokens_in(tmp_path, np.arange(2000))
    batch = batch_of(np.stack(cut_sequences(tokens, 10, partial=False)), None)
    np.testing.assert_array_equal(batch["targets"].reshape(-1), np.arange(1, 1991))
    np.testing.assert_array_equal(batch["tokens"].reshape(-1), np.arange(1990))
    assert batch["tokens"].dtype == batch["targets"].dtype == np.int32


@given(sizes=st.lists(st.integers(0, 20), min_size=1, max_size=5), data=st.data())
def test_files_are_joined_end_to_end(tmp_path_factory, sizes, data):
    numbers = np.arange(sum(sizes) + 1)
    files = np.split(numbers, np.cumsum(sizes))
    tokens = tokens_in(tmp_path_factory.mktemp("tokens"), *files)
    start = data.draw(st.integers(0, len(numbers) - 1))
    stop = data.draw(st.integers(start + 1, len(numbers)))
    assert len(tokens) == len(numbers)
    np.testing.assert_array_equal(tokens.read(start, stop), numbers[start:stop])


def _packed(documents, length):
    """Row by row, token by token: the token, its target, its segment and its position."""
    stream = [(token, i) for i, document in enumerate(documents) for token in [*document, 0]][:-1]
    rows = []
    for start in range(0, len(stream) - 1, length):
        row, first = [], stream[start][1]
        for at in range(start, min(start + length, len(stream))):
            token, number = stream[at]
            same = at + 1 < len(stream) and stream[at + 1][1] == number
            position = sum(number == other for _, other in stream[start:at])
            row.append((token, stream[at + 1][0] if same else -1, number - first, position))
        # The empty rest is one document more, so it is attended to by no other.
        rest = row[-1][2] + 1
        rows.append(row + [(0, -1, rest, i) for i in range(length - len(row))])
    return np.array(rows)


@given(documents=DOCUMENTS, length=st.integers(2, 7))
def test_packing_covers_every_token_once_and_keeps_documents_apart(
    tmp_path_factory, documents, length
):
    stream = [token for document in documents for token in [*document, 0]][:-1]
    if len(stream) < 2:
        return
    tokens = tokens_in(tmp_path_factory.mktemp("tokens"), stream)
    batch = batch_of(np.stack(cut_sequences(tokens, length, partial=True)), separator=0)
    expected = _packed(documents, length)
    for i, name in enumerate(("tokens", "targets", "segments", "positions")):
        assert batch[name].dtype == np.int32
        np.testing.assert_array_equal(batch[name], expected[..., i], name)


@pytest.mark.parametrize("separator", [None, 0])
def test_a_row_without_tokens_has_nothing_to_train_on(separator):
    batch = batch_of(np.full((2, 9), -1, np.int32), separator)
    assert (batch["targets"] == -1).all() and (batch["tokens"] == 0).all()
    assert separator is None or (batch["segments"] == 0).all()


def test_rows_hold_whole_conversations(tmp_path):
    raw = np.arange(31, dtype=np.uint32) + 1
    raw[[2, 4, 8, 29, 30]] |= END
    rows = packed_conversations(tokens_in(tmp_path, raw, dtype="uint32"), 5)
    numbers = [[token & (END - 1) for token in row.tolist() if token >= 0] for row in rows]
    assert numbers == [[1, 2, 3, 4, 5], [6, 7, 8, 9], [10, 11, 12, 13, 14, 15], [31]]
    assert len(packed_conversations(Tokens([]), 5)) == 0


def test_batches_of_text_and_of_conversations():
    row = np.array([5, 7, 6, 7, 8], np.int32)  # 7 ends a document of text
    talk = np.array([5, 7, 6 | SAID, 7 | SAID | END, 8], np.int32) | CHAT
    short = np.array([5 | CHAT, 6 | CHAT | SAID | END, NO_TOKEN, NO_TOKEN, NO_TOKEN], np.int32)
    batch = batch_of(np.stack([row, talk, short]), 7)
    assert batch["tokens"].tolist() == [[5, 7, 6, 7], [5, 7, 6, 7], [5, 6, 0, 0]]
    assert batch["targets"].tolist() == [[7, -1, 7, -1], [-1, 6, 7, -1], [6, -1, -1, -1]]
    assert batch["segments"].tolist() == [[0, 0, 1, 1], [0, 0, 0, 0], [0, 0, 1, 1]]
    plain = batch_of(np.stack([row, talk, short]), None)
    assert plain["targets"].tolist() == [[7, 6, 7, 8], [-1, 6, 7, -1], [6, -1, -1, -1]]
