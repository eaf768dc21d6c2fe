"""The documents in files of text, JSONL and parquet.

They come one after the other and long ones block by block, so little text is in memory at once.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from meshdsl.errors import MeshDSLError, nearest
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
    readers = {"text": _text, "jsonl": _jsonl, "parquet": _parquet}
    try:
        yield from readers[file.format](file.path, field)
    except OSError as error:
        raise MeshDSLError(f"`{file.path}` cannot be read: {error.strerror or error}") from None


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


def _text(path: Path, field: str) -> Iterator[Document]:
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


def _jsonl(path: Path, field: str) -> Iterator[Document]:
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            if line.strip() and (text := _text_of_line(line, field, f"`{path}` line {number}")):
                yield [text]


def _text_of_line(line: bytes, field: str, where: str) -> bytes:
    try:
        value = json.loads(line)
    except UnicodeDecodeError as error:
        raise MeshDSLError(f"{where}: not UTF-8: {error.reason} at byte {error.start}") from None
    except (ValueError, RecursionError) as error:
        raise MeshDSLError(f"{where}: not JSON: {error}") from None
    if not isinstance(value, dict):
        raise MeshDSLError(f"{where}: expected an object with a field `{field}`")
    if field not in value:
        raise MeshDSLError(f"{where}: no field `{field}`{nearest(field, value)}")
    if not isinstance(value[field], str):
        raise MeshDSLError(f"{where}: the field `{field}` is not text")
    return value[field].encode("utf-8", "replace")


def _parquet(path: Path, field: str) -> Iterator[Document]:
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError:
        raise MeshDSLError(
            f"`{path}`: reading parquet needs pyarrow; install meshdsl[parquet]"
        ) from None
    try:
        with parquet.ParquetFile(path) as file:
            _check_column(path, file.schema_arrow, field, pyarrow)
            row = 0
            for batch in file.iter_batches(batch_size=1024, columns=[field]):
                for text in batch.column(0).to_pylist():
                    row += 1
                    if text is None:
                        raise MeshDSLError(
                            f"`{path}` row {row}: the column `{field}` is empty there; "
                            "expected text"
                        )
                    if text:
                        yield [text.encode()]
    except (pyarrow.ArrowException, UnicodeDecodeError) as error:
        raise MeshDSLError(f"`{path}`: not parquet, or damaged: {error}") from None


def _check_column(path: Path, schema: Any, field: str, pyarrow: Any) -> None:
    """Raise a MeshDSLError unless the parquet schema has a column `field` of text."""
    if field not in schema.names:
        raise MeshDSLError(f"`{path}`: no column `{field}`{nearest(field, schema.names)}")
    kind = schema.field(field).type
    kind = kind.value_type if pyarrow.types.is_dictionary(kind) else kind
    if not (
        pyarrow.types.is_string(kind)
        or pyarrow.types.is_large_string(kind)
        or pyarrow.types.is_string_view(kind)
    ):
        raise MeshDSLError(f"`{path}`: the column `{field}` is {kind}, not text")
