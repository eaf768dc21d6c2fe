"""The cache of tokens: text is tokenized once, and its tokens are kept in files.

There is one folder, called an entry, for each (files, tokenizer, fraction held out). It holds the
tokens of both subsets, `train.bin` and `validation.bin`, and what was counted, `parts.json`.
How entries are made is in `cache_entry`.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np

from meshdsl.parsing import parse_json
from meshdsl.train.data.cache_entry import entry_name, made_once
from meshdsl.train.data.cached_table import in_groups
from meshdsl.train.data.conversations import Conversations
from meshdsl.train.data.documents import documents
from meshdsl.train.data.files import File
from meshdsl.train.data.held_out import hash_of
from meshdsl.train.data.tokenizer import Tokenizer
from meshdsl.train.data.tokens import TokenRange

SUBSETS = ("train", "validation")
_VERSION = 1  # of the content of an entry
_WORTH_TELLING = 64 * 2**20  # bytes of text that take a while


@dataclass(frozen=True)
class Counts:
    """How many documents, tokens and bytes of text a subset has; each separator is one byte."""

    documents: int = 0
    tokens: int = 0
    bytes: int = 0


class CachedTokens(NamedTuple):
    """Where the tokens of some text are, and what was counted of them, for each of SUBSETS."""

    ranges: tuple[list[TokenRange], list[TokenRange]]
    counts: tuple[Counts, Counts]


class _Piece(NamedTuple):
    """Tokens that come next in a subset.

    Attributes:
      subset: index of one of SUBSETS.
      documents: how many of them begin with these tokens.
      bytes: of the text of these tokens; 0 where they are not counted.
    """

    subset: int
    tokens: np.ndarray
    documents: int
    bytes: int


def cached_tokens(
    files: Sequence[File],
    field: str,
    tokenizer: Tokenizer,
    held_out: float,
    folder: Path,
    report: Callable[[str], None] = lambda text: None,
) -> CachedTokens:
    """The tokens of `files`, from the cache in `folder` if they are there, else added to it.

    About the fraction `held_out` of the documents goes to validation. Where all documents hash to
    one side, as a single document does, the end of the tokens is held out instead.

    Args:
      field: as of `documents`.
      report: called with a line when many tokens have to be made, and when they are.

    Raises:
      MeshDSLError: a file cannot be read, or the folder cannot be written.
    """
    entry = folder / entry_name(files, _VERSION, field, tokenizer.digest, held_out)

    def pieces() -> Iterator[_Piece]:
        size, start = sum(file.size for file in files), time.perf_counter()
        say = report if size >= _WORTH_TELLING else lambda text: None
        say(f"tokenizing {size / 2**20:,.0f} MiB of {len(files):,} files into {entry}")
        yield from _pieces_of_text(files, field, tokenizer, held_out)
        say(f"tokenized in {time.perf_counter() - start:.1f} s")

    return _cached(entry, id_dtype(tokenizer), held_out, pieces)


def cached_conversations(
    files: Sequence[File],
    field: str,
    tokenizer: Tokenizer,
    written: Conversations,
    held_out: float,
    folder: Path,
) -> CachedTokens:
    """As `cached_tokens`, of conversations: tokens with the bits that tell what is trained on.

    Args:
      field: of each object, which holds the messages.
      written: turns conversations into tokens.

    Raises:
      MeshDSLError: a file cannot be read or has no conversations, or the folder cannot be written.
    """
    how = ("chat", field, tokenizer.digest, written.digest, held_out)

    def pieces() -> Iterator[_Piece]:
        for file in files:
            for text, talks in written.documents(file, field):
                subset = _subset([text], held_out)
                yield from (_Piece(subset, tokens, 1, 0) for tokens in talks)

    return _cached(folder / entry_name(files, _VERSION, *how), "uint32", held_out, pieces)


def id_dtype(tokenizer: Tokenizer) -> str:
    """The smallest dtype that holds the ids of a tokenizer."""
    return next(
        kind for kind in ("uint8", "uint16", "uint32") if tokenizer.vocab <= np.iinfo(kind).max + 1
    )


def _subset(document: Iterable[bytes], held_out: float) -> int:
    """The subset of a document, as index of one of SUBSETS.

    The hash of its bytes decides, so copies of a document are in the same subset.
    """
    return int(held_out > 0 and hash_of(document) < held_out * 2**64)


class _Block(NamedTuple):
    """A block of a document."""

    text: bytes
    subset: int
    is_first: bool  # of its document


def _pieces_of_text(
    files: Sequence[File], field: str, tokenizer: Tokenizer, held_out: float
) -> Iterator[_Piece]:
    """The tokens of all documents, with a separator between those of a subset."""
    blocks = (
        _Block(text, subset, i == 0)
        for file in files
        for document in documents(file, field)
        for subset in [_subset(document, held_out)]
        for i, text in enumerate(document)
    )
    separator, begun = np.array([tokenizer.separator]), set()
    for group in in_groups(blocks, lambda block: len(block.text)):
        # With as many threads as blocks.
        all_ids = tokenizer.encode_blocks([block.text for block in group])
        for block, ids in zip(group, all_ids, strict=True):
            if block.is_first and block.subset in begun:
                yield _Piece(block.subset, separator, 0, 1)
            begun.add(block.subset)
            yield _Piece(block.subset, ids, block.is_first, len(block.text))


def _cached(
    entry: Path, dtype: str, held_out: float, pieces: Callable[[], Iterable[_Piece]]
) -> CachedTokens:
    """The tokens in `entry`, to which `pieces` are written if it is absent."""
    counts = made_once(
        entry, lambda: _counts(entry, dtype), lambda folder: _write(folder, dtype, pieces())
    )
    return _tokens_of(entry, dtype, counts, held_out)


def _write(folder: Path, dtype: str, pieces: Iterable[_Piece]) -> None:
    counts = [[0, 0, 0] for _ in SUBSETS]  # documents, tokens, bytes
    with contextlib.ExitStack() as stack:
        outs = [stack.enter_context(open(folder / f"{name}.bin", "wb")) for name in SUBSETS]
        for subset, tokens, *more in pieces:
            outs[subset].write(tokens.astype(dtype, copy=False).tobytes())
            for i, count in enumerate((more[0], len(tokens), more[1])):
                counts[subset][i] += count
    found = {name: asdict(Counts(*each)) for name, each in zip(SUBSETS, counts, strict=True)}
    (folder / "parts.json").write_text(json.dumps(found))


def _counts(entry: Path, dtype: str) -> tuple[Counts, Counts] | None:
    """What was counted in an entry; None if it is absent or incomplete."""
    try:
        content = parse_json((entry / "parts.json").read_text())
        train, validation = (Counts(**content[name]) for name in SUBSETS)
        sizes = [(entry / f"{name}.bin").stat().st_size for name in SUBSETS]
    except (OSError, ValueError, TypeError, KeyError):
        return None
    expected = [counts.tokens * np.dtype(dtype).itemsize for counts in (train, validation)]
    return (train, validation) if sizes == expected else None


def _tokens_of(
    entry: Path, dtype: str, counts: tuple[Counts, Counts], held_out: float
) -> CachedTokens:
    """The tokens in an entry; where one subset has them all, its end becomes the validation."""
    train, validation = (
        TokenRange(entry / f"{name}.bin", dtype, 0, each.tokens)
        for name, each in zip(SUBSETS, counts, strict=True)
    )
    if not held_out or (train.stop and validation.stop):
        return CachedTokens(([train], [validation]), counts)
    tokens, total = (train, counts[0]) if train.stop else (validation, counts[1])
    border = tokens.stop - int(tokens.stop * held_out)
    first, last = (
        replace(total, tokens=count, bytes=round(total.bytes * count / max(1, tokens.stop)))
        for count in (border, tokens.stop - border)
    )
    ranges = [tokens._replace(stop=border)], [tokens._replace(start=border)]
    return CachedTokens(ranges, (first, last))
