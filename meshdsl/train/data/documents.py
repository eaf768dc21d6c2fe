"""The documents in files of text, JSONL and parquet, one after the other, so that no more than one block of text is in memory."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator
from pathlib import Path

from meshdsl.errors import MeshDSLError, nearest
from meshdsl.train.data.files import File

BLOCK = 2**18  # bytes of a text that are read at once
Document = Iterable[bytes]  # its text in UTF-8, in blocks; it can be read more than once


def documents(file: File, field: str) -> Iterator[Document]:
    """The documents of a file that are not empty.

    Args:
      field: of each JSON object, or the column of a parquet file, that holds the text.

    Raises:
      MeshDSLError: what cannot be read, with the file and the line or row.
    """
    try:
        yield from {"text": _text, "jsonl": _jsonl, "parquet": _parquet}[file.format](
            file.path, field
        )
    except OSError as error:
        raise MeshDSLError(f"`{file.path}` cannot be read: {error.strerror or error}") from None


def is_held_out(document: Document, part: float) -> bool:
    """Whether a document is for validation: by the hash of its bytes, so that copies of it are on the same side."""
    if not part:
        return False
    digest = hashlib.sha256()
    for block in document:
        digest.update(block)
    return int.from_bytes(digest.digest()[:8], "big") < part * 2**64


def _text(path: Path, field: str) -> Iterator[Document]:
    if path.stat().st_size > BLOCK:
        yield _Long(path)
    elif content := path.read_bytes():
        yield [content]


class _Long:
    """A long text, in blocks that end where lines or words do, so that hardly a token is cut, and no character."""

    def __init__(self, path: Path):
        self._path = path

    def __iter__(self) -> Iterator[bytes]:
        rest = b""
        with self._path.open("rb") as file:
            while read := file.read(BLOCK):
                block = rest + read
                cut = block.rfind(b"\n") + 1 or block.rfind(b" ") + 1 or _last_character(block)
                rest = block[cut:]
                yield block[:cut]
        if rest:
            yield rest


def _last_character(block: bytes) -> int:
    """Where the last character begins, of which the end may be missing; the end of the block where it is no UTF-8."""
    ends = range(len(block) - 1, max(len(block) - 5, 0), -1)
    return next((i for i in ends if block[i] & 0xC0 != 0x80), len(block))


def _jsonl(path: Path, field: str) -> Iterator[Document]:
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            if line.strip() and (text := _of_line(line, field, f"`{path}` line {number}")):
                yield [text]


def _of_line(line: bytes, field: str, where: str) -> bytes:
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
                            f"`{path}` row {row}: the column `{field}` is empty there; expected text"
                        )
                    if text:
                        yield [text.encode()]
    except (pyarrow.ArrowException, UnicodeDecodeError) as error:
        raise MeshDSLError(f"`{path}`: not parquet, or damaged: {error}") from None


def _check_column(path: Path, schema, field: str, pyarrow) -> None:
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
