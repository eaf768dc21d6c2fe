"""Batches of training: which rows each has, read ahead, from any batch on.

What a row is does not matter here: a sequence of tokens, an image, a pair of texts. A dataset gives
its rows by their numbers, and the batches decide which of them come when.
"""

from __future__ import annotations

import sys
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from meshdsl.errors import MeshDSLError
from meshdsl.extras import extra

Batch = dict[str, np.ndarray]
"""What one process reads of a batch: an array [rows, ...] for each field, by name."""


class Rows(Protocol):
    """The rows of a dataset, in any order: how many there are, and each by its number."""

    def __len__(self) -> int: ...

    def __getitem__(self, number: int, /) -> Any: ...


Collate = Callable[[Sequence[Any]], Batch]
"""Makes a batch of rows; None among them is a row that fills up a batch and does not count."""


class Batches:
    """An endless iterator of training batches, which are read ahead until `close()`.

    Its state is how many rows were read, by all processes together, and of which data. So it is the
    same on every process and for any number of them. What comes after `set_state(state)` is what
    came after `get_state()`, also in batches of another size.

    Args:
      rows: gives the batches by their numbers.
      ahead: how many batches to read ahead.
      of: the data in words, by name: what must be the same for a state to be accepted.
      threads: how many threads read, each of them another batch.
    """

    def __init__(self, rows: BatchRows, ahead: int, of: Mapping[str, str], threads: int = 1):
        with extra("train"):
            import grain
        self._of, self._rows = dict(of), rows
        self._batches = iter(
            grain.MapDataset.source(rows).to_iter_dataset(
                grain.ReadOptions(num_threads=min(threads, ahead), prefetch_buffer_size=ahead)
            )
        )

    def __iter__(self) -> Batches:
        return self

    def __next__(self) -> Batch:
        return next(self._batches)

    def get_state(self) -> dict[str, Any]:
        """The state as JSON can hold it: `rows`, the number of rows so far, and `of`."""
        return {
            "rows": self._rows.first + self._batches.get_state()["next_index"] * self._rows.batch,
            "of": self._of,
        }

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Go on where `get_state` gave this state.

        Raises:
          MeshDSLError: the state is of other data, so batches would be skipped or repeated.
        """
        for name in [*self._of, *state["of"]]:
            there, here = (of.get(name, "absent") for of in (state["of"], self._of))
            if there != here:
                raise MeshDSLError(
                    f"data: this run began with other data: {name} was {there} and is {here}; "
                    "go on with the same files, tokenizer and seed, or begin another run from its "
                    "parameters by --warm-start"
                )
        batches, self._rows.first = divmod(state["rows"], self._rows.batch)
        self._batches.set_state({"next_index": batches})

    def close(self) -> None:
        """End the threads that read ahead."""
        self._batches.close()


class BatchRows:
    """The rows of every batch that one process wants, by the number of the batch.

    The rows of each dataset are shuffled, in each epoch anew, and those of all datasets are
    interleaved by their weights.

    Args:
      datasets, weights: by name.
      batch: the number of rows of a batch, on all processes together.
      rows: the numbers of those rows that are wanted.
      collate: makes a batch of the rows.

    Attributes:
      first: the row, in the order of all rows, at which batch 0 begins.
    """

    first = 0

    def __init__(
        self,
        datasets: Mapping[str, Rows],
        weights: Mapping[str, float],
        seed: int,
        batch: int,
        rows: Iterable[int],
        collate: Collate,
    ):
        with extra("train"):
            import grain
        self.batch, self._rows, self._collate = batch, [int(row) for row in rows], collate
        seeds = (
            [seed % 2**32]
            if len(datasets) == 1
            else [zlib.crc32(f"{seed} {name}".encode()) for name in datasets]
        )
        orders = [
            grain.MapDataset.range(len(each)).shuffle(seed=seed).repeat().map(each.__getitem__)
            for each, seed in zip(datasets.values(), seeds, strict=True)
        ]
        self._order = (
            orders[0]
            if len(orders) == 1
            else grain.MapDataset.mix(orders, [weights[name] for name in datasets])
        )

    def __len__(self) -> int:
        return sys.maxsize // self.batch - 1

    def __getitem__(self, index: int) -> Batch:
        start = self.first + index * self.batch
        return self._collate([self._order[start + row] for row in self._rows])

    def __repr__(self) -> str:
        return f"BatchRows({len(self._rows)} of {self.batch})"
