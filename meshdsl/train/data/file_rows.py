"""The rows of files of JSONL, parquet and Arrow: of each some columns, and where it stands.

Rows come one after the other, so few of them are in memory at once.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from meshdsl.errors import MeshDSLError, nearest, quote
from meshdsl.extras import extra
from meshdsl.parsing import parse_json
from meshdsl.train.data.files import ENDINGS, File

_AT_ONCE = 64  # rows of a parquet file, each of which may be an image


class Row(NamedTuple):
    """One row of a file.

    Attributes:
      where: the file, and the line or row, for errors.
      values: of the columns that were asked for.
      line: the row as it stands in a file of JSONL; empty in a table.
    """

    where: str
    values: tuple[Any, ...]
    line: bytes = b""


def read_rows(file: File, columns: Sequence[str]) -> Iterator[Row]:
    """Some columns of each row of a file.

    Args:
      columns: of a table; of JSONL the fields of each object.

    Raises:
      MeshDSLError: something cannot be read, with the file and the line or row.
    """
    kind = ENDINGS.get(file.path.suffix) if file.format == "chat" else file.format
    with failures_say(file.path):
        if kind in ("parquet", "arrow"):
            yield from _rows_of_table(file.path, kind, columns)
        else:
            yield from _rows_of_lines(file.path, columns)


def read_texts(file: File, columns: Sequence[str]) -> Iterator[tuple[bytes, ...]]:
    """The same of columns that hold text, in UTF-8.

    Raises:
      MeshDSLError: as `read_rows`, or a value is not text.
    """
    for row in read_rows(file, columns):
        for column, value in zip(columns, row.values, strict=True):
            if not isinstance(value, str):
                raise MeshDSLError(f"{row.where}: `{column}` is {quote(value)}, not text")
        yield tuple(value.encode("utf-8", "replace") for value in row.values)


@contextmanager
def failures_say(path: Path) -> Iterator[None]:
    """Make a MeshDSLError of what fails while a file is read."""
    try:
        yield
    except OSError as error:
        why = error.strerror or " ".join(str(error).split())
        raise MeshDSLError(f"`{path}` cannot be read: {why}") from None


def _rows_of_lines(path: Path, columns: Sequence[str]) -> Iterator[Row]:
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            if line := line.strip():
                where = f"`{path}` line {number}"
                found = _object_in(line, columns[0], where)
                for column in columns:
                    if column not in found:
                        raise MeshDSLError(f"{where}: no field `{column}`{nearest(column, found)}")
                yield Row(where, tuple(found[column] for column in columns), line)


def _object_in(line: bytes, column: str, where: str) -> dict[str, Any]:
    try:
        found = parse_json(line)
    except UnicodeDecodeError as error:
        raise MeshDSLError(f"{where}: not UTF-8: {error.reason} at byte {error.start}") from None
    except ValueError as error:
        raise MeshDSLError(f"{where}: not JSON: {error}") from None
    if not isinstance(found, dict):
        raise MeshDSLError(f"{where}: expected an object with a field `{column}`")
    return found


def _rows_of_table(path: Path, kind: str, columns: Sequence[str]) -> Iterator[Row]:
    with extra("train", f"`{path}`"):
        import pyarrow
        from pyarrow import parquet
    number = 0
    try:
        is_parquet = kind == "parquet"
        with parquet.ParquetFile(path) if is_parquet else pyarrow.memory_map(str(path)) as file:
            if is_parquet:
                known = file.schema_arrow.names
                batches = file.iter_batches(batch_size=_AT_ONCE, columns=list(columns))
            else:
                known, batches = _arrow_batches(file, pyarrow)
            for column in columns:
                if column not in known:
                    raise MeshDSLError(f"`{path}`: no column `{column}`{nearest(column, known)}")
            for batch in batches:
                batch.validate(full=True)  # Arrow itself trusts what a file says of its own parts
                cells = [batch.column(column).to_pylist() for column in columns]
                for values in zip(*cells, strict=True):
                    number += 1
                    yield Row(f"`{path}` row {number}", values)
    except (pyarrow.ArrowException, UnicodeDecodeError) as error:
        why = " ".join(str(error).split())
        called = "parquet" if kind == "parquet" else "Arrow"
        raise MeshDSLError(f"`{path}`: not {called}, or damaged: {why}") from None


def _arrow_batches(source: Any, pyarrow: Any) -> tuple[list[str], Iterator[Any]]:
    """The columns and batches of an Arrow file, which is a stream where `datasets` wrote it."""
    is_file = source.read(6) == b"ARROW1"
    source.seek(0)
    if not is_file:
        reader = pyarrow.ipc.open_stream(source)
        return reader.schema.names, iter(reader)
    reader = pyarrow.ipc.open_file(source)
    return reader.schema.names, map(reader.get_batch, range(reader.num_record_batches))
