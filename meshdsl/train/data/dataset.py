"""The datasets of a mixture: their files found and checked, their text tokenized."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from meshdsl.errors import MeshDSLError
from meshdsl.train.config import Config, Source
from meshdsl.train.data.cache import CachedTokens, Counts, cached_conversations, cached_tokens
from meshdsl.train.data.cache_entry import cache_folder
from meshdsl.train.data.conversations import MESSAGES, Conversations
from meshdsl.train.data.documents import documents
from meshdsl.train.data.files import File, find_files, library_folder, nothing_in
from meshdsl.train.data.sources import check_source, errors_say, files_of
from meshdsl.train.data.tokenizer import Tokenizer
from meshdsl.train.data.tokens import Tokens, token_file_ranges

DEFAULT = "python"  # the name of the dataset where the settings have none: the standard library
FORMATS = ("text", "jsonl", "parquet", "arrow", "tokens", "chat")
TEXT = "text"  # the field or column that holds the text, where the settings name none
Report = Callable[[str], None]  # is told, in words, of work that takes a while


@dataclass(frozen=True)
class Dataset:
    """A dataset that can be read.

    Attributes:
      weight: its share of the mixture, relative to the other weights.
      tokens: those to train on, and the held-out ones.
      counts: of both subsets, where the dataset is text; None for token files.
      of_chat: whether it is conversations, whose tokens have the bits of those.
    """

    name: str
    weight: float
    tokens: tuple[Tokens, Tokens]
    counts: tuple[Counts, Counts] | None
    of_chat: bool = False

    def describe(self) -> str:
        """For example `1,234 tokens of 5 documents; held out 67 tokens of 1 documents`."""
        train, held_out = (
            f"{len(tokens):,} tokens"
            + (f" of {self.counts[i].documents:,} documents" if self.counts else "")
            for i, tokens in enumerate(self.tokens)
        )
        return f"{train}; held out {held_out}"

    def bytes_per_token(self, subset: int, tokenizer: Tokenizer) -> float | None:
        """The mean number of bytes of text in a token; a separator counts as one byte.

        For token files it is estimated from a sample that the tokenizer decodes.

        Args:
          subset: index of one of SUBSETS.

        Returns:
          None where the tokenizer does not know the tokens, and for conversations, of which not
          all is measured.
        """
        if self.of_chat:
            return None
        if self.counts:
            return self.counts[subset].bytes / max(1, self.counts[subset].tokens)
        size = count = 0
        for tokens in self.tokens[subset].sample(reads=16):
            if tokens.max() >= tokenizer.vocab:
                return None
            is_separator = tokens == tokenizer.separator
            text = tokenizer.decode(tokens[~is_separator]).encode("utf-8", "replace")
            size += len(text) + int(is_separator.sum())
            count += len(tokens)
        return size / max(1, count)


class DatasetFiles(NamedTuple):
    """The files of a dataset, before anything of them is tokenized.

    Attributes:
      where: the setting that names the dataset, for errors.
      held_out: files for validation; where there are none, a fraction of `train` is held out.
    """

    where: str
    name: str
    source: Source
    train: list[File]
    held_out: list[File]

    @property
    def are_tokens(self) -> bool:
        """Whether the files hold tokens rather than text."""
        return self.train[0].format == "tokens"


def open_datasets(config: Config, tokenizer: Tokenizer, report: Report) -> list[Dataset]:
    """The datasets of `config.data`, in their order; the standard library where it has none.

    What can be refused without tokenizing is refused before anything is tokenized.

    Raises:
      MeshDSLError: see `open_data`.
    """
    all_files = [_files_of(name, source) for name, source in config.data.sources.items()] or [
        _library_files()
    ]
    opened = {}
    for files in sorted(all_files, key=lambda files: not files.are_tokens):
        with errors_say(files.where):
            opened[files.name] = (
                _open_tokens(files, config, tokenizer)
                if files.are_tokens
                else _open_text(files, config, tokenizer, report)
            )
    return [opened[files.name] for files in all_files]


def _library_files() -> DatasetFiles:
    files = [file._replace(format="text") for file in find_files([library_folder()], suffix=".py")]
    return DatasetFiles("data", DEFAULT, Source(), files, [])


def _files_of(name: str, source: Source) -> DatasetFiles:
    where = f"data.sources.{name}"
    with errors_say(where):
        check_source("text", name, source, formats=FORMATS, functions=False)
        train, held_out = files_of(source)
        by_format = {file.format: file for file in (*train, *held_out)}
        if len({format == "tokens" for format in by_format}) > 1:
            raise MeshDSLError("token files and text in one dataset; make it two")
        for format, file in by_format.items():
            if format not in ("tokens", "chat"):
                # The first document of a file shows a wrong field or format.
                next(documents(file, source.field or TEXT), None)
    return DatasetFiles(where, name, source, train, held_out)


def _open_tokens(files: DatasetFiles, config: Config, tokenizer: Tokenizer) -> Dataset:
    source = files.source
    vocab = getattr(config.model, "vocab", None)
    below = vocab if vocab is not None and vocab <= np.iinfo(source.dtype).max else None
    train, held_out = token_file_ranges(
        files.train, source.dtype, 0.0 if files.held_out else config.data.validation
    )
    if files.held_out:
        held_out, _ = token_file_ranges(files.held_out, source.dtype, 0.0)
    both = Tokens(train, below), Tokens(held_out, below)
    # Reading a sample also checks that its ids are not too large.
    samples = [sample for tokens in both if len(tokens) for sample in tokens.sample()]
    if source.dtype == "uint16" and all(_every_other_is_zero(sample) for sample in samples):
        raise MeshDSLError(
            f"every other token of `{files.train[0].path}` is 0, as if it were uint32; "
            f"set data.sources.{files.name}.dtype=uint32"
        )
    largest = max(int(sample.max()) for sample in samples)
    if config.data.separate and largest >= tokenizer.vocab:
        raise MeshDSLError(
            "data.separate: where documents end is told by the tokenizer, "
            "and these are not its tokens; set data.tokenizer"
        )
    return Dataset(files.name, source.weight, both, None)


def _every_other_is_zero(tokens: np.ndarray) -> bool:
    return len(tokens) > 1 and bool(tokens[::2].any()) != bool(tokens[1::2].any())


def _open_text(
    files: DatasetFiles, config: Config, tokenizer: Tokenizer, report: Report
) -> Dataset:
    cache = cache_folder(config)
    of_chat = files.source.format == "chat"
    if of_chat and not config.data.separate:
        raise MeshDSLError(
            "format=chat: needs data.separate=true, by which conversations in a row are kept apart "
            "and what is not trained on counts nothing"
        )
    written = Conversations(tokenizer) if of_chat else None

    def tokenize(some: list[File], held_out: float) -> CachedTokens:
        if written is None:
            field = files.source.field or TEXT
            cached = cached_tokens(some, field, tokenizer, held_out, cache, report)
        else:
            field = files.source.field or MESSAGES
            cached = cached_conversations(some, field, tokenizer, written, held_out, cache)
        if not any(counts.tokens for counts in cached.counts):
            raise nothing_in([file.path for file in some[:3]])
        return cached

    ranges, counts = tokenize(files.train, 0.0 if files.held_out else config.data.validation)
    if files.held_out:
        held_out = tokenize(files.held_out, 0.0)
        ranges = ranges[0], held_out.ranges[0]
        counts = counts[0], held_out.counts[0]
    tokens = Tokens(ranges[0]), Tokens(ranges[1])
    return Dataset(files.name, files.source.weight, tokens, counts, of_chat)
