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


class Numbered(Sequence):
    """So many rows, or batches, each of which a function reads when it is asked for.

    Args:
      read: gives one by its number.
    """

    def __init__(self, count: int, read: Callable[[int], Any]):
        self._count, self._read = count, read

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, number: int) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        if not 0 <= number < self._count:
            raise IndexError(number)
        return self._read(number)


Collate = Callable[[Sequence[Any]], Batch]
"""Makes a batch of rows; None among them is a row that fills up a batch and does not count."""


class Batches:
    """An endless iterator of training batches, which are read ahead until `close()`.

    The rows of each dataset are shuffled, in each epoch anew, and those of all datasets are
    interleaved by their weights.

    Its state is how many rows were read, by all processes together, and of which data. So it is the
    same on every process and for any number of them. What comes after `set_state(state)` is what
    came after `get_state()`, also in batches of another size.

    Args:
      datasets, weights: by name.
      batch: the number of rows of a batch, on all processes together.
      rows: the numbers of those rows of a batch that are wanted, in that order.
      collate: makes a batch of the rows.
      ahead: how many batches to read ahead.
      of: the data in words, by name: what must be the same for a state to be accepted.
      threads: how many threads read, each of them another batch.
    """

    def __init__(
        self,
        datasets: Mapping[str, Rows],
        weights: Mapping[str, float],
        seed: int,
        batch: int,
        rows: Iterable[int],
        collate: Collate,
        *,
        ahead: int,
        of: Mapping[str, str],
        threads: int = 1,
    ):
        with extra("train"):
            import grain
        self._batch, self._of = batch, dict(of)
        # The row, in the order of all rows, at which batch 0 begins. It is in a list, so that what
        # reads ahead does not keep this object alive, whose end ends the reading.
        self._first = first = [0]
        seeds = (
            [seed % 2**32]
            if len(datasets) == 1
            else [zlib.crc32(f"{seed} {name}".encode()) for name in datasets]
        )
        orders = [
            grain.MapDataset.range(len(each)).shuffle(seed=seed).repeat().map(each.__getitem__)
            for each, seed in zip(datasets.values(), seeds, strict=True)
        ]
        order = (
            orders[0]
            if len(orders) == 1
            else grain.MapDataset.mix(orders, [weights[name] for name in datasets])
        )
        wanted = [int(row) for row in rows]

        def read(number: int) -> Batch:
            start = first[0] + number * batch
            return collate([order[start + row] for row in wanted])

        options = grain.ReadOptions(num_threads=min(threads, ahead), prefetch_buffer_size=ahead)
        numbers = grain.MapDataset.range(sys.maxsize // batch - 1)
        self._batches = iter(numbers.map(read).to_iter_dataset(options))

    def __iter__(self) -> Batches:
        return self

    def __next__(self) -> Batch:
        return next(self._batches)

    def get_state(self) -> dict[str, Any]:
        """The state as JSON can hold it: `rows`, the number of rows so far, and `of`."""
        done = self._batches.get_state()["next_index"]
        return {"rows": self._first[0] + done * self._batch, "of": self._of}

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
        batches, self._first[0] = divmod(state["rows"], self._batch)
        self._batches.set_state({"next_index": batches})

    def close(self) -> None:
        """End the threads that read ahead."""
        self._batches.close()
