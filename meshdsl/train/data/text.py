"""The task `text`: sequences of tokens, of which each predicts the next.

The files of its datasets are found and checked, text is tokenized, and the tokens are cut into
sequences.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from meshdsl.dims import Dim
from meshdsl.dims import show as show_dims
from meshdsl.errors import MeshDSLError
from meshdsl.tensor import Tensor
from meshdsl.train.config import Config, Source
from meshdsl.train.data.batches import Batch
from meshdsl.train.data.cache import Subset, cached_tokens
from meshdsl.train.data.cache_entry import Report, cache_folder
from meshdsl.train.data.conversations import MESSAGES, Conversations
from meshdsl.train.data.documents import documents
from meshdsl.train.data.files import (
    File,
    checked_sources,
    errors_say,
    files_of,
    find_files,
    library_folder,
    nothing_in,
)
from meshdsl.train.data.mixture import Data, Part
from meshdsl.train.data.sequences import (
    NO_TOKEN,
    Tokens,
    batch_of,
    cut_sequences,
    packed_conversations,
    token_file_ranges,
)
from meshdsl.train.data.task import Fields, Task, known_fields, say_validation
from meshdsl.train.data.tokenizer import Tokenizer, fitting_tokenizer
from meshdsl.train.watch.units import bits_per_byte, perplexity

DEFAULT = "python"  # the name of the dataset where the settings have none: the standard library
FORMATS = ("text", "jsonl", "parquet", "arrow", "tokens", "chat")
TEXT = "text"  # the field or column that holds the text, where the settings name none
_SEPARATE = ("segments", "positions")


class TextTask(Task):
    """Sequences of tokens: `tokens` and `targets` (batch, length; int32).

    With `data.separate` also `segments` and `positions`, like `tokens`.
    """

    name, unit = "text", "token"

    def fields(self, config: Config, rows: Dim) -> dict[str, Tensor]:
        separate = _SEPARATE if config.data.separate else ()
        known: dict[str, int | None] = {"tokens": 1, "targets": 1, **dict.fromkeys(separate, 1)}
        fields = known_fields(self.name, config, rows, known, "tokens")
        fields |= dict.fromkeys(separate, fields["tokens"])
        for name, field in fields.items():
            if field.dims != fields["tokens"].dims or field.dtype != "int32":
                raise MeshDSLError(
                    f"data.task=text: `{name}` is int32 {show_dims(fields['tokens'].dims)} like "
                    f"`tokens`, and the model's batch has {field.dtype} {show_dims(field.dims)}"
                )
        return fields

    def units_per_row(self, fields: Fields) -> int:
        return fields["tokens"].dims[-1].size

    def open(self, config: Config, fields: Fields, report: Report) -> Data:
        tokenizer, length = fitting_tokenizer(config), self.units_per_row(fields)
        found = _found_files(config)
        parts = {}
        # What can be refused without tokenizing is refused before anything is tokenized.
        for each in sorted(found, key=lambda each: not each.are_tokens):
            with errors_say(f"data.sources.{each.name}" if config.data.sources else "data"):
                parts[each.name] = _part(each, config, tokenizer, length, report)

        def collate(rows: Sequence[np.ndarray | None]) -> Batch:
            sequences = np.full((len(rows), length + 1), NO_TOKEN, np.int32)
            for i, row in enumerate(rows):
                if row is not None:
                    sequences[i] = row
            batch = batch_of(sequences, tokenizer.separator if config.data.separate else None)
            return {name: array for name, array in batch.items() if name in fields}

        return Data(
            config,
            f"data, by the tokenizer {tokenizer.name} of {tokenizer.vocab:,} tokens",
            [parts[each.name] for each in found],
            collate,
            fills=True,
            tokenizer=tokenizer,
            length=length,
        )

    def derived(self, measured: Mapping[str, float], data: Data, name: str) -> dict[str, float]:
        found = {"perplexity": perplexity(measured["loss"])}
        if per_token := data.bytes_per_token.get(name):
            found["bits_per_byte"] = bits_per_byte(measured["loss"], per_token)
        return found

    def words(self, measured: Mapping[str, float], which: str = "") -> str:
        bits = measured.get("bits_per_byte")
        unit = " nats/token" if bits is None else f" nats/token, {bits:.3f} bits/byte"
        reported = {k: v for k, v in measured.items() if k not in ("perplexity", "bits_per_byte")}
        return say_validation(reported, which, unit)


class _Found(NamedTuple):
    """The files of a dataset, before anything of them is tokenized.

    Attributes:
      held_out: files for validation; where there are none, a fraction of `train` is held out.
    """

    name: str
    source: Source
    train: list[File]
    held_out: list[File]

    @property
    def are_tokens(self) -> bool:
        """Whether the files hold tokens rather than text."""
        return self.train[0].format == "tokens"


def _found_files(config: Config) -> list[_Found]:
    """The files of each dataset; those of the standard library where the settings name none."""
    if not config.data.sources:
        files = find_files([library_folder()], suffix=".py")
        return [_Found(DEFAULT, Source(), [file._replace(format="text") for file in files], [])]
    found = []
    for name, source in checked_sources("text", config, formats=FORMATS, functions=False):
        with errors_say(f"data.sources.{name}"):
            train, held_out = files_of(source)
            by_format = {file.format: file for file in (*train, *held_out)}
            if len({format == "tokens" for format in by_format}) > 1:
                raise MeshDSLError("token files and text in one dataset; make it two")
            for format, file in by_format.items():
                if format not in ("tokens", "chat"):
                    # The first document of a file shows a wrong field or format.
                    next(documents(file, source.field or TEXT), None)
        found.append(_Found(name, source, train, held_out))
    return found


def _part(found: _Found, config: Config, tokenizer: Tokenizer, length: int, report: Report) -> Part:
    if found.are_tokens:
        both = _token_files(found, config, tokenizer)
    else:
        both = _tokenized(found, config, tokenizer, report)
    if found.source.format == "chat":
        train, held_out = (packed_conversations(each.tokens, length) for each in both)
    else:
        # A row that is not full needs the mask that keeps documents apart.
        train = cut_sequences(both[0].tokens, length, partial=config.data.separate)
        held_out = cut_sequences(both[1].tokens, length, partial=True)
    words = [
        f"{len(each.tokens):,} tokens"
        + (f" of {each.documents:,} documents" if each.documents is not None else "")
        for each in both
    ]
    size = f"{len(both[0].tokens):,} tokens"
    return Part(
        found.name,
        found.source.weight,
        train,
        held_out if len(held_out) else None,
        f"{words[0]}; held out {words[1]}",
        f"{size} in {len(train):,} windows of {length}",
        size,
        (_bytes_per_token(both[0], tokenizer), _bytes_per_token(both[1], tokenizer)),
    )


def _token_files(found: _Found, config: Config, tokenizer: Tokenizer) -> tuple[Subset, Subset]:
    dtype, vocab = found.source.dtype, getattr(config.model, "vocab", None)
    below = vocab if vocab is not None and vocab <= np.iinfo(dtype).max else None
    fraction = 0.0 if found.held_out else config.data.validation
    train, held_out = token_file_ranges(found.train, dtype, fraction)
    if found.held_out:
        held_out, _ = token_file_ranges(found.held_out, dtype, 0.0)
    both = Subset(Tokens(train, below)), Subset(Tokens(held_out, below))
    # Reading a sample also checks that its ids are not too large.
    samples = [sample for each in both if len(each.tokens) for sample in each.tokens.sample()]
    if dtype == "uint16" and all(_every_other_is_zero(sample) for sample in samples):
        raise MeshDSLError(
            f"every other token of `{found.train[0].path}` is 0, as if it were uint32; "
            f"set data.sources.{found.name}.dtype=uint32"
        )
    if config.data.separate and max(int(sample.max()) for sample in samples) >= tokenizer.vocab:
        raise MeshDSLError(
            "data.separate: where documents end is told by the tokenizer, "
            "and these are not its tokens; set data.tokenizer"
        )
    return both


def _every_other_is_zero(tokens: np.ndarray) -> bool:
    return len(tokens) > 1 and bool(tokens[::2].any()) != bool(tokens[1::2].any())


def _tokenized(
    found: _Found, config: Config, tokenizer: Tokenizer, report: Report
) -> tuple[Subset, Subset]:
    source, cache = found.source, cache_folder(config)
    if source.format == "chat" and not config.data.separate:
        raise MeshDSLError(
            "format=chat: needs data.separate=true, by which conversations in a row are kept apart "
            "and what is not trained on counts nothing"
        )
    chat = Conversations(tokenizer) if source.format == "chat" else None
    field = source.field or (TEXT if chat is None else MESSAGES)

    def tokenize(files: list[File], fraction: float) -> tuple[Subset, Subset]:
        both = cached_tokens(files, field, tokenizer, fraction, cache, report, chat)
        if not any(len(each.tokens) for each in both):
            raise nothing_in([file.path for file in files[:3]])
        return both

    train, held_out = tokenize(found.train, 0.0 if found.held_out else config.data.validation)
    return train, tokenize(found.held_out, 0.0)[0] if found.held_out else held_out


def _bytes_per_token(subset: Subset, tokenizer: Tokenizer) -> float | None:
    """The mean number of bytes of text in a token; a separator counts as one byte.

    For token files it is estimated from a sample that the tokenizer decodes.

    Returns:
      None where the tokenizer does not know the tokens, and for conversations, of which not all is
      measured.
    """
    if subset.bytes is not None:
        return subset.bytes / max(1, len(subset.tokens))
    if subset.documents is not None or not len(subset.tokens):
        return None
    size = count = 0
    for tokens in subset.tokens.sample(reads=16):
        if tokens.max() >= tokenizer.vocab:
            return None
        is_separator = tokens == tokenizer.separator
        text = tokenizer.decode(tokens[~is_separator]).encode("utf-8", "replace")
        size += len(text) + int(is_separator.sum())
        count += len(tokens)
    return size / max(1, count)
