"""The datasets of a mixture: found, checked, tokenized where they are text."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from meshdsl.errors import MeshDSLError
from meshdsl.train.config import Config, Source
from meshdsl.train.data.cache import Cached, Part, tokenized
from meshdsl.train.data.documents import documents
from meshdsl.train.data.files import File, find_files, library
from meshdsl.train.data.tokenizer import Tokenizer
from meshdsl.train.data.tokens import Tokens, token_files

DEFAULT = "python"  # the dataset that is read where there are no sources
Report = Callable[[str], None]


@dataclass(frozen=True)
class Dataset:
    """A dataset that is open: the tokens of both its parts, and what is known of them, for a text."""

    name: str
    weight: float
    tokens: tuple[Tokens, Tokens]
    parts: tuple[Part, Part] | None

    def describe(self) -> str:
        train, held_out = (
            f"{len(tokens):,} tokens"
            + (f" of {self.parts[i].documents:,} documents" if self.parts else "")
            for i, tokens in enumerate(self.tokens)
        )
        return f"{train}; held out {held_out}"

    def bytes_per_token(self, part: int, tokenizer: Tokenizer) -> float | None:
        """Of one of PARTS; the end of a document counts as one byte. An estimate for token files, None where the tokenizer does not know their tokens."""
        if self.parts:
            return self.parts[part].bytes / max(1, self.parts[part].tokens)
        size = count = 0
        for tokens in self.tokens[part].sample(reads=16):
            if tokens.max() >= tokenizer.vocab:
                return None
            size += len(
                tokenizer.decode(tokens[tokens != tokenizer.separator]).encode("utf-8", "replace")
            ) + int((tokens == tokenizer.separator).sum())
            count += len(tokens)
        return size / max(1, count)


class Found(NamedTuple):
    """A dataset whose files are found, in `where` of the settings."""

    where: str
    name: str
    source: Source
    train: list[File]
    held_out: list[File]

    @property
    def of_tokens(self) -> bool:
        return self.train[0].format == "tokens"


def open_datasets(config: Config, tokenizer: Tokenizer, report: Report) -> list[Dataset]:
    """The datasets of `config.data`, or the standard library. What can be refused without tokenizing is refused before anything is tokenized.

    Raises:
      MeshDSLError: see `open_data`.
    """
    all_found = [_find(name, source) for name, source in config.data.sources.items()] or [
        _find_library()
    ]
    opened = {}
    for found in sorted(all_found, key=lambda found: not found.of_tokens):
        with _named(found.where):
            opened[found.name] = (
                _of_tokens(found, config, tokenizer)
                if found.of_tokens
                else _of_text(found, config, tokenizer, report)
            )
    return [opened[found.name] for found in all_found]


@contextmanager
def _named(where: str) -> Iterator[None]:
    try:
        yield
    except MeshDSLError as error:
        text = str(error)
        raise MeshDSLError(text if text.startswith("data.") else f"{where}: {text}") from None


def _find_library() -> Found:
    files = [file._replace(format="text") for file in find_files([library()], suffix=".py")]
    return Found("data", DEFAULT, Source(), files, [])


def _find(name: str, source: Source) -> Found:
    where = f"data.sources.{name}"
    with _named(where):
        if not source.paths:
            raise MeshDSLError(f"no files; set {where}.paths")
        train, held_out = (
            find_files(paths, source.format) for paths in (source.paths, source.validation)
        )
        for files, paths in ((train, source.paths), (held_out, source.validation)):
            if paths and not any(file.size for file in files):
                raise MeshDSLError(f"nothing to read in {', '.join(f'`{path}`' for path in paths)}")
        if len({file.format == "tokens" for file in (*train, *held_out)}) > 1:
            raise MeshDSLError("token files and text in one dataset; make it two")
        for file in {
            file.format: file for file in (*train, *held_out) if file.format != "tokens"
        }.values():
            next(
                documents(file, source.field), None
            )  # its first document tells of a wrong field or format
    return Found(where, name, source, train, held_out)


def _of_tokens(found: Found, config: Config, tokenizer: Tokenizer) -> Dataset:
    source = found.source
    below = config.model.vocab if config.model.vocab <= np.iinfo(source.dtype).max else None
    train, held_out = token_files(
        found.train, source.dtype, 0.0 if found.held_out else config.data.validation
    )
    if found.held_out:
        held_out, _ = token_files(found.held_out, source.dtype, 0.0)
    both = Tokens(train, below), Tokens(held_out, below)
    samples = [
        part for tokens in both if len(tokens) for part in tokens.sample()
    ]  # reading checks the ids, too
    if source.dtype == "uint16" and all(_every_other_is_zero(part) for part in samples):
        raise MeshDSLError(
            f"every other token of `{found.train[0].path}` is 0, as if it were uint32; set data.sources.{found.name}.dtype=uint32"
        )
    largest = max(int(part.max()) for part in samples)
    if config.data.separate and largest >= tokenizer.vocab:
        raise MeshDSLError(
            "data.separate: where documents end is told by the tokenizer, and these are not its tokens; set data.tokenizer"
        )
    return Dataset(found.name, source.weight, both, None)


def _every_other_is_zero(tokens: np.ndarray) -> bool:
    return len(tokens) > 1 and bool(tokens[::2].any()) != bool(tokens[1::2].any())


def _of_text(found: Found, config: Config, tokenizer: Tokenizer, report: Report) -> Dataset:
    cache = (
        Path(config.data.cache)
        if config.data.cache
        else Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "meshdsl", "tokens")
    )

    def read(files: list[File], held_out: float) -> Cached:
        made = tokenized(files, found.source.field, tokenizer, held_out, cache, report)
        if not any(part.tokens for part in made.parts):
            raise MeshDSLError(
                f"nothing to read in {', '.join(f'`{file.path}`' for file in files[:3])}"
            )
        return made

    runs, parts = read(found.train, 0.0 if found.held_out else config.data.validation)
    if found.held_out:
        own = read(found.held_out, 0.0)
        runs, parts = (runs[0], own.runs[0]), (parts[0], own.parts[0])
    return Dataset(found.name, found.source.weight, (Tokens(runs[0]), Tokens(runs[1])), parts)
