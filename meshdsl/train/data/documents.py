"""The documents in files of text, JSONL and tables.

They come one after the other and long ones block by block, so little text is in memory at once.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from meshdsl.train.data.file_rows import failures_say, read_texts
from meshdsl.train.data.files import File

BLOCK = 2**18  # bytes of a text that are read at once
Document = Iterable[bytes]  # its text in UTF-8, block by block; it can be read more than once


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
