"""Tokens of text, made once: a folder for each (files, tokenizer, part held out), with the tokens of both parts and what is known of them.

A folder is written under another name and renamed when it is whole, so whatever ends a process leaves nothing that could be read by half. Processes that
share a file system wait for the one that writes; where locks do not reach, each writes a folder of its own and the first to rename it wins.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import BinaryIO, NamedTuple

import numpy as np

from meshdsl.errors import MeshDSLError
from meshdsl.train.data.documents import documents, is_held_out
from meshdsl.train.data.files import File
from meshdsl.train.data.tokenizer import Tokenizer
from meshdsl.train.data.tokens import Run

PARTS = ("train", "validation")
_VERSION = 1  # of what is in a folder
_AT_ONCE = (
    2**23
)  # bytes of text that are tokenized together, by as many threads as there are blocks
_WORTH_TELLING = 64 * 2**20  # bytes of text that take a while
_DAY = 24 * 3600


@dataclass(frozen=True)
class Part:
    """Of a part that is trained on or held out: how many documents, tokens, and bytes of text, one byte counted for the end of each document."""

    documents: int = 0
    tokens: int = 0
    bytes: int = 0


class Cached(NamedTuple):
    """The tokens of some text: where they are, and how many, for each of PARTS."""

    runs: tuple[list[Run], list[Run]]
    parts: tuple[Part, Part]


def tokenized(
    files: Sequence[File],
    field: str,
    tokenizer: Tokenizer,
    held_out: float,
    folder: Path,
    report: Callable[[str], None] = lambda text: None,
) -> Cached:
    """The tokens of `files`, from `folder` if they are there, else made and put there.

    Of the documents about `held_out` go to validation; where all hash to one side, as a single one does, the end of the tokens is held out instead.

    Args:
      report: told when many tokens have to be made, and when they are.

    Raises:
      MeshDSLError: a file cannot be read, there is nothing in them, or the folder cannot be written.
    """
    place = folder / _key(files, field, tokenizer, held_out)
    dtype = next(
        kind for kind in ("uint8", "uint16", "uint32") if tokenizer.vocab <= np.iinfo(kind).max + 1
    )
    parts = _whole(place, dtype)
    if parts is None:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            with _alone(place):
                parts = _whole(place, dtype)  # who waited finds it made
                if parts is None:
                    parts = _build(place, dtype, files, field, tokenizer, held_out, report)
        except OSError as error:
            raise MeshDSLError(
                f"data.cache: `{folder}` cannot be written: {error.strerror or error}; choose another folder"
            ) from None
    return _cut(place, dtype, parts, held_out)


def _key(files: Sequence[File], field: str, tokenizer: Tokenizer, held_out: float) -> str:
    which = [[str(file.path.resolve()), *file[1:]] for file in files]
    return hashlib.sha256(
        json.dumps([_VERSION, which, field, tokenizer.digest, held_out]).encode()
    ).hexdigest()[:32]


def _whole(place: Path, dtype: str) -> tuple[Part, Part] | None:
    """What is known of the tokens in `place`; None if they are not there, or not all of them."""
    try:
        known = json.loads((place / "parts.json").read_text())
        train, validation = (Part(**known[name]) for name in PARTS)
        sizes = [(place / f"{name}.bin").stat().st_size for name in PARTS]
    except (OSError, ValueError, TypeError, KeyError):
        return None
    expected = [part.tokens * np.dtype(dtype).itemsize for part in (train, validation)]
    return (train, validation) if sizes == expected else None


def _cut(place: Path, dtype: str, parts: tuple[Part, Part], held_out: float) -> Cached:
    train, validation = (
        Run(place / f"{name}.bin", dtype, 0, part.tokens)
        for name, part in zip(PARTS, parts, strict=True)
    )
    if not held_out or (train.stop and validation.stop):
        return Cached(([train], [validation]), parts)
    run, whole = (train, parts[0]) if train.stop else (validation, parts[1])
    at = run.stop - int(run.stop * held_out)
    first, last = (
        replace(whole, tokens=tokens, bytes=round(whole.bytes * tokens / max(1, run.stop)))
        for tokens in (at, run.stop - at)
    )
    return Cached(([run._replace(stop=at)], [run._replace(start=at)]), (first, last))


@contextlib.contextmanager
def _alone(place: Path) -> Iterator[None]:
    """Let one process at a time in, where the file system has locks."""
    with open(f"{place}.lock", "w") as lock:
        with contextlib.suppress(OSError):
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _build(
    place: Path,
    dtype: str,
    files: Sequence[File],
    field: str,
    tokenizer: Tokenizer,
    held_out: float,
    report: Callable[[str], None],
) -> tuple[Part, Part]:
    _tidy(place)
    size, start = sum(file.size for file in files), time.perf_counter()
    report = report if size >= _WORTH_TELLING else lambda text: None
    report(f"tokenizing {size / 2**20:,.0f} MiB of {len(files):,} files into {place}")
    made = Path(tempfile.mkdtemp(prefix=f"{place.name}.partial-", dir=place.parent))
    try:
        with contextlib.ExitStack() as stack:
            outs = [stack.enter_context(open(made / f"{name}.bin", "wb")) for name in PARTS]
            parts = _write(outs, dtype, _pieces(files, field, held_out), tokenizer)
        (made / "parts.json").write_text(
            json.dumps({name: asdict(part) for name, part in zip(PARTS, parts, strict=True)})
        )
        for path in made.iterdir():
            _to_disk(path)
        if place.exists() and _whole(place, dtype) is None:
            shutil.rmtree(place, ignore_errors=True)  # it is damaged
        try:
            made.rename(place)
        except OSError:
            if _whole(place, dtype) is None:
                raise
    finally:
        shutil.rmtree(made, ignore_errors=True)
    report(f"tokenized in {time.perf_counter() - start:.1f} s")
    return parts


class Piece(NamedTuple):
    """A block of a document."""

    text: bytes
    part: int  # of PARTS
    first: bool  # of its document


def _pieces(files: Sequence[File], field: str, held_out: float) -> Iterator[Piece]:
    for file in files:
        for document in documents(file, field):
            part = int(is_held_out(document, held_out))
            for i, block in enumerate(document):
                yield Piece(block, part, i == 0)


def _write(
    outs: Sequence[BinaryIO], dtype: str, pieces: Iterable[Piece], tokenizer: Tokenizer
) -> tuple[Part, Part]:
    """Write the tokens of `pieces`, with a separator between documents, so that each ends with one but the last."""
    counts = [[0, 0, 0] for _ in PARTS]  # documents, tokens, bytes
    separator = np.array([tokenizer.separator], dtype).tobytes()
    for group in _groups(pieces):
        for piece, ids in zip(
            group, tokenizer.encode_blocks([piece.text for piece in group]), strict=True
        ):
            count, out = counts[piece.part], outs[piece.part]
            if piece.first and count[0]:
                out.write(separator)
                count[1] += 1
                count[2] += 1
            out.write(ids.astype(dtype, copy=False).tobytes())
            count[0] += piece.first
            count[1] += len(ids)
            count[2] += len(piece.text)
    return Part(*counts[0]), Part(*counts[1])


def _groups(pieces: Iterable[Piece]) -> Iterator[list[Piece]]:
    group, size = [], 0
    for piece in pieces:
        group.append(piece)
        size += len(piece.text)
        if size >= _AT_ONCE:
            yield group
            group, size = [], 0
    if group:
        yield group


def _to_disk(path: Path) -> None:
    """So that after a power failure a renamed folder is not an empty one."""
    with open(path, "rb") as file:
        os.fsync(file.fileno())


def _tidy(place: Path) -> None:
    """Remove what killed processes left. What is younger may be another host's work."""
    for path in place.parent.glob(f"{place.name}.partial-*"):
        with contextlib.suppress(OSError):
            if time.time() - path.stat().st_mtime > _DAY:
                shutil.rmtree(path, ignore_errors=True)
