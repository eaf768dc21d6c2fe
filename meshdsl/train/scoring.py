"""How likely a model finds given texts, under any layout: what evaluations are made of."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import meshdsl as md
from meshdsl.layers.loss import cross_entropy
from meshdsl.train.sample import Opened


class Text(NamedTuple):
    """Tokens of which the last ones are scored.

    Attributes:
      tokens: those that the model reads, and last those that are scored.
      scored: how many are scored; at least one token stands before them.
    """

    tokens: Sequence[int]
    scored: int


class Score(NamedTuple):
    """What a model finds of a text.

    Attributes:
      logarithm: of the probability of the scored tokens together, after those before them.
      greedy: whether each of them is the likeliest at its place.
    """

    logarithm: float
    greedy: bool


class Scorer:
    """Scores texts with an opened model that gives logits of tokens, `model(tokens)`.

    Args:
      length: tokens of the longest text that the model reads.
      batch: texts that are read at once; more where the layout asks for it.
    """

    def __init__(self, opened: Opened, length: int, batch: int = 8):
        self._opened, self._length = opened, length
        self._batch, lowered = opened.dim("batch", batch), opened.lowered(_of_targets)
        self._scores = jax.jit(lambda *given: tuple(map(opened.whole, lowered(*given))))

    def scores(self, texts: Sequence[Text]) -> list[Score]:
        """The score of each text; of a long one the beginning is left out.

        With several processes each calls this with the same texts, and gets all scores.

        Raises:
          MeshDSLError: more tokens are scored than the model can read, or none stands before them.
        """
        for text in texts:
            if not 0 < text.scored < len(text.tokens) or text.scored > self._length:
                raise md.MeshDSLError(
                    f"a text of {len(text.tokens)} tokens cannot have {text.scored} scored by a "
                    f"model of length {self._length}"
                )
        found: dict[int, Score] = {}
        # Long ones first, so that the first batch shows whether there is memory enough.
        order = sorted(range(len(texts)), key=lambda i: -len(texts[i].tokens))
        for start in range(0, len(order), self._batch.size):
            some = order[start : start + self._batch.size]
            found |= dict(zip(some, self._of_batch([texts[i] for i in some]), strict=True))
        return [found[i] for i in range(len(texts))]

    def _of_batch(self, texts: list[Text]) -> Iterator[Score]:
        read = [text.tokens[-self._length - 1 :] for text in texts]
        longest = max(map(len, read)) - 1
        # Few lengths, because a program is compiled for each.
        rounded = min(self._length, 1 << max(longest - 1, 1).bit_length())
        length = self._opened.dim("length", rounded)
        tokens = np.zeros((self._batch.size, length.size), np.int32)
        targets = np.full_like(tokens, -1)
        for row, each in enumerate(read):
            tokens[row, : len(each) - 1], targets[row, : len(each) - 1] = each[:-1], each[1:]
        dims = self._batch, length
        on_devices = [self._opened.placed(each, dims) for each in (tokens, targets)]
        nats, likeliest = map(np.asarray, self._scores(self._opened.model, *on_devices))
        for row, (each, text) in enumerate(zip(read, texts, strict=True)):
            at = slice(len(each) - 1 - text.scored, len(each) - 1)
            hits = likeliest[row, at] == targets[row, at]
            yield Score(-float(nats[row, at].astype(np.float64).sum()), bool(hits.all()))


def _of_targets(model: Any, tokens: md.Tensor, targets: md.Tensor) -> tuple[md.Tensor, md.Tensor]:
    """The nats of each target, and the likeliest token at its place."""
    more = {}
    if getattr(getattr(model, "config", None), "by_text", False):
        more["reach"] = md.sum(md.cast(targets >= 0, jnp.int32), "length")
    logits = md.cast(model(tokens, **more), jnp.float32)
    found = cross_entropy(logits, targets, "vocab"), md.argmax(logits, "vocab")
    nats, likeliest = (md.transpose(t, ("batch", "length")) for t in found)
    return nats, likeliest
