"""Images of a dataset by number: in folders, arrays or tables, or from a function of the user's."""

from __future__ import annotations

import bisect
import hashlib
import io
import os
import struct
import zipfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from meshdsl.errors import MeshDSLError, nearest, quote
from meshdsl.links import check_stays
from meshdsl.train.config import Config
from meshdsl.train.data.cache_entry import Report, cache_folder, cached_table, entry_name
from meshdsl.train.data.documents import read_rows
from meshdsl.train.data.examples import PythonRows
from meshdsl.train.data.fields import ARRAY, DAMAGED_ARRAY, PICTURES, decoded, said_of
from meshdsl.train.data.files import File, failures_say, find_files, nothing_in
from meshdsl.train.data.held_out import hash_of, hashes_of_numbers

_SAMPLES = 16  # images whose content is part of the digest of a dataset


class Images(NamedTuple):
    """Images of a dataset, with their labels.

    Attributes:
      hashes: uint64 of each image, by which it is held out.
      labels: of all images: names of classes, or whole numbers. None where they are not known
        before an image is read, or not wanted.
      read: gives an image as it is stored; and its label, where `labels` does not have it.
      place: where an image is, for errors.
      digest: a hash that is another one for other images, from a sample of their content.
    """

    hashes: np.ndarray
    labels: np.ndarray | None
    read: Callable[[int], tuple[np.ndarray, Any]]
    place: Callable[[int], str]
    digest: Callable[[], str]


def function_images(examples: PythonRows, field: str, label: str | None) -> Images:
    """Images that a function of the user's gives, as dicts of arrays.

    Args:
      field: the key of the image.
      label: the key of its label; None where it is not wanted.
    """
    keys = [field, *([] if label is None else [label])]
    place = lambda number: f"{examples.what}: example {number:,}"

    def read(number: int) -> tuple[np.ndarray, Any]:
        example = examples[number]
        for key in keys:
            if key not in example:
                has = ", ".join(f"`{each}`" for each in example) or "nothing"
                raise MeshDSLError(f"{place(number)} has {has} and no `{key}`")
        return np.asarray(example[field]), None if label is None else example[label]

    return Images(hashes_of_numbers(len(examples)), None, read, place, examples.digest)


def _sample_digest(count: int, listing: Iterable[str], labels: Any, content: Callable) -> str:
    """A hash of what there is, of all labels, and of the content of a sample of the images."""
    found = hashlib.sha256(str(count).encode())
    for line in listing:
        found.update(line.encode())
    if labels is not None:
        found.update(f"{labels.dtype}".encode() + labels.tobytes())
    for number in np.unique(np.linspace(0, max(0, count - 1), min(count, _SAMPLES)).astype(int)):
        found.update(content(int(number)))
    return found.hexdigest()[:12]


# -- folders ---------------------------------------------------------------------------------------


def folder_images(roots: Sequence[str], labeled: bool) -> Images:
    """Image files in folders, one folder for each class: `cats/1.png`, `dogs/1.png`.

    Args:
      roots: the folders that have the folders of the classes.
      labeled: whether labels are wanted; if not, files may lie anywhere below the roots.
    """
    found = [each for root in roots for each in _files_of_classes(Path(root), labeled)]
    if not found:
        raise nothing_in(roots)
    names = [name for name, _ in found]
    place = lambda number: f"`{found[number][1].path}`"

    def content(number: int) -> bytes:
        path = found[number][1].path
        with failures_say(path):
            return path.read_bytes()

    return Images(
        np.array([hash_of([name.encode()]) for name in names], np.uint64),
        np.array([name.partition("/")[0] for name in names]) if labeled else None,
        lambda number: (decoded(content(number), place(number)), None),
        place,
        lambda: _sample_digest(
            len(found), (f"{name} {file.size}\n" for name, file in found), None, content
        ),
    )


def _files_of_classes(root: Path, labeled: bool) -> Iterator[tuple[str, File]]:
    """The image files below a folder, each with its path from there; in the order of the paths."""
    if not root.is_dir():
        raise MeshDSLError(f"`{root}` is no folder with a folder for each class")
    for file in find_files([str(root)], "folders"):
        if file.path.suffix.lower() in (*PICTURES, ARRAY):
            name = os.path.relpath(file.path, root).replace(os.sep, "/")
            if labeled and "/" not in name:
                raise MeshDSLError(
                    f"`{file.path}` lies in no folder of a class; expected `{root}/CLASS/{name}`"
                )
            yield name, file


# -- arrays ----------------------------------------------------------------------------------------


def array_images(paths: Sequence[str], field: str, label: str | None) -> Images:
    """Images in arrays [images, height, width, ...], with their labels in others [images].

    An array is in a `.npz` file, or is a `.npy` file of its own in a folder. It is memory-mapped,
    unless it is compressed.

    Args:
      paths: `.npz` files and folders.
      field: the name of the array of images.
      label: the name of the array of labels; None where they are not wanted.
    """
    where, arrays, labels = _array_places(paths, field), [], []
    for path in where:
        images = array_in(path, field)
        arrays.append(images)
        if images.ndim < 2:
            raise MeshDSLError(
                f"`{path}`: the array `{field}` has the shape {images.shape}; expected images "
                "along the first dim"
            )
        if label is None:
            continue
        labels.append(np.asarray(array_in(path, label)))
        if labels[-1].shape != images.shape[:1]:
            raise MeshDSLError(
                f"`{path}`: `{label}` has the shape {labels[-1].shape}, and `{field}` has "
                f"{len(images):,} images"
            )
    ends = np.cumsum([len(each) for each in arrays]).tolist()
    all_labels = np.concatenate(labels) if labels else None

    def at(number: int) -> tuple[int, int]:
        """In which array an image is, and where there."""
        array = bisect.bisect_right(ends, number)
        return array, number - (ends[array] - len(arrays[array]))

    def image(number: int) -> np.ndarray:
        array, index = at(number)
        return arrays[array][index]

    def place(number: int) -> str:
        array, index = at(number)
        return f"`{where[array]}` image {index:,}"

    def digest() -> str:
        listing = (f"{each.shape} {each.dtype}\n" for each in arrays)
        content = lambda number: np.ascontiguousarray(image(number)).tobytes()
        return _sample_digest(ends[-1], listing, all_labels, content)

    hashes = hashes_of_numbers(ends[-1])
    return Images(hashes, all_labels, lambda number: (image(number), None), place, digest)


def _array_places(paths: Sequence[str], field: str) -> list[Path]:
    """The `.npz` files at some paths, and the folders with arrays of their own."""
    found: list[Path] = []
    for path in map(Path, paths):
        if (path / f"{field}{ARRAY}").is_file():
            found.append(path)
        else:
            found += [file.path for file in find_files([str(path)], "arrays", suffix=".npz")]
    if not found:
        raise MeshDSLError(
            f"no .npz file and no `{field}{ARRAY}` in {', '.join(f'`{path}`' for path in paths)}"
        )
    return found


def array_in(path: Path, name: str) -> np.ndarray:
    """The array `name` in a `.npz` file or a folder of `.npy` files.

    Raises:
      MeshDSLError: there is no such array, or it is damaged.
    """
    try:
        with failures_say(path):
            if path.is_dir():
                known = [file.stem for file in sorted(path.glob(f"*{ARRAY}"))]
                if name in known:
                    check_stays(path / f"{name}{ARRAY}", path)
                    return np.asarray(np.load(path / f"{name}{ARRAY}", "r", allow_pickle=False))
            else:
                with zipfile.ZipFile(path) as archive:
                    known = [Path(each.filename).stem for each in archive.infolist()]
                    if name in known:
                        return _array_of_archive(path, archive.getinfo(f"{name}{ARRAY}"), name)
    except MeshDSLError:
        raise
    except DAMAGED_ARRAY as error:
        raise MeshDSLError(f"`{path}`: no arrays, or damaged: {said_of(error)}") from None
    raise MeshDSLError(f"`{path}`: no array `{name}`{nearest(name, known)}")


def _array_of_archive(path: Path, info: zipfile.ZipInfo, name: str) -> np.ndarray:
    """An array in a `.npz` file, memory-mapped where it is not compressed."""
    if info.compress_type == zipfile.ZIP_STORED:
        with path.open("rb") as file:
            # Of the file's own header 30 bytes are fixed; two sizes in it say what follows them.
            file.seek(info.header_offset)
            sizes = struct.unpack("<HH", file.read(30)[26:])
            file.seek(info.header_offset + 30 + sum(sizes))
            readers = {
                (1, 0): np.lib.format.read_array_header_1_0,
                (2, 0): np.lib.format.read_array_header_2_0,
            }
            if reader := readers.get(np.lib.format.read_magic(file)):
                shape, by_columns, dtype = reader(file)
                if not dtype.hasobject and 0 not in shape:
                    order = "F" if by_columns else "C"
                    return np.asarray(np.memmap(path, dtype, "r", file.tell(), shape, order))
    with np.load(path, allow_pickle=False) as arrays:
        return arrays[name]


# -- tables ----------------------------------------------------------------------------------------


def parquet_images(
    paths: Sequence[str], field: str, label: str | None, config: Config, report: Report
) -> Images:
    """Images in a column of parquet files, which are unpacked into the cache once.

    A cell has the bytes of an image file, alone or as the `bytes` of a struct, or the numbers of
    the image as a list or a list of lists.

    Args:
      field: the column of images.
      label: the column of labels; None where they are not wanted.
    """
    files = find_files(paths, "parquet")
    if not files:
        raise nothing_in(paths)
    entry = cache_folder(config) / entry_name(files, "images 2", field, label)
    columns = ["image", "hash", "file", "row", *([] if label is None else ["label"])]

    def rows() -> Iterator[tuple[Any, ...]]:
        report(f"unpacking the images of {len(files):,} parquet files into {entry}")
        return _unpacked(files, field, label)

    table = cached_table(entry, columns, rows)
    if not len(table):
        raise nothing_in(paths)
    labels = None if label is None else table["label"].to_numpy()
    if labels is not None and labels.dtype == object:
        labels = np.array(labels.tolist())  # names
    hashes = table["hash"].to_numpy()

    def place(number: int) -> str:
        file, row = (table[name][number].as_py() for name in ("file", "row"))
        return f"`{files[file].path}` row {row}"

    def digest() -> str:
        listing = [hashlib.sha256(hashes.tobytes()).hexdigest()]
        return _sample_digest(len(table), listing, labels, lambda number: b"")

    read = lambda number: (decoded(table["image"][number].as_py(), place(number)), None)
    return Images(hashes, labels, read, place, digest)


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
