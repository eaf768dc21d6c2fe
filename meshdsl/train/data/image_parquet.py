"""Images in a column of parquet files."""

from __future__ import annotations

import bisect
import hashlib
import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from meshdsl.errors import MeshDSLError, quote
from meshdsl.train.config import Config
from meshdsl.train.data.cache_entry import cache_folder, entry_name
from meshdsl.train.data.documents import parquet_batches
from meshdsl.train.data.files import find_files
from meshdsl.train.data.held_out import hash_of
from meshdsl.train.data.image_sets import sample_digest
from meshdsl.train.data.pixels import decoded
from meshdsl.train.data.records import Put, cached_records
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
            raise MeshDSLError(f"nothing to read in {', '.join(f'`{path}`' for path in paths)}")
        self._files = [file.path for file in files]
        entry = cache_folder(config) / entry_name(files, "images 1", field, label)
        names = ["hashes", "rows", *([] if label is None else ["labels"])]

        def write(put: Put) -> dict[str, np.ndarray]:
            report(f"unpacking the images of {len(files):,} parquet files into {entry}")
            return _unpacked(self._files, field, label, put)

        self._records, arrays = cached_records(entry, names, write)
        self.labels, self.hashes = arrays.get("labels"), arrays["hashes"]
        self._ends = arrays["rows"].tolist()
        if not len(self):
            raise MeshDSLError(f"nothing to read in {', '.join(f'`{path}`' for path in paths)}")

    def __len__(self) -> int:
        return len(self._records)

    def read(self, number: int) -> tuple[np.ndarray, None]:
        return decoded(self._records[number].tobytes(), self.place(number)), None

    def place(self, number: int) -> str:
        file = bisect.bisect_right(self._ends, number)
        before = self._ends[file - 1] if file else 0
        return f"`{self._files[file]}` row {number - before + 1:,}"

    def digest(self) -> str:
        listing = iter([hashlib.sha256(self.hashes.tobytes()).hexdigest()])
        return sample_digest(len(self), listing, self.labels, lambda number: b"")


def _unpacked(
    paths: Sequence[Path], field: str, label: str | None, put: Put
) -> dict[str, np.ndarray]:
    """Put every image of some parquet files; gives their hashes, labels, and where files end."""
    hashes, labels, rows = [], [], []
    columns = [field] if label is None else [field, label]
    for path in paths:
        with parquet_batches(path, columns, rows=64, text=False) as batches:
            for batch in batches:
                cells = [batch.column(column).to_pylist() for column in columns]
                for row in zip(*cells, strict=True):
                    where = f"`{path}` row {len(hashes) + 1 - (rows[-1] if rows else 0):,}"
                    content = _content_of_cell(row[0], field, where)
                    put(content)
                    hashes.append(hash_of([content]))
                    labels += [_label_of_cell(each, label, where) for each in row[1:]]
        rows.append(len(hashes))
    found = {"hashes": np.array(hashes, np.uint64), "rows": np.array(rows, np.int64)}
    if label is None:
        return found
    if len({type(each) for each in labels}) > 1:
        raise MeshDSLError(f"`{paths[0]}`: the column `{label}` has both names and numbers")
    return {**found, "labels": np.array(labels)}


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
    if isinstance(cell, str) or (isinstance(cell, int) and not isinstance(cell, bool)):
        return cell
    raise MeshDSLError(
        f"{where}: the column `{label}` has {quote(cell)}; expected the name of a class, or its "
        "number"
    )
