"""The data of the task `text`: sequences of tokens of documents."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property

import numpy as np

from meshdsl.tensor import Tensor
from meshdsl.train.config import Config
from meshdsl.train.data.batches import Batch
from meshdsl.train.data.conversations import PackedConversations
from meshdsl.train.data.dataset import Dataset
from meshdsl.train.data.mixture import Data, Part
from meshdsl.train.data.sequences import NO_TOKEN, Sequences, batch_of
from meshdsl.train.data.tokenizer import Tokenizer


class Corpus(Data):
    """What a run on text reads.

    Args:
      fields: the batch in the abstract; its `tokens` say how long a sequence is.
    """

    # Declared by `Data`, where there may be none.
    tokenizer: Tokenizer  # pyright: ignore[reportIncompatibleVariableOverride]

    def __init__(
        self,
        config: Config,
        fields: Mapping[str, Tensor],
        tokenizer: Tokenizer,
        datasets: Sequence[Dataset],
    ):
        self.tokenizer, self._datasets = tokenizer, datasets
        self._length = fields["tokens"].dims[-1].size
        self._names, separate = list(fields), config.data.separate
        self._separator = tokenizer.separator if separate else None
        parts = [_part(dataset, self._length, separate) for dataset in datasets]
        self.bytes_per_token = {
            dataset.name: dataset.bytes_per_token(1, tokenizer)
            for dataset, part in zip(datasets, parts, strict=True)
            if part.held_out is not None
        }
        super().__init__(
            config,
            f"data, by the tokenizer {tokenizer.name} of {tokenizer.vocab:,} tokens",
            parts,
            self._batch_of,
            fills=True,
            also={"the tokenizer": f"{tokenizer.vocab:,} tokens ({tokenizer.digest[:12]})"},
        )

    def _batch_of(self, rows: Sequence[np.ndarray | None]) -> Batch:
        sequences = np.full((len(rows), self._length + 1), NO_TOKEN, np.int32)
        for i, row in enumerate(rows):
            if row is not None:
                sequences[i] = row
        batch = batch_of(sequences, self._separator)
        return {name: array for name, array in batch.items() if name in self._names}

    def _too_little(self) -> str:
        batch, length = self._config.batch, self._length
        counts = ", ".join(f"{part.size} of `{part.name}`" for part in self._parts)
        smaller = "batch or model.length" if hasattr(self._config.model, "length") else "batch"
        return (
            f"data: {counts} for training are less than one batch={batch} of length={length} "
            f"({batch * length + 1:,} tokens); give more data, or set a smaller {smaller}"
        )

    @property
    def digest(self) -> str:
        return f"{self.describe()}\n{self.tokenizer.digest}"

    def validation(self, rows: np.ndarray) -> dict[str, Sequence[Batch]]:
        # They are small, and an id that is too large comes up before the run begins.
        return {name: list(batches) for name, batches in super().validation(rows).items()}

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


def _part(dataset: Dataset, length: int, separate: bool) -> Part:
    # A row that is not full needs the mask that keeps documents apart.
    train = Sequences(dataset.tokens[0], length, partial=separate)
    held_out = Sequences(dataset.tokens[1], length, partial=True)
    if dataset.of_chat:
        train, held_out = (PackedConversations(each, length) for each in dataset.tokens)
    size = f"{len(dataset.tokens[0]):,} tokens"
    return Part(
        dataset.name,
        dataset.weight,
        train,
        held_out if len(held_out) else None,
        dataset.describe(),
        f"{size} in {len(train):,} windows of {length}",
        size,
    )
