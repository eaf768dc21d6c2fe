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
from typing import BinaryIO, NamedTuple

import numpy as np

from meshdsl.parsing import parse_json
from meshdsl.train.data.cache_entry import entry_name, made_once
from meshdsl.train.data.conversations import Conversations
from meshdsl.train.data.documents import documents, is_held_out
from meshdsl.train.data.files import File
from meshdsl.train.data.tokenizer import Tokenizer
from meshdsl.train.data.tokens import TokenRange

SUBSETS = ("train", "validation")
_VERSION = 1  # of the content of an entry
_AT_ONCE = 2**23  # bytes of text that are tokenized at once, with as many threads as blocks
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
    dtype = id_dtype(tokenizer)

    def write(unfinished: Path) -> None:
        _make(entry, unfinished, dtype, files, field, tokenizer, held_out, report)

    counts = made_once(entry, lambda: _counts(entry, dtype), write)
    return _tokens_of(entry, dtype, counts, held_out)


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
    entry, dtype = folder / entry_name(files, _VERSION, *how), "uint32"

    def write(unfinished: Path) -> None:
        counts = [[0, 0], [0, 0]]  # documents and tokens
        with contextlib.ExitStack() as stack:
            outs = [stack.enter_context(open(unfinished / f"{name}.bin", "wb")) for name in SUBSETS]
            for file in files:
                for text, documents in written.documents(file, field):
                    subset = int(is_held_out([text], held_out))
                    for tokens in documents:
                        outs[subset].write(tokens.astype(dtype).tobytes())
                        counts[subset][0] += 1
                        counts[subset][1] += len(tokens)
        found = {name: asdict(Counts(*each)) for name, each in zip(SUBSETS, counts, strict=True)}
        (unfinished / "parts.json").write_text(json.dumps(found))

    counts = made_once(entry, lambda: _counts(entry, dtype), write)
    return _tokens_of(entry, dtype, counts, held_out)


def id_dtype(tokenizer: Tokenizer) -> str:
    """The smallest dtype that holds the ids of a tokenizer."""
    return next(
        kind for kind in ("uint8", "uint16", "uint32") if tokenizer.vocab <= np.iinfo(kind).max + 1
    )


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


def _make(
    entry: Path,
    unfinished: Path,
    dtype: str,
    files: Sequence[File],
    field: str,
    tokenizer: Tokenizer,
    held_out: float,
    report: Callable[[str], None],
) -> None:
    """Tokenize the files into the folder `unfinished`, which becomes `entry`."""
    size, start = sum(file.size for file in files), time.perf_counter()
    report = report if size >= _WORTH_TELLING else lambda text: None
    report(f"tokenizing {size / 2**20:,.0f} MiB of {len(files):,} files into {entry}")
    with contextlib.ExitStack() as stack:
        outs = [stack.enter_context(open(unfinished / f"{name}.bin", "wb")) for name in SUBSETS]
        counts = _write(outs, dtype, _blocks(files, field, held_out), tokenizer)
    (unfinished / "parts.json").write_text(
        json.dumps({name: asdict(each) for name, each in zip(SUBSETS, counts, strict=True)})
    )
    report(f"tokenized in {time.perf_counter() - start:.1f} s")


class _Block(NamedTuple):
    """A block of a document."""

    text: bytes
    subset: int  # index of one of SUBSETS
    is_first: bool  # of its document


def _blocks(files: Sequence[File], field: str, held_out: float) -> Iterator[_Block]:
    for file in files:
        for document in documents(file, field):
            subset = int(is_held_out(document, held_out))
            for i, text in enumerate(document):
                yield _Block(text, subset, i == 0)


def _write(
    outs: Sequence[BinaryIO], dtype: str, blocks: Iterable[_Block], tokenizer: Tokenizer
) -> tuple[Counts, Counts]:
    """Write the tokens of each subset to its file, with a separator between documents."""
    counts = [[0, 0, 0] for _ in SUBSETS]  # documents, tokens, bytes
    separator = np.array([tokenizer.separator], dtype).tobytes()
    for group in _groups(blocks):
        all_ids = tokenizer.encode_blocks([block.text for block in group])
        for block, ids in zip(group, all_ids, strict=True):
            count, out = counts[block.subset], outs[block.subset]
            if block.is_first and count[0]:
                out.write(separator)
                count[1] += 1
                count[2] += 1
            out.write(ids.astype(dtype, copy=False).tobytes())
            count[0] += block.is_first
            count[1] += len(ids)
            count[2] += len(block.text)
    return Counts(*counts[0]), Counts(*counts[1])


def _groups(blocks: Iterable[_Block]) -> Iterator[list[_Block]]:
    """The blocks that are tokenized at once, _AT_ONCE bytes or little more."""
    group, size = [], 0
    for block in blocks:
        group.append(block)
        size += len(block.text)
        if size >= _AT_ONCE:
            yield group
            group, size = [], 0
    if group:
        yield group
