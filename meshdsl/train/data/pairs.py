"""The task `pairs`: two texts that belong together, as a question and its answer."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from meshdsl.dims import Dim
from meshdsl.dims import show as show_dims
from meshdsl.errors import MeshDSLError
from meshdsl.tensor import Tensor
from meshdsl.train.config import Config, Source
from meshdsl.train.data.cache import id_dtype
from meshdsl.train.data.cache_entry import cache_folder, entry_name
from meshdsl.train.data.documents import text_rows
from meshdsl.train.data.field_arrays import collate_fields
from meshdsl.train.data.files import File, find_files
from meshdsl.train.data.held_out import Chosen, divided, hash_of
from meshdsl.train.data.mixture import Data, Part
from meshdsl.train.data.records import CachedRecords, Put, Records, cached_records
from meshdsl.train.data.sources import checked_sources, errors_say
from meshdsl.train.data.task import Fields, Report, check_kind, known_fields, say_validation
from meshdsl.train.data.text import fitting_tokenizer
from meshdsl.train.data.tokenizer import Tokenizer
from meshdsl.train.watch.units import perplexity

FORMATS = ("jsonl", "parquet")
NO_TARGET = -1  # where the second text has ended
_AT_ONCE = 2**23  # bytes of text that are tokenized at once
_SEQUENCES = ("source", "target", "tokens", "targets")
_LENGTHS = {"source_length": "source", "target_length": "target"}


class PairsTask:
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
        known = (*_SEQUENCES, *_LENGTHS)
        fields = known_fields(self.name, config, rows, known, "source")
        for name, field in fields.items():
            if name in _LENGTHS:
                check_kind(self.name, name, field, "the dim of the rows", 0)
                if _LENGTHS[name] not in fields:
                    raise MeshDSLError(
                        f"data.task=pairs: `{name}` says how long `{_LENGTHS[name]}` is, which the "
                        "model's batch does not have"
                    )
            else:
                check_kind(self.name, name, field, "the dims of rows and of a sequence", 1)
        both = [fields[name] for name in ("tokens", "targets") if name in fields]
        if len(both) == 2 and both[0].dims != both[1].dims:
            raise MeshDSLError(
                f"data.task=pairs: `tokens` and `targets` have the same dims, and those of the "
                f"model's batch are {show_dims(both[0].dims)} and {show_dims(both[1].dims)}"
            )
        return fields

    def units_per_row(self, fields: Fields) -> int:
        return 1

    def open(self, config: Config, fields: Fields, report: Report) -> Pairs:
        tokenizer = fitting_tokenizer(config)
        sources = checked_sources(self.name, config, formats=FORMATS, functions=False)
        files = {name: _files_of(name, source) for name, source in sources}
        parts = []
        for name, source in sources:
            with errors_say(f"data.sources.{name}"):
                parts.append(_part(name, source, files[name], config, fields, tokenizer, report))
        return Pairs(config, fields, tokenizer, parts)

    def derived(self, measured: Mapping[str, float], data: Data, name: str) -> dict[str, float]:
        if isinstance(data, Pairs) and data.predicts:
            return {"perplexity": perplexity(measured["loss"])}
        return {}

    def words(self, measured: Mapping[str, float], which: str = "") -> str:
        return say_validation(measured, which)


class Pairs(Data):
    """What a run on pairs reads.

    Attributes:
      predicts: whether the batch has targets, so that a loss is one of tokens.
    """

    # Declared by `Data`, where there may be none.
    tokenizer: Tokenizer  # pyright: ignore[reportIncompatibleVariableOverride]

    def __init__(self, config: Config, fields: Fields, tokenizer: Tokenizer, parts: Sequence[Part]):
        self.tokenizer, self.predicts = tokenizer, "targets" in fields
        super().__init__(
            config,
            f"data, pairs by the tokenizer {tokenizer.name} of {tokenizer.vocab:,} tokens",
            parts,
            collate_fields(fields, {"targets": NO_TARGET}),
            fills=self.predicts,
            also={"the tokenizer": f"{tokenizer.vocab:,} tokens ({tokenizer.digest[:12]})"},
        )

    @property
    def digest(self) -> str:
        return f"{super().digest}\n{self.tokenizer.digest}"


class PairRows:
    """The rows of a batch.

    Args:
      records: the ids of each pair's two texts, one after the other.
      dtype: of the ids.
    """

    def __init__(self, records: Records, dtype: str, fields: Fields, tokenizer: Tokenizer):
        self._records, self._dtype = records, dtype
        self._separator = tokenizer.separator
        self._sizes = {
            name: field.dims[1].size for name, field in fields.items() if name not in _LENGTHS
        }
        self._lengths = {name: of for name, of in _LENGTHS.items() if name in fields}

    def __len__(self) -> int:
        return len(self._records) // 2

    def __getitem__(self, number: int) -> dict[str, np.ndarray]:
        source, target = (
            self._records[2 * number + i].view(self._dtype).astype(np.int32) for i in (0, 1)
        )
        end = np.array([self._separator], np.int32)
        texts = {"source": source, "target": target}
        if "tokens" in self._sizes or "targets" in self._sizes:
            texts |= {
                "tokens": np.concatenate([end, target]),
                "targets": np.concatenate([target, end]),
            }
        row = {}
        for name, size in self._sizes.items():
            fill = NO_TARGET if name == "targets" else self._separator
            text = texts[name][:size]
            row[name] = np.full(size, fill, np.int32)
            row[name][: len(text)] = text
        for name, of in self._lengths.items():
            row[name] = np.asarray(min(len(texts[of]), self._sizes[of]), np.int32)
        return row

    def cut(self) -> int:
        """How many pairs have a text that is longer than the dims of the batch."""
        size = np.dtype(self._dtype).itemsize
        lengths = np.diff(self._records.ends, prepend=0).reshape(-1, 2) // size
        most = [self._sizes["source"], self._sizes.get("target", np.inf)]
        for name in ("tokens", "targets"):
            most[1] = min(most[1], self._sizes.get(name, np.inf) - 1)
        return int((lengths > np.array(most)).any(axis=1).sum())


def _files_of(name: str, source: Source) -> tuple[list[File], list[File]]:
    """The files of a source: those that are trained on, and those that it brings for validation."""
    with errors_say(f"data.sources.{name}"):
        both = find_files(source.paths, source.format), find_files(source.validation, source.format)
        for files, paths in zip(both, (source.paths, source.validation), strict=True):
            if paths and not any(file.size for file in files):
                raise MeshDSLError(f"nothing to read in {', '.join(f'`{path}`' for path in paths)}")
        for file in (*both[0], *both[1]):
            if file.format not in FORMATS:
                raise MeshDSLError(
                    f"`{file.path}`: pairs are read from JSONL (.jsonl) and parquet (.parquet); "
                    "say which of these it is by `format`"
                )
            # The first pair of a file shows a wrong field or format.
            next(text_rows(file, _columns(source)), None)
    return both


def _columns(source: Source) -> list[str]:
    """The names of the two texts in the files."""
    return [source.field or "source", source.label or "target"]


def _part(
    name: str,
    source: Source,
    files: tuple[list[File], list[File]],
    config: Config,
    fields: Fields,
    tokenizer: Tokenizer,
    report: Report,
) -> Part:
    def open_some(some: list[File]) -> tuple[PairRows, np.ndarray]:
        records, arrays = _tokenized(some, _columns(source), config, tokenizer, report)
        if not len(records):
            raise MeshDSLError(
                f"nothing to read in {', '.join(f'`{file.path}`' for file in some[:3])}"
            )
        return PairRows(records, id_dtype(tokenizer), fields, tokenizer), arrays["hashes"]

    rows, hashes = open_some(files[0])
    own = open_some(files[1])[0] if files[1] else None
    trained, rest = divided(hashes, config.data.validation if own is None else 0.0)
    held_out = own if own is not None else Chosen(rows, rest) if len(rest) else None
    cut = rows.cut() + (0 if own is None else own.cut())
    said = f"; {cut:,} of them are cut" if cut else ""
    digest = hash_of([hashes.tobytes()])
    return Part(
        name,
        source.weight,
        Chosen(rows, trained),
        held_out,
        f"{len(trained):,} pairs; held out {len(held_out or ()):,}{said}",
        f"{len(trained):,} of {len(rows):,} pairs ({digest:016x})",
        f"{len(trained):,} pairs",
    )


def _tokenized(
    files: list[File], columns: list[str], config: Config, tokenizer: Tokenizer, report: Report
) -> CachedRecords:
    """The tokens of all pairs, from the cache if they are there, else added to it.

    A pair of which one text is empty is passed over.
    """
    entry = cache_folder(config) / entry_name(files, "pairs 1", columns, tokenizer.digest)
    dtype = id_dtype(tokenizer)

    def write(put: Put) -> dict[str, np.ndarray]:
        hashes = []
        for group in _groups(files, columns):
            blocks = [text for pair in group for text in pair]
            for ids in tokenizer.encode_blocks(blocks):
                put(ids.astype(dtype, copy=False).tobytes())
            hashes += [hash_of([source, b"\0", target]) for source, target in group]
        return {"hashes": np.array(hashes, np.uint64)}

    return cached_records(entry, ["hashes"], write)


def _groups(files: list[File], columns: list[str]) -> Iterator[list[tuple[bytes, bytes]]]:
    """The pairs that are tokenized at once, _AT_ONCE bytes or little more."""
    group, size = [], 0
    for file in files:
        for source, target in text_rows(file, columns):
            if source and target:
                group.append((source, target))
                size += len(source) + len(target)
            if size >= _AT_ONCE:
                yield group
                group, size = [], 0
    if group:
        yield group
