"""Tables in the cache, for data that cannot be read row by row as it is.

The rows of a parquet file are packed in groups, and text has to be tokenized. So they are unpacked
once into an entry of the cache, as an Arrow file, which is memory-mapped: any row can be read, and
only rows that are read come into memory.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

from meshdsl.extras import extra
from meshdsl.train.data.cache_entry import made_once

AT_ONCE = 2**23  # bytes of rows that are tokenized, or written to a table, at once

T = TypeVar("T")


def in_groups(items: Iterable[T], size: Callable[[T], int]) -> Iterator[list[T]]:
    """The items in groups of AT_ONCE bytes, or little more.

    Args:
      size: the bytes of an item.
    """
    group: list[T] = []
    total = 0
    for item in items:
        group.append(item)
        total += size(item)
        if total >= AT_ONCE:
            yield group
            group, total = [], 0
    if group:
        yield group


def cached_table(
    entry: Path, columns: Sequence[str], rows: Callable[[], Iterable[Sequence[Any]]]
) -> Any:
    """The table of Arrow in the folder `entry` of a cache, which is made if it is absent.

    Args:
      columns: their names.
      rows: gives the rows, each with a value for every column: bytes, text, a number or an array.

    Returns:
      A `pyarrow.Table`; its columns have the types of the values in its first rows.

    Raises:
      MeshDSLError: the folder cannot be written, or what `rows` raises.
    """
    with extra("train"):
        import pyarrow
    file = entry / "rows.arrow"

    def read() -> Any:
        try:
            return pyarrow.ipc.open_file(pyarrow.memory_map(str(file))).read_all()
        except (OSError, pyarrow.ArrowException):
            return None

    def write(folder: Path) -> None:
        batches = (
            pyarrow.record_batch([*map(list, zip(*group, strict=True))], columns)
            for group in in_groups(rows(), _size)
        )
        first = next(batches, None)
        schema = pyarrow.schema([]) if first is None else first.schema
        with pyarrow.ipc.new_file(str(folder / file.name), schema) as out:
            for batch in () if first is None else itertools.chain([first], batches):
                out.write(batch)

    return made_once(entry, read, write)


def _size(row: Sequence[Any]) -> int:
    return sum(len(x) if isinstance(x, (bytes, str)) else getattr(x, "nbytes", 8) for x in row)
