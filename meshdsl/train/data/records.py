"""Records of bytes of any length in the cache, for data that cannot be read row by row as it is.

The rows of a parquet file are packed in groups, and text has to be tokenized. So they are unpacked
once into an entry of the cache: `records.bin` has their bytes end to end, `ends.npy` where each
ends, and further arrays have one element for each record or group of records.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple

import numpy as np

from meshdsl.parsing import parse_json
from meshdsl.train.data.cache_entry import made_once

Put = Callable[[bytes], None]
"""Adds a record."""


class Records:
    """Records by number, each read from a memory-mapped file.

    Args:
      path: of the bytes of all records.
      ends: where each ends.
    """

    def __init__(self, path: Path, ends: np.ndarray):
        self.ends = ends
        # A file without any byte cannot be mapped.
        size = int(ends[-1]) if len(ends) else 0
        self._bytes = np.asarray(np.memmap(path, np.uint8, "r")) if size else np.zeros(0, np.uint8)

    def __len__(self) -> int:
        return len(self.ends)

    def __getitem__(self, number: int) -> np.ndarray:
        """The bytes of a record, uint8."""
        return self._bytes[int(self.ends[number - 1]) if number else 0 : int(self.ends[number])]


class CachedRecords(NamedTuple):
    """What is in an entry: the records, and further arrays by name."""

    records: Records
    arrays: dict[str, np.ndarray]


def cached_records(
    entry: Path, names: Iterable[str], write: Callable[[Put], dict[str, np.ndarray]]
) -> CachedRecords:
    """The records in the folder `entry` of a cache, which is made if it is absent.

    Args:
      names: of the further arrays.
      write: is given a function that adds a record, and returns the further arrays.

    Raises:
      MeshDSLError: the folder cannot be written, or what `write` raises.
    """
    names = [*names, "ends"]

    def read() -> CachedRecords | None:
        try:
            size = parse_json((entry / "records.json").read_text())["bytes"]
            arrays = {name: np.load(entry / f"{name}.npy", allow_pickle=False) for name in names}
            if (entry / "records.bin").stat().st_size != size:
                return None
            return CachedRecords(Records(entry / "records.bin", arrays.pop("ends")), arrays)
        except (OSError, ValueError, TypeError, KeyError, EOFError):
            return None

    def make(folder: Path) -> None:
        ends, size = [], 0
        with (folder / "records.bin").open("wb") as out:

            def put(record: bytes) -> None:
                nonlocal size
                size += out.write(record)
                ends.append(size)

            arrays = {**write(put), "ends": np.asarray(ends, np.int64)}
        assert set(arrays) == set(names), (set(arrays), names)
        for name, array in arrays.items():
            np.save(folder / f"{name}.npy", array, allow_pickle=False)
        (folder / "records.json").write_text(json.dumps({"bytes": size}))

    return made_once(entry, read, make)
