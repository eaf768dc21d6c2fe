"""Folders of a cache that are made once, and complete or absent; and tables in such folders.

A folder, called an entry, is written under another name and renamed when it is complete, so a
process that is killed leaves nothing that could be read by half. Processes that share a file system
wait for the one that writes. Where locks do not work, each writes a folder of its own and the first
to rename it wins.

Tables are for data that cannot be read row by row as it is: the rows of a parquet file are packed
in groups, and text has to be tokenized. Such rows are unpacked once into an Arrow file, which is
memory-mapped: any row can be read, and only rows that are read come into memory.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import itertools
import json
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

from meshdsl.errors import system_errors_say
from meshdsl.extras import extra
from meshdsl.train.config import Config
from meshdsl.train.data.files import File

AT_ONCE = 2**23  # bytes of rows that are tokenized, or written to a table, at once
_DAY = 24 * 3600  # seconds

T = TypeVar("T")
Report = Callable[[str], None]
"""Is told, in words, of work that takes a while."""


def cache_folder(config: Config) -> Path:
    """The folder of the cache: `data.cache`, or one in the user's cache."""
    if config.data.cache:
        return Path(config.data.cache)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "meshdsl", "tokens")


def entry_name(files: Sequence[File], *how: Any) -> str:
    """The name of an entry: a hash of the files and of all else that its content depends on.

    Args:
      how: texts and numbers.
    """
    which = [[str(file.path.resolve()), *file[1:]] for file in files]
    first, *rest = how
    return hashlib.sha256(json.dumps([first, which, *rest]).encode()).hexdigest()[:32]


def made_once(entry: Path, read: Callable[[], T | None], write: Callable[[Path], None]) -> T:
    """What is in the folder `entry`, which is made if it is absent or damaged.

    Args:
      read: gives the content of the entry, or None if it is absent or incomplete.
      write: writes the content to a folder.

    Raises:
      MeshDSLError: the folder cannot be written, or what `write` raises.
    """
    found = read()
    if found is not None:
        return found
    with system_errors_say(
        f"data.cache: `{entry.parent}` cannot be written", "choose another folder"
    ):
        entry.parent.mkdir(parents=True, exist_ok=True)
        with _locked(entry):
            found = read()  # another process may have made it meanwhile
            if found is None:
                _make(entry, read, write)
                found = read()
    assert found is not None, entry
    return found


def _make(entry: Path, read: Callable[[], Any], write: Callable[[Path], None]) -> None:
    _remove_leftovers(entry)
    unfinished = Path(tempfile.mkdtemp(prefix=f"{entry.name}.partial-", dir=entry.parent))
    try:
        write(unfinished)
        for path in unfinished.rglob("*"):
            if path.is_file() and not path.is_symlink():
                # A power failure cannot leave a renamed folder with an empty file.
                with open(path, "rb") as file:
                    os.fsync(file.fileno())
        if entry.exists() and read() is None:
            shutil.rmtree(entry, ignore_errors=True)  # it is damaged
        try:
            unfinished.rename(entry)
        except OSError:
            if read() is None:
                raise
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


@contextlib.contextmanager
def _locked(entry: Path) -> Iterator[None]:
    """Let one process at a time in, where the file system has locks."""
    with open(f"{entry}.lock", "w") as lock:
        with contextlib.suppress(OSError):
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _remove_leftovers(entry: Path) -> None:
    """Remove what killed processes left of this entry, if it is older than a day.

    What is younger may be the work of another host.
    """
    for path in entry.parent.glob(f"{entry.name}.partial-*"):
        with contextlib.suppress(OSError):
            if time.time() - path.stat().st_mtime > _DAY:
                shutil.rmtree(path, ignore_errors=True)


# -- tables ----------------------------------------------------------------------------------------


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
