"""Sequences of tokens: the rows of a batch, and the arrays that a batch is made of.

A sequence has `length` + 1 tokens, the last of which is the first of the next sequence. So every
token but the very first is a target once. Documents are laid end to end, and one that does not fit
goes on in the next sequence:

    tokens 0 1 2 3 4 5 6, length 3  ->  sequences [0 1 2 3] and [3 4 5 6]
"""

from __future__ import annotations

import numpy as np

from meshdsl.train.data.batches import Batch
from meshdsl.train.data.tokens import Tokens

NO_TOKEN = -1  # in a sequence that is not full; and as a target that is not trained on
# Bits of a token of a conversation: that it is one, that it is trained on, and that it is the last.
# No tokenizer has so many tokens that an id reaches them.
CHAT, SAID, END = 1 << 30, 1 << 29, 1 << 28


class Sequences:
    """The sequences that some tokens are cut into.

    Args:
      length: of a sequence, which has one token more.
      partial: whether the last sequence may have fewer tokens; otherwise tokens at the end that
        fill no sequence are left out.
    """

    def __init__(self, tokens: Tokens, length: int, partial: bool):
        self.tokens, self.length = tokens, length
        targets = max(0, len(tokens) - 1)
        self.count = -(-targets // length) if partial else targets // length

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> np.ndarray:
        """Sequence `index`, int32 [length + 1], with NO_TOKEN after the last token."""
        start = index * self.length
        out = np.full(self.length + 1, NO_TOKEN, np.int32)
        tokens = self.tokens.read(start, min(start + self.length + 1, len(self.tokens)))
        out[: len(tokens)] = tokens
        return out


def batch_of(sequences: np.ndarray, separator: int | None) -> Batch:
    """The arrays of a batch, from its sequences [rows, length + 1]; each is int32 [rows, length].

    They are `tokens`, `targets`, and with a separator `segments` and `positions`.

    Args:
      separator: the token that ends a document, if documents in a row are to be kept apart. Then
        the batch has `segments` (which document of its row each token is of) and `positions`
        (counted from where that document begins in the row), and the target of a document's last
        token is NO_TOKEN. The empty rest of a row counts as one more document.
    """
    of_chat = (sequences >= CHAT).any()
    raw, sequences = sequences, _ids(sequences) if of_chat else sequences
    tokens, targets = np.maximum(sequences[:, :-1], 0), np.ascontiguousarray(sequences[:, 1:])
    if of_chat:
        targets[(raw[:, 1:] >= CHAT) & (raw[:, 1:] & SAID == 0)] = NO_TOKEN
    if separator is None:
        return {"tokens": tokens, "targets": targets}
    ends = sequences == separator
    if of_chat:
        ends = np.where(raw >= CHAT, raw & END != 0, ends)
    missing = sequences == NO_TOKEN
    begins = np.zeros(tokens.shape, bool)  # a document, or the empty rest
    begins[:, 1:] = ends[:, :-2] | (missing[:, 1:-1] & ~missing[:, :-2])
    index = np.arange(tokens.shape[1], dtype=np.int32)
    return {
        "tokens": tokens,
        "targets": np.where(ends[:, :-1], np.int32(NO_TOKEN), targets),
        "segments": np.cumsum(begins, axis=1, dtype=np.int32),
        "positions": index - np.maximum.accumulate(np.where(begins, index, 0), axis=1),
    }


def _ids(sequences: np.ndarray) -> np.ndarray:
    """The ids of tokens, some of which may have the bits of a conversation."""
    return np.where(sequences >= CHAT, sequences & (END - 1), sequences)
