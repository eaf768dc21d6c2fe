"""The cache of tokens: text is tokenized once, and its tokens are kept in files.

There is one folder, called an entry, for each (files, tokenizer, fraction held out). It holds the
tokens of both subsets, `train.bin` and `validation.bin`, and what was counted, `parts.json`.
How entries are made is in `cache_entry`.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from meshdsl.parsing import parse_json
from meshdsl.train.data.cache_entry import Report, entry_name, in_groups, made_once
from meshdsl.train.data.conversations import Conversations
from meshdsl.train.data.documents import documents
from meshdsl.train.data.files import File
from meshdsl.train.data.held_out import hash_of
from meshdsl.train.data.sequences import TokenRange, Tokens
from meshdsl.train.data.tokenizer import Tokenizer

SUBSETS = ("train", "validation")
_COUNTED = ("documents", "tokens", "bytes")
_VERSION = 1  # of the content of an entry
WORTH_TELLING = 64 * 2**20  # bytes of text that take a while


class Subset(NamedTuple):
    """One of SUBSETS of a dataset.

    Attributes:
      documents: how many there are; None where that is unknown.
      bytes: of their text, of which each separator is one; None where they were not counted.
    """

    tokens: Tokens
    documents: int | None = None
    bytes: int | None = None


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
    report: Report = lambda text: None,
    chat: Conversations | None = None,
) -> tuple[Subset, Subset]:
    """The tokens of `files`, from the cache in `folder` if they are there, else added to it.

    About the fraction `held_out` of the documents goes to validation. Where all documents hash to
    one side, as a single document does, the end of the tokens is held out instead.

    Args:
      field: as of `documents`; of conversations what holds the messages.
      report: called with a line when many tokens have to be made, and when they are.
      chat: turns conversations into tokens with the bits that tell what is trained on; None where
        the files hold text.

    Raises:
      MeshDSLError: a file cannot be read, or the folder cannot be written.
    """
    how = [field, tokenizer.digest]
    if chat is not None:
        how = ["chat", *how, chat.digest]
    entry = folder / entry_name(files, _VERSION, *how, held_out)
    dtype = id_dtype(tokenizer) if chat is None else "uint32"

    def write(there: Path) -> None:
        size, start = sum(file.size for file in files), time.perf_counter()
        say = report if size >= WORTH_TELLING else lambda text: None
        say(f"tokenizing {size / 2**20:,.0f} MiB of {len(files):,} files into {entry}")
        pieces = (
            _pieces_of_text(files, field, tokenizer, held_out)
            if chat is None
            else _pieces_of_chat(files, field, chat, held_out)
        )
        _write(there, dtype, pieces)
        say(f"tokenized in {time.perf_counter() - start:.1f} s")

    counts = made_once(entry, lambda: _counts(entry, dtype), write)

    def part(subset: int, start: int, stop: int) -> Subset:
        documents, tokens, size = counts[subset]
        found = Tokens([TokenRange(entry / f"{SUBSETS[subset]}.bin", dtype, start, stop)])
        share = round(size * (stop - start) / max(1, tokens))
        return Subset(found, documents, share if chat is None else None)

    train, validation = (tokens for _, tokens, _ in counts)
    if not held_out or (train and validation):
        return part(0, 0, train), part(1, 0, validation)
    # One subset has all documents, and its end becomes the validation.
    which, stop = (0, train) if train else (1, validation)
    border = stop - int(stop * held_out)
    return part(which, 0, border), part(which, border, stop)


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


def _pieces_of_text(
    files: Sequence[File], field: str, tokenizer: Tokenizer, held_out: float
) -> Iterator[_Piece]:
    """The tokens of all documents, with a separator between those of a subset."""
    blocks = (
        (text, subset, i == 0)
        for file in files
        for document in documents(file, field)
        for subset in [_subset(document, held_out)]
        for i, text in enumerate(document)
    )
    separator, begun = np.array([tokenizer.separator]), set()
    for group in in_groups(blocks, lambda block: len(block[0])):
        # With as many threads as blocks.
        all_ids = tokenizer.encode_blocks([text for text, _, _ in group])
        for (text, subset, begins_document), ids in zip(group, all_ids, strict=True):
            if begins_document and subset in begun:
                yield _Piece(subset, separator, 0, 1)
            begun.add(subset)
            yield _Piece(subset, ids, begins_document, len(text))


def _pieces_of_chat(
    files: Sequence[File], field: str, chat: Conversations, held_out: float
) -> Iterator[_Piece]:
    """The tokens of all conversations, whose bits tell where they end."""
    for file in files:
        for text, talks in chat.documents(file, field):
            subset = _subset([text], held_out)
            yield from (_Piece(subset, tokens, 1, 0) for tokens in talks)


def _write(folder: Path, dtype: str, pieces: Iterable[_Piece]) -> None:
    counts = [dict.fromkeys(_COUNTED, 0) for _ in SUBSETS]
    with contextlib.ExitStack() as stack:
        outs = [stack.enter_context(open(folder / f"{name}.bin", "wb")) for name in SUBSETS]
        for subset, tokens, *more in pieces:
            outs[subset].write(tokens.astype(dtype, copy=False).tobytes())
            for name, count in zip(_COUNTED, (more[0], len(tokens), more[1]), strict=True):
                counts[subset][name] += count
    (folder / "parts.json").write_text(json.dumps(dict(zip(SUBSETS, counts, strict=True))))


def _counts(entry: Path, dtype: str) -> tuple[list[int], list[int]] | None:
    """Of each subset in an entry the numbers _COUNTED; None if it is absent or incomplete."""
    try:
        content = parse_json((entry / "parts.json").read_text())
        train, validation = ([content[name][key] for key in _COUNTED] for name in SUBSETS)
        sizes = [(entry / f"{name}.bin").stat().st_size for name in SUBSETS]
        expected = [each[1] * np.dtype(dtype).itemsize for each in (train, validation)]
    except (OSError, ValueError, TypeError, KeyError):
        return None
    return (train, validation) if sizes == expected else None
