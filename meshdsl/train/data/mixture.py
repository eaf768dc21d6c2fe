"""`Data`: what a run reads, as batches of rows of datasets that are mixed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from meshdsl.errors import MeshDSLError
from meshdsl.train.config import Config, Source
from meshdsl.train.data.batches import Batch, Batches, Collate, Numbered, Rows
from meshdsl.train.data.held_out import divided
from meshdsl.train.data.tokenizer import Tokenizer


class Part(NamedTuple):
    """A dataset of a mixture.

    Attributes:
      weight: its share of the mixture, relative to the other weights.
      train: the rows that are trained on.
      held_out: the rows for validation; None where there are none.
      words: what is in it, for the overview of a run.
      identity: what must be the same for a run to go on with it, in words. It is part of the state
        in a checkpoint.
      size: the rows that are trained on, in words, for an error: `3 images`.
      bytes_per_token: bytes of text in a token of what is trained on, and of what is held out;
        None where that is unknown, or the rows are not text.
    """

    name: str
    weight: float
    train: Rows
    held_out: Rows | None
    words: str
    identity: str
    size: str
    bytes_per_token: tuple[float | None, float | None] = (None, None)


def part_of(
    named: tuple[str, Source],
    config: Config,
    every: Rows,
    own: Rows | None,
    hashes: np.ndarray,
    counted: str,
    digest: str,
    more: str = "",
) -> Part:
    """A dataset of rows, of which some are held out.

    Args:
      named: the source of the rows, with its name.
      every: the rows of its paths.
      own: the rows that it brings for validation. Where it brings none, a part of `every` is.
      hashes: uint64 of each of `every`, by which a row is held out.
      counted: what a row is, in the plural: `images`.
      digest: tells these rows from others.
      more: what else is said of them in the overview of a run.
    """
    name, source = named
    numbers, rest = divided(hashes, config.data.validation if own is None else 0.0)
    chosen = lambda which: Numbered(len(which), lambda number: every[int(which[number])])
    held_out = own if own is not None else chosen(rest) if len(rest) else None
    size = f"{len(numbers):,} {counted}"
    said = f"{size}; held out {len(held_out or ()):,}{more}"
    identity = f"{len(numbers):,} of {len(every):,} {counted} ({digest})"
    return Part(name, source.weight, chosen(numbers), held_out, said, identity, size)


class Data:
    """What a run reads; made by the `open` of a task.

    Args:
      title: the first line of the overview, without the colon.
      collate: makes a batch of rows.
      fills: whether `collate` can fill up a batch with rows that do not count. Where it cannot,
        validation has whole batches only.
      threads: how many threads read batches ahead.
      tokenizer: of all datasets; None where the rows are not text.
      classes: of all datasets, in words; empty where rows have none.
      length: of a row, where rows are sequences of tokens that follow each other; else 0. Of these
        the held-out rows are small, and all are read before the run begins.

    Attributes:
      fills, tokenizer: as above.
      train_bytes_per_token: bytes of text in a token of what is trained on, the mean of all
        datasets by their weights; None where it is unknown of one of them.
      bytes_per_token: the same of the held-out rows of each dataset that has some, by name.
    """

    def __init__(
        self,
        config: Config,
        title: str,
        parts: Sequence[Part],
        collate: Collate,
        *,
        fills: bool,
        threads: int = 1,
        tokenizer: Tokenizer | None = None,
        classes: str = "",
        length: int = 0,
    ):
        self._config, self._title, self._parts = config, title, parts
        self._collate, self._threads = collate, threads
        self.fills, self.tokenizer, self._classes, self._length = fills, tokenizer, classes, length
        if not any(part.weight for part in parts):
            raise MeshDSLError("data: the weights of all datasets are 0, so nothing would be read")
        counts = [len(part.train) for part in parts]
        if sum(counts) < config.batch or not all(counts):
            raise MeshDSLError(self._too_little())
        for part in parts:
            size = self._held_out_size
            if not fills and part.held_out is not None and len(part.held_out) < size:
                raise MeshDSLError(
                    f"data: of `{part.name}` {len(part.held_out):,} are held out, which are less "
                    f"than the {size} of a batch (batch / microbatches); set a larger "
                    "data.validation, or data.validation=0 to hold out nothing"
                )
        self.bytes_per_token: Mapping[str, float | None] = {
            part.name: part.bytes_per_token[1] for part in parts if part.held_out is not None
        }
        sizes = [part.bytes_per_token[0] for part in parts]
        known, weights = [size for size in sizes if size is not None], [p.weight for p in parts]
        self.train_bytes_per_token = (
            float(np.average(known, weights=weights)) if len(known) == len(parts) else None
        )

    def _too_little(self) -> str:
        sizes = ", ".join(f"{part.size} of `{part.name}`" for part in self._parts)
        batch, of, smaller = self._config.batch, "", "batch"
        if self._length:
            of = f" of length={self._length} ({batch * self._length + 1:,} tokens)"
            smaller += " or model.length" if hasattr(self._config.model, "length") else ""
        return (
            f"data: {sizes} for training are less than one batch={batch}{of}; give more data, or "
            f"set a smaller {smaller}"
        )

    @property
    def _held_out_size(self) -> int:
        """Rows of a batch of validation."""
        return self._config.batch // self._config.microbatches

    def describe(self) -> str:
        """What is read, in words: the same on every host that reads the same."""
        total = sum(part.weight for part in self._parts)
        lines = [f"{self._title}:"]
        for part in self._parts:
            share = f" ({part.weight / total:.1%})" if len(self._parts) > 1 else ""
            lines.append(f"  {part.name}{share}: {part.words}")
        return "\n".join(lines)

    @property
    def digest(self) -> str:
        """What has to be the same on all hosts, in words."""
        tokenizer = [] if self.tokenizer is None else [self.tokenizer.digest]
        return "\n".join([self.describe(), *(part.identity for part in self._parts), *tokenizer])

    def train(self, rows: np.ndarray) -> Batches:
        """The batches to train on, without end.

        Args:
          rows: the numbers of those rows of a batch that are wanted, in that order.
        """
        config = self._config
        weights = {part.name: part.weight for part in self._parts}
        # These texts are part of the state in a checkpoint, and are compared on a resume.
        of = {part.name: part.identity for part in self._parts}
        if len(weights) > 1:
            of["the mixture"] = ", ".join(f"{name} {weight:g}" for name, weight in weights.items())
        of["the seed"] = str(config.seed)
        if self._classes:
            of["the classes"] = self._classes
        if self.tokenizer is not None:
            digest = self.tokenizer.digest[:12]
            of["the tokenizer"] = f"{self.tokenizer.vocab:,} tokens ({digest})"
        datasets = {part.name: part.train for part in self._parts}
        return Batches(
            *(datasets, weights, config.seed, config.batch, rows, self._collate),
            ahead=config.data.prefetch,
            of=of,
            threads=self._threads,
        )

    def validation(self, rows: np.ndarray) -> dict[str, Sequence[Batch]]:
        """Batches of the held-out rows of each dataset by name, the same ones every time.

        They are at most `validation.batches`, spread evenly over the rows; if that is enough for
        all of them, every row is in there once. The last batch is filled up with rows that do not
        count, or left out where there are no such rows. A batch is read when it is asked for.

        Args:
          rows: the numbers of those rows that are wanted of a batch of `batch / microbatches` rows.
        """
        most, size = self._config.validation.batches, self._held_out_size
        found: dict[str, Sequence[Batch]] = {}
        for part in self._parts:
            if part.held_out is not None:
                whole, rest = divmod(len(part.held_out), size)
                count = min(most, whole + (rest > 0 and self.fills))
                batches = _held_out_batches(part.held_out, count, size, rows, self._collate)
                found[part.name] = list(batches) if self._length else batches
        return found


def _held_out_batches(
    rows: Rows, count: int, size: int, wanted: np.ndarray, collate: Collate
) -> Numbered:
    """Some batches of held-out rows.

    Args:
      count: how many batches.
      size: rows of a batch, on all processes together.
      wanted: the numbers of the rows of a batch that this process reads.
    """
    chosen = np.linspace(0, len(rows) - 1, min(len(rows), count * size)).astype(np.int64).tolist()

    def read(index: int) -> Batch:
        places = (np.asarray(wanted) + index * size).tolist()
        return collate([rows[chosen[i]] if i < len(chosen) else None for i in places])

    return Numbered(count, read)
