"""Images in arrays: `.npz` files, and folders of `.npy` files."""

from __future__ import annotations

import bisect
import struct
import zipfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from meshdsl.errors import MeshDSLError, nearest
from meshdsl.links import check_stays
from meshdsl.train.data.files import find_files
from meshdsl.train.data.held_out import hashes_of_numbers
from meshdsl.train.data.image_sets import sample_digest
from meshdsl.train.data.pixels import ARRAY, DAMAGED_ARRAY, said_of


class ArrayImages:
    """Images in arrays [images, height, width, ...], with their labels in others [images].

    An array is in a `.npz` file, or is a `.npy` file of its own in a folder. It is memory-mapped,
    unless it is compressed.

    Args:
      paths: `.npz` files and folders.
      field: the name of the array of images.
      label: the name of the array of labels; None where they are not wanted.
    """

    def __init__(self, paths: Sequence[str], field: str, label: str | None):
        self._where, self._images, labels = [], [], []
        for path in _array_places(paths, field):
            images = _array_in(path, field)
            self._where.append(path)
            self._images.append(images)
            if images.ndim < 2:
                raise MeshDSLError(
                    f"`{path}`: the array `{field}` has the shape {images.shape}; expected images "
                    "along the first dim"
                )
            if label is None:
                continue
            labels.append(np.asarray(_array_in(path, label)))
            if labels[-1].shape != images.shape[:1]:
                raise MeshDSLError(
                    f"`{path}`: `{label}` has the shape {labels[-1].shape}, and `{field}` has "
                    f"{len(images):,} images"
                )
        self._ends = np.cumsum([len(each) for each in self._images]).tolist()
        self.labels = np.concatenate(labels) if labels else None
        self.hashes = hashes_of_numbers(len(self))

    def __len__(self) -> int:
        return self._ends[-1]

    def _at(self, number: int) -> tuple[int, int]:
        """In which array an image is, and where there."""
        array = bisect.bisect_right(self._ends, number)
        return array, number - (self._ends[array] - len(self._images[array]))

    def read(self, number: int) -> tuple[np.ndarray, None]:
        array, index = self._at(number)
        return self._images[array][index], None

    def place(self, number: int) -> str:
        array, index = self._at(number)
        return f"`{self._where[array]}` image {index:,}"

    def digest(self) -> str:
        listing = (f"{each.shape} {each.dtype}\n" for each in self._images)
        content = lambda number: np.ascontiguousarray(self.read(number)[0]).tobytes()
        return sample_digest(len(self), listing, self.labels, content)


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


def _array_in(path: Path, name: str) -> np.ndarray:
    """The array `name` in a `.npz` file or a folder of `.npy` files."""
    try:
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
    except OSError as error:
        raise MeshDSLError(f"`{path}` cannot be read: {error.strerror or error}") from None
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
