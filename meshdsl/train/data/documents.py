"""The documents in files of text, JSONL and parquet.

They come one after the other and long ones block by block, so little text is in memory at once.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from meshdsl.errors import MeshDSLError, nearest
from meshdsl.extras import extra
from meshdsl.parsing import parse_json
from meshdsl.train.data.files import File

BLOCK = 2**18  # bytes of a text that are read at once
Document = Iterable[bytes]  # its text in UTF-8, block by block; it can be read more than once


def documents(file: File, field: str) -> Iterator[Document]:
    """The documents of a file that are not empty.

    Args:
      field: the field of each JSON object, or the column of a parquet file, that holds the text.

    Raises:
      MeshDSLError: something cannot be read, with the file and the line or row.
    """
    if file.format != "text":
        yield from ([text] for (text,) in text_rows(file, [field]) if text)
        return
    with _failures_say(file.path):
        yield from _text(file.path)


def text_rows(file: File, fields: Sequence[str]) -> Iterator[tuple[bytes, ...]]:
    """Some texts of each line of a JSONL file, or of each row of a parquet file, as UTF-8.

    Args:
      fields: of each JSON object, or the columns of the parquet file, that hold the texts.

    Raises:
      MeshDSLError: something cannot be read, with the file and the line or row.
    """
    with _failures_say(file.path):
        yield from (_jsonl if file.format == "jsonl" else _parquet)(file.path, fields)


@contextmanager
def _failures_say(path: Path) -> Iterator[None]:
    """Make a MeshDSLError of what fails while a file is read."""
    try:
        yield
    except OSError as error:
        why = error.strerror or " ".join(str(error).split())
        raise MeshDSLError(f"`{path}` cannot be read: {why}") from None


def is_held_out(document: Document, fraction: float) -> bool:
    """Whether a document is for validation, as about `fraction` of all documents are.

    The hash of its bytes decides, so copies of a document are on the same side.
    """
    if not fraction:
        return False
    digest = hashlib.sha256()
    for block in document:
        digest.update(block)
    return int.from_bytes(digest.digest()[:8], "big") < fraction * 2**64


def _text(path: Path) -> Iterator[Document]:
    if path.stat().st_size > BLOCK:
        yield _LongText(path)
    elif content := path.read_bytes():
        yield [content]


class _LongText:
    """A long text, in blocks that end with a line, else with a word, else with a character.

    So hardly a token is cut in two between blocks, and no character.
    """

    def __init__(self, path: Path):
        self._path = path

    def __iter__(self) -> Iterator[bytes]:
        rest = b""
        with self._path.open("rb") as file:
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


def _jsonl(path: Path, fields: Sequence[str]) -> Iterator[tuple[bytes, ...]]:
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            if line.strip():
                yield _texts_of_line(line, fields, f"`{path}` line {number}")


def _texts_of_line(line: bytes, fields: Sequence[str], where: str) -> tuple[bytes, ...]:
    try:
        value = parse_json(line)
    except UnicodeDecodeError as error:
        raise MeshDSLError(f"{where}: not UTF-8: {error.reason} at byte {error.start}") from None
    except ValueError as error:
        raise MeshDSLError(f"{where}: not JSON: {error}") from None
    if not isinstance(value, dict):
        raise MeshDSLError(f"{where}: expected an object with a field `{fields[0]}`")
    for field in fields:
        if field not in value:
            raise MeshDSLError(f"{where}: no field `{field}`{nearest(field, value)}")
        if not isinstance(value[field], str):
            raise MeshDSLError(f"{where}: the field `{field}` is not text")
    return tuple(value[field].encode("utf-8", "replace") for field in fields)


def _parquet(path: Path, fields: Sequence[str]) -> Iterator[tuple[bytes, ...]]:
    with parquet_batches(path, fields, rows=1024, text=True) as batches:
        row = 0
        for batch in batches:
            for texts in zip(*(batch.column(field).to_pylist() for field in fields), strict=True):
                row += 1
                for field, text in zip(fields, texts, strict=True):
                    if text is None:
                        raise MeshDSLError(
                            f"`{path}` row {row}: the column `{field}` is empty there; "
                            "expected text"
                        )
                yield tuple(text.encode() for text in texts)


@contextmanager
def parquet_batches(
    path: Path, columns: Sequence[str], *, rows: int, text: bool
) -> Iterator[Iterator[Any]]:
    """Some columns of a parquet or Arrow file, in batches of rows; needs pyarrow.

    Args:
      rows: how many a batch of parquet has; in an Arrow file the batches are made already.
      text: whether the columns have to be text.

    Raises:
      MeshDSLError: pyarrow is missing, the file is damaged, or it has no such columns.
    """
    with extra("parquet", f"`{path}`"):
        import pyarrow
        from pyarrow import parquet
    kind = "Arrow" if path.suffix == ".arrow" else "parquet"
    try:
        if kind == "Arrow":
            with pyarrow.memory_map(str(path)) as source:
                reader, batches = _arrow_batches(source, pyarrow)
                _check_columns(path, reader.schema, columns, text, pyarrow)
                yield batches
        else:
            with parquet.ParquetFile(path) as file:
                _check_columns(path, file.schema_arrow, columns, text, pyarrow)
                yield file.iter_batches(batch_size=rows, columns=list(columns))
    except (pyarrow.ArrowException, UnicodeDecodeError) as error:
        why = " ".join(str(error).split())
        raise MeshDSLError(f"`{path}`: not {kind}, or damaged: {why}") from None


def _arrow_batches(source: Any, pyarrow: Any) -> tuple[Any, Iterator[Any]]:
    """What reads an Arrow file, which may be a stream, as `datasets` writes it; and its batches."""
    is_file = source.read(6) == b"ARROW1"
    source.seek(0)
    if not is_file:
        reader = pyarrow.ipc.open_stream(source)
        return reader, iter(reader)
    reader = pyarrow.ipc.open_file(source)
    return reader, (reader.get_batch(i) for i in range(reader.num_record_batches))


def _check_columns(
    path: Path, schema: Any, columns: Sequence[str], text: bool, pyarrow: Any
) -> None:
    """Raise a MeshDSLError unless a table has these columns, as text where that is asked for."""
    for column in columns:
        if column not in schema.names:
            raise MeshDSLError(f"`{path}`: no column `{column}`{nearest(column, schema.names)}")
        if text:
            _check_text(path, schema, column, pyarrow)


def _check_text(path: Path, schema: Any, column: str, pyarrow: Any) -> None:
    """Raise a MeshDSLError unless a column is text."""
    kind = schema.field(column).type
    kind = kind.value_type if pyarrow.types.is_dictionary(kind) else kind
    if not (
        pyarrow.types.is_string(kind)
        or pyarrow.types.is_large_string(kind)
        or pyarrow.types.is_string_view(kind)
    ):
        raise MeshDSLError(f"`{path}`: the column `{column}` is {kind}, not text")
