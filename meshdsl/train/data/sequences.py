"""Windows of tokens: what a row of a batch is cut from, and what is computed of it.

A window of `length` + 1 tokens shares one with the next, so every token but the first is a target once. Documents lie end to end and are cut where a window ends.
"""

from __future__ import annotations

import numpy as np

from meshdsl.train.data.tokens import Tokens

Batch = dict[
    str, np.ndarray
]  # `tokens`, `targets`, perhaps `segments` and `positions`: each int32 [rows, length]
NOTHING = -1  # where a window has no token, and as a target that is not trained on


class Windows:
    """The windows of some tokens.

    Args:
      partial: the last one may have fewer tokens, else those that fill none are left out.
    """

    def __init__(self, tokens: Tokens, length: int, partial: bool):
        self.tokens, self.length = tokens, length
        targets = max(0, len(tokens) - 1)
        self.count = -(-targets // length) if partial else targets // length

    def __len__(self) -> int:
        return self.count

    def cut(self, index: int, out: np.ndarray) -> None:
        """Write window `index` to `out` [length + 1]; NOTHING behind the last token."""
        start = index * self.length
        found = self.tokens.read(start, min(start + self.length + 1, len(self.tokens)))
        out[: len(found)] = found
        out[len(found) :] = NOTHING


def batch_of(windows: np.ndarray, separator: int | None) -> Batch:
    """A batch from windows [rows, length + 1].

    Args:
      separator: the token that ends a document, where documents are to be kept apart: then the batch says which document of its row each token is of,
        counts its position in there, and no target is a token of another document. What is behind the last token counts as one more document.
    """
    tokens, targets = np.maximum(windows[:, :-1], 0), np.ascontiguousarray(windows[:, 1:])
    if separator is None:
        return {"tokens": tokens, "targets": targets}
    ends = windows == separator
    missing = windows == NOTHING
    first = np.zeros(tokens.shape, bool)
    first[:, 1:] = ends[:, :-2] | (missing[:, 1:-1] & ~missing[:, :-2])
    at = np.arange(tokens.shape[1], dtype=np.int32)
    return {
        "tokens": tokens,
        "targets": np.where(ends[:, :-1], np.int32(NOTHING), targets),
        "segments": np.cumsum(first, axis=1, dtype=np.int32),
        "positions": at - np.maximum.accumulate(np.where(first, at, 0), axis=1),
    }
