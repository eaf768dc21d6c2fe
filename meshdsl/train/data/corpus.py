"""The data of a run: datasets that are mixed and read as batches."""

from __future__ import annotations

from functools import cached_property

import numpy as np

from meshdsl.errors import MeshDSLError
from meshdsl.train.config import Config
from meshdsl.train.data.batches import Batches, BatchRows
from meshdsl.train.data.dataset import Dataset, Report, open_datasets
from meshdsl.train.data.sequences import NO_TOKEN, Batch, Sequences, batch_of
from meshdsl.train.data.tokenizer import Tokenizer, load_tokenizer


def open_data(config: Config, report: Report = lambda text: None) -> Corpus:
    """Open the data of a run. Text that is not in the cache is tokenized here.

    Args:
      report: called with a line on work that takes a while.

    Raises:
      MeshDSLError: something cannot be read or does not fit the model. What can be found without
        tokenizing is found before anything is tokenized.
    """
    tokenizer = load_tokenizer(config.data.tokenizer)
    if tokenizer.vocab > config.model.vocab:
        raise MeshDSLError(
            f"data.tokenizer: `{tokenizer.name}` has {tokenizer.vocab:,} tokens, more than "
            f"model.vocab={config.model.vocab}; set model.vocab={tokenizer.vocab}"
        )
    return Corpus(config, tokenizer, open_datasets(config, tokenizer, report))


class Corpus:
    """What a run reads; made by `open_data`.

    Attributes:
      tokenizer: of all datasets.
      bytes_per_token: of the held-out text of each dataset that has some, by name; see
        `Dataset.bytes_per_token`.
    """

    def __init__(self, config: Config, tokenizer: Tokenizer, datasets: list[Dataset]):
        self.tokenizer = tokenizer
        self._config, self._datasets = config, datasets
        self._separator = tokenizer.separator if config.data.separate else None
        # A row that is not full needs the mask that keeps documents apart.
        self._sequences = {
            each.name: Sequences(each.tokens[0], config.model.length, partial=config.data.separate)
            for each in datasets
        }
        self._held_out = {
            each.name: Sequences(each.tokens[1], config.model.length, partial=True)
            for each in datasets
            if len(each.tokens[1]) > 1
        }
        self.bytes_per_token = {
            each.name: each.bytes_per_token(1, tokenizer)
            for each in datasets
            if each.name in self._held_out
        }
        counts = list(map(len, self._sequences.values()))
        if sum(counts) < config.batch or not all(counts):
            self._refuse_too_little()

    def _refuse_too_little(self) -> None:
        batch, length = self._config.batch, self._config.model.length
        counts = ", ".join(
            f"{len(each.tokens[0]):,} tokens of `{each.name}`" for each in self._datasets
        )
        needed = batch * length + 1
        raise MeshDSLError(
            f"data: {counts} for training are less than one batch={batch} of length={length} "
            f"({needed:,} tokens); give more data, or set a smaller batch or model.length"
        )

    @cached_property
    def train_bytes_per_token(self) -> float | None:
        """Bytes per token of what is trained on, the mean of all datasets by their weights.

        None where it is not known of one of them.
        """
        values: list[float] = []
        for dataset in self._datasets:
            value = dataset.bytes_per_token(0, self.tokenizer)
            if value is None:
                return None
            values.append(value)
        return float(np.average(values, weights=[dataset.weight for dataset in self._datasets]))

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
          rows: the numbers of those rows of a batch that are wanted, in that order.
        """
        config = self._config
        weights = {each.name: each.weight for each in self._datasets}
        # These texts are part of the state in a checkpoint, and are compared on a resume.
        of = {
            each.name: f"{len(each.tokens[0]):,} tokens in {len(self._sequences[each.name]):,} "
            f"windows of {config.model.length}"
            for each in self._datasets
        }
        if len(weights) > 1:
            of["the mixture"] = ", ".join(f"{name} {weight:g}" for name, weight in weights.items())
        of["the seed"] = str(config.seed)
        of["the tokenizer"] = f"{self.tokenizer.vocab:,} tokens ({self.tokenizer.digest[:12]})"
        return Batches(
            BatchRows(self._sequences, weights, config.seed, config.batch, rows, self._separator),
            config.data.prefetch,
            of,
        )

    def validation(self, rows: np.ndarray) -> dict[str, list[Batch]]:
        """Batches of the held-out part of each dataset by name, the same ones every time.

        They are at most `validation.batches`, spread evenly over the part; if that is enough for
        all of it, every sequence is in there once. Rows that fill up the last batch have no tokens.

        Args:
          rows: the numbers of those rows that are wanted of a batch of `batch / microbatches` rows.
        """
        size = self._config.batch // self._config.microbatches
        return {
            name: [
                self._held_out_batch(sequences, size, rows, i)
                for i in range(self._held_out_batches(sequences, size))
            ]
            for name, sequences in self._held_out.items()
        }

    def _held_out_batches(self, sequences: Sequences, size: int) -> int:
        """How many batches of `size` rows a validation has."""
        return min(self._config.validation.batches, -(-len(sequences) // size))

    def _held_out_batch(
        self, sequences: Sequences, size: int, rows: np.ndarray, batch: int
    ) -> Batch:
        count = min(len(sequences), self._held_out_batches(sequences, size) * size)
        chosen = np.linspace(0, len(sequences) - 1, count).astype(np.int64)
        out = np.full((len(rows), sequences.length + 1), NO_TOKEN, np.int32)
        for i, row in enumerate(np.asarray(rows) + batch * size):
            if row < len(chosen):
                sequences.read_into(out[i], int(chosen[row]))
        return batch_of(out, self._separator)
