"""The order of training: which windows a batch has, read ahead, from any batch on."""

from __future__ import annotations

import bisect
import sys
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

import grain
import numpy as np

from meshdsl.errors import MeshDSLError
from meshdsl.train.data.sequences import Batch, Windows, batch_of


class Batches:
    """An endless iterator of training batches, read ahead by one thread, which `close()` ends.

    Its state is how many rows were read, of all processes together, and what they were of. So it is the same on every process and for any number of them, and what
    comes after `set_state(state)` is what came after `get_state()`, also in batches of another size.
    """

    def __init__(self, rows: Rows, ahead: int, of: Mapping[str, str]):
        self._of, self._rows = dict(of), rows
        self._batches = iter(
            grain.MapDataset.source(rows).to_iter_dataset(
                grain.ReadOptions(num_threads=1, prefetch_buffer_size=ahead)
            )
        )

    def __iter__(self) -> Batches:
        return self

    def __next__(self) -> Batch:
        return next(self._batches)

    def get_state(self) -> dict[str, Any]:
        return {
            "rows": self._rows.first + self._batches.get_state()["next_index"] * self._rows.batch,
            "of": self._of,
        }

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Go on where `get_state` was called.

        Raises:
          MeshDSLError: that was with other data: batches would be skipped or repeated.
        """
        for name in [*self._of, *state["of"]]:
            there, here = (of.get(name, "absent") for of in (state["of"], self._of))
            if there != here:
                raise MeshDSLError(
                    f"data: this run began with other data: {name} was {there} and is {here}; go on with the same files, tokenizer and seed, "
                    "or begin another run from its parameters by --warm-start"
                )
        batches, self._rows.first = divmod(state["rows"], self._rows.batch)
        self._batches.set_state({"next_index": batches})

    def close(self) -> None:
        self._batches.close()


class Rows(grain.sources.RandomAccessDataSource):
    """Some rows of all batches, by the number of the batch.

    Each dataset is shuffled anew in each epoch, and windows of all are interleaved by their weights.

    Args:
      windows, weights: of the datasets, by name.
      batch: rows of a whole one.
      rows: those that are wanted of it.
      separator: see `batch_of`.

    Attributes:
      first: the row at which the first batch begins.
    """

    first = 0

    def __init__(
        self,
        windows: Mapping[str, Windows],
        weights: Mapping[str, float],
        seed: int,
        batch: int,
        rows: Sequence[int],
        separator: int | None,
    ):
        self._windows, self.batch, self._rows, self._separator = (
            list(windows.values()),
            batch,
            [int(row) for row in rows],
            separator,
        )
        self._ends = np.cumsum([len(each) for each in self._windows]).tolist()
        seeds = (
            [seed % 2**32]
            if len(windows) == 1
            else [zlib.crc32(f"{seed} {name}".encode()) for name in windows]
        )
        orders = [
            grain.MapDataset.range(end - len(each), end).shuffle(seed=seed).repeat()
            for each, end, seed in zip(self._windows, self._ends, seeds, strict=True)
        ]
        # numbers of windows, those of all datasets end to end
        self._order = (
            orders[0]
            if len(orders) == 1
            else grain.MapDataset.mix(orders, [weights[name] for name in windows])
        )

    def __len__(self) -> int:
        return sys.maxsize // self.batch - 1

    def __getitem__(self, index: int) -> Batch:
        out = np.empty((len(self._rows), self._windows[0].length + 1), np.int32)
        for i, row in enumerate(self._rows):
            window = self._order[self.first + index * self.batch + row]
            which = bisect.bisect_right(self._ends, window)
            self._windows[which].cut(window - self._ends[which] + len(self._windows[which]), out[i])
        return batch_of(out, self._separator)

    def __repr__(self) -> str:
        return f"Rows({len(self._rows)} of {self.batch})"
