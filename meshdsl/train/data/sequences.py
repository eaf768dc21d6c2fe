"""Tokens in memory-mapped files, the sequences that they are cut into, and batches of sequences.

A sequence has `length` + 1 tokens, the last of which is the first of the next sequence. So every
token but the very first is a target once. Documents are laid end to end, and one that does not fit
goes on in the next sequence:

    tokens 0 1 2 3 4 5 6, length 3  ->  sequences [0 1 2 3] and [3 4 5 6]

Conversations are not cut: a sequence has as many whole ones as have room.
"""

from __future__ import annotations

import bisect
from array import array
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from meshdsl.errors import MeshDSLError
from meshdsl.train.data.batches import Batch, Numbered
from meshdsl.train.data.files import File

NO_TOKEN = -1  # in a sequence that is not full; and as a target that is not trained on
# Bits of a token of a conversation: that it is one, that it is trained on, and that it is the last.
# No tokenizer has so many tokens that an id reaches them.
CHAT, SAID, END = 1 << 30, 1 << 29, 1 << 28
_BLOCK = 1 << 20  # tokens that are looked through at once


class TokenRange(NamedTuple):
    """The tokens from `start` to `stop` in a file of raw ids of one dtype."""

    path: Path
    dtype: str
    start: int
    stop: int


class Tokens:
    """The tokens of some ranges, joined end to end.

    Args:
      ranges: in the order in which they are joined.
      below: what every id must be less than; None where that is known already.
    """

    def __init__(self, ranges: Sequence[TokenRange], below: int | None = None):
        self._ranges = [each for each in ranges if each.stop > each.start]
        # A plain array on the mapped memory: slicing np.memmap itself takes ten times as long.
        self._arrays = [
            np.asarray(np.memmap(each.path, each.dtype, "r"))[each.start : each.stop]
            for each in self._ranges
        ]
        self._ends = np.cumsum([len(array) for array in self._arrays], dtype=np.int64).tolist()
        self._below = below

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    def read(self, start: int, stop: int) -> np.ndarray:
        """The tokens from `start` to `stop`, as int32.

        Raises:
          MeshDSLError: an id is too large, with its file and position.
        """
        pieces = []
        first = bisect.bisect_right(self._ends, start)
        last = bisect.bisect_left(self._ends, stop)
        for i in range(first, last + 1):
            before = self._ends[i] - len(self._arrays[i])
            begin = max(start - before, 0)
            piece = self._arrays[i][begin : stop - before]
            if self._below is not None and piece.max() >= self._below:
                path, dtype, range_start, _ = self._ranges[i]
                position = range_start + begin + int(np.argmax(piece >= self._below))
                raise MeshDSLError(
                    f"`{path}`: the token at position {position:,}, read as {dtype}, "
                    f"is not less than model.vocab={self._below}"
                )
            pieces.append(piece)
        return (pieces[0] if len(pieces) == 1 else np.concatenate(pieces)).astype(np.int32)

    def sample(self, reads: int = 64, length: int = 1024) -> list[np.ndarray]:
        """At most `reads` stretches of at most `length` tokens each, spread evenly."""
        starts = np.unique(
            np.linspace(0, max(0, len(self) - length), reads).astype(np.int64)
        ).tolist()
        return [self.read(start, min(start + length, len(self))) for start in starts]


def token_file_ranges(
    files: Sequence[File], dtype: str, held_out: float
) -> tuple[list[TokenRange], list[TokenRange]]:
    """The tokens of token files: what is trained on, and the end of each file, which is held out.

    Args:
      held_out: the fraction of each file that is held out.

    Raises:
      MeshDSLError: the size of a file is not a whole number of tokens.
    """
    ranges: tuple[list[TokenRange], list[TokenRange]] = ([], [])
    size = np.dtype(dtype).itemsize
    for file in files:
        if file.size % size:
            raise MeshDSLError(
                f"`{file.path}`: {file.size:,} bytes are no whole number of {dtype} tokens "
                f"of {size} bytes"
            )
        count = file.size // size
        border = count - int(count * held_out)
        ranges[0].append(TokenRange(file.path, dtype, 0, border))
        ranges[1].append(TokenRange(file.path, dtype, border, count))
    return ranges


def cut_sequences(tokens: Tokens, length: int, partial: bool) -> Numbered:
    """The sequences that some tokens are cut into, each int32 [length + 1].

    Args:
      length: of a sequence, which has one token more.
      partial: whether the last sequence may have fewer tokens, with NO_TOKEN after the last one;
        otherwise tokens at the end that fill no sequence are left out.
    """
    targets = max(0, len(tokens) - 1)

    def read(index: int) -> np.ndarray:
        start, out = index * length, np.full(length + 1, NO_TOKEN, np.int32)
        found = tokens.read(start, min(start + length + 1, len(tokens)))
        out[: len(found)] = found
        return out

    return Numbered(-(-targets // length) if partial else targets // length, read)


def packed_conversations(tokens: Tokens, length: int) -> Numbered:
    """Sequences of whole conversations: as many in each as have room, in their order.

    One that has more tokens than a sequence ends where the sequence does. They are int32
    [length + 1], with NO_TOKEN after the last token.

    Args:
      tokens: of documents, the last of each with the bit END.
      length: of a sequence, which has one token more.
    """
    ends = _ends(tokens)
    first = _first_of_rows(ends, length + 1)

    def read(index: int) -> np.ndarray:
        out, at = np.full(length + 1, NO_TOKEN, np.int32), 0
        for document in range(first[index], first[index + 1]):
            start = int(ends[document - 1]) if document else 0
            stop = min(int(ends[document]), start + length + 1)
            out[at : at + stop - start] = tokens.read(start, stop)
            at += stop - start
        return out

    return Numbered(len(first) - 1, read)


def _ends(tokens: Tokens) -> np.ndarray:
    """Where each document ends, after its last token."""
    found = [np.zeros(0, np.int64)]
    for start in range(0, len(tokens), _BLOCK):
        read = tokens.read(start, min(start + _BLOCK, len(tokens)))
        found.append(np.flatnonzero(read & END) + start + 1)
    return np.concatenate(found)


def _first_of_rows(ends: np.ndarray, size: int) -> np.ndarray:
    """The number of the first document of each row, and behind them that of all documents."""
    lengths = np.minimum(np.diff(ends, prepend=0), size)
    first, room = array("q"), 0
    for document, length in enumerate(lengths):
        if length > room:
            first.append(document)
            room = size
        room -= length
    first.append(len(ends))
    return np.asarray(first)


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
    raw, sequences = sequences, np.where(sequences >= CHAT, sequences & (END - 1), sequences)
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
