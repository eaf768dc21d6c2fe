"""Batches of training: which rows each has, read ahead, from any batch on.

What a row is does not matter here: a sequence of tokens, an image, a pair of texts. A dataset gives
its rows by their numbers, and the batches decide which of them come when.
"""

from __future__ import annotations

import sys
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
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
    came after `get_state()`, also in batches of another size. `go_on_after(batches)` takes those of
    another mixture: each dataset goes on where it was.

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
        self._names = [name for name in datasets if weights[name]]
        # The row, in the order of all rows, at which batch 0 begins. It is in a list, so that what
        # reads ahead does not keep this object alive, whose end ends the reading; and so is how
        # many rows of each dataset were read before those of this mixture.
        self._first = first = [0]
        self._before: dict[str, int] = {}
        rows_before = self._before
        keys = {name: f"{name}: {of.get(name, '')}" for name in datasets}
        self._keys = keys  # a dataset that is cut otherwise has other rows, so its key has that too
        seeds = (
            [seed % 2**32]
            if len(datasets) == 1
            else [zlib.crc32(f"{seed} {name}".encode()) for name in datasets]
        )
        orders = {
            name: grain.MapDataset.range(len(each))
            .shuffle(seed=seed)
            .repeat()
            .map(each.__getitem__)
            for (name, each), seed in zip(datasets.items(), seeds, strict=True)
        }
        counted = [
            grain.MapDataset.range(sys.maxsize // 4).map(partial(_named, name))
            for name in self._names
        ]
        # Which dataset a row is of, and how many of its rows come before in the mixture.
        self._picks: Any = (
            counted[0]
            if len(counted) == 1
            else grain.MapDataset.mix(counted, [weights[name] for name in self._names])
        )
        picks, wanted = self._picks, [int(row) for row in rows]

        def row_at(number: int) -> Any:
            name, before = picks[number]
            return orders[name][rows_before.get(keys[name], 0) + before]

        def read(number: int) -> Batch:
            start = first[0] + number * batch
            return collate([row_at(start + row) for row in wanted])

        options = grain.ReadOptions(num_threads=min(threads, ahead), prefetch_buffer_size=ahead)
        numbers = grain.MapDataset.range(sys.maxsize // batch - 1)
        self._batches = iter(numbers.map(read).to_iter_dataset(options))

    def __iter__(self) -> Batches:
        return self

    def __next__(self) -> Batch:
        return next(self._batches)

    @property
    def rows(self) -> int:
        """How many rows were read of this mixture."""
        return self._first[0] + self._batches.get_state()["next_index"] * self._batch

    def get_state(self) -> dict[str, Any]:
        """The state as JSON can hold it.

        Returns:
          `rows`, the number of rows of this mixture so far, and `of`; and `before`, where rows were
          read before this mixture: how many, by the dataset with what it is in words.
        """
        before = {"before": dict(self._before)} if self._before else {}
        return {"rows": self.rows, "of": self._of, **before}

    def _read(self) -> dict[str, int]:
        """How many rows were read in all, as `before` has it in a state."""
        left, found = set(self._names), dict(self._before)
        for number in range(self.rows - 1, -1, -1):  # the last row of each dataset has its number
            if not left:
                break
            name, earlier = self._picks[number]
            if name in left:
                left.remove(name)
                found[self._keys[name]] = found.get(self._keys[name], 0) + earlier + 1
        return found

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
        self._begin(state["rows"], state.get("before", {}))

    def go_on_after(self, other: Batches) -> None:
        """Go on after other batches, of other weights perhaps, and of datasets cut otherwise.

        Of the same data it is what comes next in the same order. Otherwise this mixture begins, and
        each of its datasets goes on where it was when rows were last read that were cut as here.
        """
        if other._of == self._of:
            self.set_state(other.get_state())
        else:
            self._begin(0, other._read())

    def _begin(self, rows: int, before: Mapping[str, int]) -> None:
        batches, self._first[0] = divmod(rows, self._batch)
        self._before.clear()
        self._before.update(before)
        self._batches.set_state({"next_index": batches})

    def close(self) -> None:
        """End the threads that read ahead."""
        self._batches.close()


def _named(name: str, number: int) -> tuple[str, int]:
    return name, number
