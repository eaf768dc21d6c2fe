"""The task `pairs`: two texts that belong together, as a question and its answer."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from meshdsl.dims import Dim
from meshdsl.dims import show as show_dims
from meshdsl.errors import MeshDSLError
from meshdsl.tensor import Tensor
from meshdsl.train.config import Config, Source
from meshdsl.train.data.batches import Numbered
from meshdsl.train.data.cache import id_dtype
from meshdsl.train.data.cache_entry import (
    Report,
    cache_folder,
    cached_table,
    entry_name,
    in_groups,
)
from meshdsl.train.data.documents import read_texts
from meshdsl.train.data.fields import collate_fields
from meshdsl.train.data.files import File, checked_sources, errors_say, files_of, nothing_in
from meshdsl.train.data.held_out import hash_of
from meshdsl.train.data.mixture import Data, Part, part_of
from meshdsl.train.data.task import Fields, Task, known_fields
from meshdsl.train.data.tokenizer import Tokenizer, fitting_tokenizer
from meshdsl.train.watch.units import perplexity

FORMATS = ("jsonl", "parquet")
NO_TARGET = -1  # where the second text has ended
_TEXTS = ("source", "target")
_SEQUENCES = ("source", "target", "tokens", "targets")
_LENGTHS = {"source_length": "source", "target_length": "target"}


class PairsTask(Task):
    """Pairs of texts, as tokens (batch, and the dim of a sequence; int32).

    A model asks for `source` and for what it needs of these:

    - `source`, `target`: the tokens of the two texts, filled up with the tokenizer's separator;
    - `source_length`, `target_length` (batch): how many tokens they have;
    - `tokens`, `targets`: the second text as a decoder reads and predicts it: `tokens` begin with
      the separator, `targets` end with it and are -1 from there on.

    Texts that are longer than the dims of the batch are cut.
    """

    name, unit = "pairs", "pair"

    def fields(self, config: Config, rows: Dim) -> dict[str, Tensor]:
        known = {**dict.fromkeys(_SEQUENCES, 1), **dict.fromkeys(_LENGTHS, 0)}
        fields = known_fields(self.name, config, rows, known, "source")
        for name, of in _LENGTHS.items():
            if name in fields and of not in fields:
                raise MeshDSLError(
                    f"data.task=pairs: `{name}` says how long `{of}` is, which the model's batch "
                    "does not have"
                )
        both = [fields[name] for name in ("tokens", "targets") if name in fields]
        if len(both) == 2 and both[0].dims != both[1].dims:
            raise MeshDSLError(
                f"data.task=pairs: `tokens` and `targets` have the same dims, and those of the "
                f"model's batch are {show_dims(both[0].dims)} and {show_dims(both[1].dims)}"
            )
        return fields

    def open(self, config: Config, fields: Fields, report: Report) -> Data:
        tokenizer = fitting_tokenizer(config)
        sources = checked_sources(self.name, config, formats=FORMATS, functions=False)
        files = {name: _files_of(name, source) for name, source in sources}
        parts = []
        for name, source in sources:
            with errors_say(f"data.sources.{name}"):
                parts.append(_part((name, source), files[name], config, fields, tokenizer))
        return Data(
            config,
            f"data, pairs by the tokenizer {tokenizer.name} of {tokenizer.vocab:,} tokens",
            parts,
            collate_fields(fields, {"targets": NO_TARGET}),
            fills="targets" in fields,
            tokenizer=tokenizer,
        )

    def derived(self, measured: Mapping[str, float], data: Data, name: str) -> dict[str, float]:
        # Where the batch has targets, the loss is one of tokens.
        return {"perplexity": perplexity(measured["loss"])} if data.fills else {}


def _pair_rows(table: Any, fields: Fields, separator: int) -> Numbered:
    """The rows of a batch.

    Args:
      table: of Arrow, with the ids of the two texts of each pair, `source` and `target`.
    """
    sizes = _sizes(fields)
    lengths = {name: of for name, of in _LENGTHS.items() if name in fields}
    end = np.array([separator], np.int32)

    def read(number: int) -> dict[str, np.ndarray]:
        source, target = (table[name][number].values.to_numpy().astype(np.int32) for name in _TEXTS)
        texts = {"source": source, "target": target}
        texts["tokens"] = np.concatenate([end, target])
        texts["targets"] = np.concatenate([target, end])
        row = {}
        for name, size in sizes.items():
            text = texts[name][:size]
            row[name] = np.full(size, NO_TARGET if name == "targets" else separator, np.int32)
            row[name][: len(text)] = text
        for name, of in lengths.items():
            row[name] = np.asarray(min(len(texts[of]), sizes[of]), np.int32)
        return row

    return Numbered(len(table), read)


def _sizes(fields: Fields) -> dict[str, int]:
    """How many tokens each field of tokens has room for."""
    return {name: field.dims[1].size for name, field in fields.items() if name not in _LENGTHS}


def _cut(table: Any, fields: Fields) -> int:
    """How many pairs have a text that is longer than the dims of the batch."""
    lengths = [
        np.concatenate([chunk.value_lengths().to_numpy() for chunk in table[name].chunks])
        for name in _TEXTS
    ]
    sizes = _sizes(fields)
    # The second text is as long as the decoder's without the separator.
    ends = [sizes[name] - 1 for name in ("tokens", "targets") if name in sizes]
    most = sizes["source"], min([sizes.get("target", np.inf), *ends])
    return int(((lengths[0] > most[0]) | (lengths[1] > most[1])).sum())


def _files_of(name: str, source: Source) -> tuple[list[File], list[File]]:
    """The files of a source: those that are trained on, and those that it brings for validation."""
    with errors_say(f"data.sources.{name}"):
        both = files_of(source)
        for file in (*both[0], *both[1]):
            if file.format not in FORMATS:
                raise MeshDSLError(
                    f"`{file.path}`: pairs are read from JSONL (.jsonl) and parquet (.parquet); "
                    "say which of these it is by `format`"
                )
            # The first pair of a file shows a wrong field or format.
            next(read_texts(file, _columns(source)), None)
    return both


def _columns(source: Source) -> list[str]:
    """The names of the two texts in the files."""
    return [source.field or "source", source.label or "target"]


def _part(
    named: tuple[str, Source],
    files: tuple[list[File], list[File]],
    config: Config,
    fields: Fields,
    tokenizer: Tokenizer,
) -> Part:
    tables = [_tokenized(some, named[1], config, tokenizer) for some in files if some]
    rows, *own = (_pair_rows(table, fields, tokenizer.separator) for table in tables)
    hashes = tables[0]["hash"].to_numpy()
    digest, cut = f"{hash_of([hashes.tobytes()]):016x}", sum(_cut(each, fields) for each in tables)
    said = f"; {cut:,} of them are cut" if cut else ""
    held_out = own[0] if own else None
    return part_of(named, config, rows, held_out, hashes, "pairs", digest, said)


def _tokenized(files: list[File], source: Source, config: Config, tokenizer: Tokenizer) -> Any:
    """The table of the tokens of all pairs, from the cache if it is there, else added to it.

    A pair of which one text is empty is passed over.
    """
    dtype, columns = id_dtype(tokenizer), _columns(source)
    entry = cache_folder(config) / entry_name(files, "pairs 2", columns, tokenizer.digest)

    def rows() -> Iterator[tuple[Any, ...]]:
        pairs = (pair for file in files for pair in read_texts(file, columns) if all(pair))
        for group in in_groups(pairs, lambda pair: len(pair[0]) + len(pair[1])):
            encoded = iter(tokenizer.encode_blocks([text for pair in group for text in pair]))
            for pair, *ids in zip(group, encoded, encoded, strict=True):
                found = np.uint64(hash_of([pair[0], b"\0", pair[1]]))
                yield *(each.astype(dtype, copy=False) for each in ids), found

    table = cached_table(entry, [*_TEXTS, "hash"], rows)
    if not len(table):
        raise nothing_in([file.path for file in files[:3]])
    return table
