"""The data of a run, mixed and read as batches."""

from __future__ import annotations

from functools import cached_property

import numpy as np

from meshdsl.errors import MeshDSLError
from meshdsl.train.config import Config
from meshdsl.train.data.batches import Batches, Rows
from meshdsl.train.data.dataset import Dataset, Report, open_datasets
from meshdsl.train.data.sequences import NOTHING, Batch, Windows, batch_of
from meshdsl.train.data.tokenizer import Tokenizer, load_tokenizer


def open_data(config: Config, report: Report = lambda text: None) -> Corpus:
    """The data of a run. Text is tokenized here, unless it was before.

    Args:
      report: told, in words, of work that takes a while.

    Raises:
      MeshDSLError: for whatever cannot be read or does not fit the model; nothing else has been done then.
    """
    tokenizer = load_tokenizer(config.data.tokenizer)
    if tokenizer.vocab > config.model.vocab:
        raise MeshDSLError(
            f"data.tokenizer: `{tokenizer.name}` has {tokenizer.vocab:,} tokens, more than model.vocab={config.model.vocab}; set model.vocab={tokenizer.vocab}"
        )
    return Corpus(config, tokenizer, open_datasets(config, tokenizer, report))


class Corpus:
    """What a run reads; see `open_data`.

    Attributes:
      tokenizer: of all its datasets.
      bytes_per_token: of the held-out text of each dataset that has some, see `Dataset.bytes_per_token`.
    """

    def __init__(self, config: Config, tokenizer: Tokenizer, datasets: list[Dataset]):
        self.tokenizer = tokenizer
        self._config, self._datasets = config, datasets
        self._separator = tokenizer.separator if config.data.separate else None
        # Only where there is a mask for it may a row have less than its length.
        self._windows = {
            each.name: Windows(each.tokens[0], config.model.length, partial=config.data.separate)
            for each in datasets
        }
        self._held_out = {
            each.name: Windows(each.tokens[1], config.model.length, partial=True)
            for each in datasets
            if len(each.tokens[1]) > 1
        }
        self.bytes_per_token = {
            each.name: each.bytes_per_token(1, tokenizer)
            for each in datasets
            if each.name in self._held_out
        }
        windows = list(map(len, self._windows.values()))
        if sum(windows) < config.batch or not all(windows):
            self._refuse_short()

    def _refuse_short(self) -> None:
        batch, length = self._config.batch, self._config.model.length
        counts = ", ".join(
            f"{len(each.tokens[0]):,} tokens of `{each.name}`" for each in self._datasets
        )
        need = batch * length + 1
        raise MeshDSLError(
            f"data: {counts} for training are less than one batch={batch} of length={length} ({need:,} tokens); "
            "give more data, or set a smaller batch or model.length"
        )

    @cached_property
    def train_bytes_per_token(self) -> float | None:
        """Of what is trained on, all datasets by their weights; None where that of one is not known."""
        each = [dataset.bytes_per_token(0, self.tokenizer) for dataset in self._datasets]
        return (
            None
            if None in each
            else float(np.average(each, weights=[dataset.weight for dataset in self._datasets]))
        )

    def describe(self) -> str:
        """What is read, in words: the same on every host that reads the same."""
        total = sum(each.weight for each in self._datasets)
        lines = [
            f"data, by the tokenizer {self.tokenizer.name} of {self.tokenizer.vocab:,} tokens:"
        ]
        for each in self._datasets:
            share = f" ({each.weight / total:.1%})" if len(self._datasets) > 1 else ""
            lines.append(f"  {each.name}{share}: {each.describe()}")
        return "\n".join(lines)

    def train(self, rows: np.ndarray) -> Batches:
        """The batches to train on, without end.

        Args:
          rows: of the whole batch, those that are wanted, in that order.
        """
        config = self._config
        weights = {each.name: each.weight for each in self._datasets}
        length = config.model.length
        of = {
            each.name: f"{len(each.tokens[0]):,} tokens in {len(self._windows[each.name]):,} windows of {length}"
            for each in self._datasets
        }
        if len(weights) > 1:
            of["the mixture"] = ", ".join(f"{name} {weight:g}" for name, weight in weights.items())
        of["the seed"] = str(config.seed)
        of["the tokenizer"] = f"{self.tokenizer.vocab:,} tokens ({self.tokenizer.digest[:12]})"
        return Batches(
            Rows(self._windows, weights, config.seed, config.batch, rows, self._separator),
            config.data.prefetch,
            of,
        )

    def validation(self, rows: np.ndarray) -> dict[str, list[Batch]]:
        """Batches of the held-out part of each dataset, at most `validation.batches` of them, spread evenly over it: every time the same ones.

        Every window is in there once, if there are not more of them. Rows that fill up the last batch have nothing to train on.

        Args:
          rows: of a batch of `batch / microbatches` rows, those that are wanted.
        """
        size = self._config.batch // self._config.microbatches
        return {
            name: [
                self._held_out_batch(windows, size, rows, i)
                for i in range(self._batches(windows, size))
            ]
            for name, windows in self._held_out.items()
        }

    def _batches(self, windows: Windows, size: int) -> int:
        return min(self._config.validation.batches, -(-len(windows) // size))

    def _held_out_batch(self, windows: Windows, size: int, rows: np.ndarray, batch: int) -> Batch:
        chosen = np.linspace(
            0, len(windows) - 1, min(len(windows), self._batches(windows, size) * size)
        ).astype(np.int64)
        out = np.full((len(rows), windows.length + 1), NOTHING, np.int32)
        for i, row in enumerate(np.asarray(rows) + batch * size):
            if row < len(chosen):
                windows.cut(int(chosen[row]), out[i])
        return batch_of(out, self._separator)
