"""Images in a column of parquet files."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from meshdsl.errors import MeshDSLError, quote
from meshdsl.train.config import Config
from meshdsl.train.data.cache_entry import cache_folder, entry_name
from meshdsl.train.data.cached_table import cached_table
from meshdsl.train.data.file_rows import read_rows
from meshdsl.train.data.files import File, find_files, nothing_in
from meshdsl.train.data.held_out import hash_of
from meshdsl.train.data.image_sets import sample_digest
from meshdsl.train.data.pixels import decoded
from meshdsl.train.data.task import Report


class ParquetImages:
    """Images in a column of parquet files, which are unpacked into the cache once.

    A cell has the bytes of an image file, alone or as the `bytes` of a struct, or the numbers of
    the image as a list or a list of lists.

    Args:
      field: the column of images.
      label: the column of labels; None where they are not wanted.
    """

    def __init__(
        self, paths: Sequence[str], field: str, label: str | None, config: Config, report: Report
    ):
        files = find_files(paths, "parquet")
        if not files:
            raise nothing_in(paths)
        self._files = [file.path for file in files]
        entry = cache_folder(config) / entry_name(files, "images 2", field, label)
        columns = ["image", "hash", "file", "row", *([] if label is None else ["label"])]

        def rows() -> Iterator[tuple[Any, ...]]:
            report(f"unpacking the images of {len(files):,} parquet files into {entry}")
            return _unpacked(files, field, label)

        self._table = cached_table(entry, columns, rows)
        if not len(self):
            raise nothing_in(paths)
        self.labels = None if label is None else self._table["label"].to_numpy()
        if self.labels is not None and self.labels.dtype == object:
            self.labels = np.array(self.labels.tolist())  # names
        self.hashes = self._table["hash"].to_numpy()

    def __len__(self) -> int:
        return len(self._table)

    def read(self, number: int) -> tuple[np.ndarray, None]:
        return decoded(self._table["image"][number].as_py(), self.place(number)), None

    def place(self, number: int) -> str:
        file, row = (self._table[name][number].as_py() for name in ("file", "row"))
        return f"`{self._files[file]}` row {row}"

    def digest(self) -> str:
        listing = iter([hashlib.sha256(self.hashes.tobytes()).hexdigest()])
        return sample_digest(len(self), listing, self.labels, lambda number: b"")


def _unpacked(files: Sequence[File], field: str, label: str | None) -> Iterator[tuple[Any, ...]]:
    """Of every image of some parquet files: the image, its hash, its file and row, its label."""
    kind = None
    for file, each in enumerate(files):
        rows = read_rows(each, [field] if label is None else [field, label])
        for number, (where, (cell, *labels), _) in enumerate(rows, 1):
            content = _content_of_cell(cell, field, where)
            labels = [_label_of_cell(found, label, where) for found in labels]
            kind = kind or [type(found) for found in labels]
            if kind != [type(found) for found in labels]:
                raise MeshDSLError(f"{where}: the column `{label}` has both names and numbers")
            yield content, np.uint64(hash_of([content])), file, number, *labels


def _content_of_cell(cell: Any, field: str, where: str) -> bytes:
    """The bytes of an image file, from a cell; of a list of numbers those of a `.npy` file."""
    content = cell.get("bytes") if isinstance(cell, dict) else cell
    if isinstance(content, bytes) and content:
        return content
    if isinstance(cell, dict) and cell.get("path"):
        raise MeshDSLError(
            f"{where}: the column `{field}` has the path of a file, `{cell['path']}`, and not its "
            "bytes"
        )
    if isinstance(content, list):
        try:
            array = np.array(content)
        except ValueError:
            array = np.array(None)
        if array.dtype.kind in "iuf":
            if array.dtype.kind in "iu" and array.size and 0 <= array.min() and array.max() < 256:
                array = array.astype(np.uint8)
            out = io.BytesIO()
            np.save(out, array)
            return out.getvalue()
    raise MeshDSLError(
        f"{where}: the column `{field}` has {quote(cell)}; expected the bytes of an image, a "
        "struct with `bytes`, or lists of numbers"
    )


def _label_of_cell(cell: Any, label: str | None, where: str) -> str | int:
    if isinstance(cell, str) or (type(cell) is int and abs(cell) < 2**63):
        return cell
    raise MeshDSLError(
        f"{where}: the column `{label}` has {quote(cell)}; expected the name of a class, or its "
        "number"
    )
