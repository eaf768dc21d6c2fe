"""What files of text, JSONL and tables have: rows with columns, and documents.

Rows and documents come one after the other and long documents block by block, so little of a file
is in memory at once.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from meshdsl.errors import MeshDSLError, nearest, quote
from meshdsl.extras import extra
from meshdsl.parsing import parse_json
from meshdsl.train.data.files import ENDINGS, File, failures_say

BLOCK = 2**18  # bytes of a text that are read at once
_AT_ONCE = 64  # rows of a parquet file, each of which may be an image
Document = Iterable[bytes]  # its text in UTF-8, block by block; it can be read more than once


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


def documents(file: File, field: str) -> Iterator[Document]:
    """The documents of a file that are not empty.

    Args:
      field: the field of each JSON object, or the column of a table, that holds the text.

    Raises:
      MeshDSLError: something cannot be read, with the file and the line or row.
    """
    if file.format != "text":
        yield from ([text] for (text,) in read_texts(file, [field]) if text)
        return
    with failures_say(file.path):
        if file.path.stat().st_size > BLOCK:
            yield _LongText(file.path)
        elif content := file.path.read_bytes():
            yield [content]


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


class _LongText:
    """A long text, in blocks that end with a line, else with a word, else with a character.

    So hardly a token is cut in two between blocks, and no character.
    """

    def __init__(self, path: Path):
        self._path = path

    def __iter__(self) -> Iterator[bytes]:
        rest = b""
        with failures_say(self._path), self._path.open("rb") as file:
            while read := file.read(BLOCK):
                block = rest + read
                end = block.rfind(b"\n") + 1 or block.rfind(b" ") + 1 or _last_character(block)
                rest = block[end:]
                yield block[:end]
        if rest:
            yield rest


def _last_character(block: bytes) -> int:
    """Where the last character of a block begins, which may be incomplete.

    Where the end of the block is no UTF-8, this is the end.
    """
    ends = range(len(block) - 1, max(len(block) - 5, 0), -1)
    return next((i for i in ends if block[i] & 0xC0 != 0x80), len(block))
