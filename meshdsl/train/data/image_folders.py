"""Images in folders, one for each class."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from meshdsl.errors import MeshDSLError
from meshdsl.train.data.files import File, find_files, nothing_in
from meshdsl.train.data.held_out import hash_of
from meshdsl.train.data.image_sets import sample_digest
from meshdsl.train.data.pixels import ARRAY, PICTURES, decoded


class FolderImages:
    """Image files in folders, one folder for each class: `cats/1.png`, `dogs/1.png`.

    Args:
      roots: the folders that have the folders of the classes.
      labeled: whether labels are wanted; if not, files may lie anywhere below the roots.
    """

    def __init__(self, roots: Sequence[str], labeled: bool):
        found = [each for root in roots for each in _files_of_classes(Path(root), labeled)]
        if not found:
            raise nothing_in(roots)
        self._names, self._files = [name for name, _ in found], [file for _, file in found]
        self.labels = (
            np.array([name.partition("/")[0] for name in self._names]) if labeled else None
        )
        self.hashes = np.array([hash_of([name.encode()]) for name in self._names], np.uint64)

    def __len__(self) -> int:
        return len(self._files)

    def read(self, number: int) -> tuple[np.ndarray, None]:
        return decoded(self._content(number), self.place(number)), None

    def place(self, number: int) -> str:
        return f"`{self._files[number].path}`"

    def digest(self) -> str:
        pairs = zip(self._names, self._files, strict=True)
        listing = (f"{name} {file.size}\n" for name, file in pairs)
        return sample_digest(len(self), listing, None, self._content)

    def _content(self, number: int) -> bytes:
        try:
            return self._files[number].path.read_bytes()
        except OSError as error:
            raise MeshDSLError(f"{self.place(number)} cannot be read: {error.strerror}") from None


def _files_of_classes(root: Path, labeled: bool) -> Iterator[tuple[str, File]]:
    """The image files below a folder, each with its path from there; in the order of the paths."""
    if not root.is_dir():
        raise MeshDSLError(f"`{root}` is no folder with a folder for each class")
    named = [
        (os.path.relpath(file.path, root).replace(os.sep, "/"), file)
        for file in find_files([str(root)], "folders")
        if file.path.suffix.lower() in (*PICTURES, ARRAY)
    ]
    for name, file in named:
        if labeled and "/" not in name:
            raise MeshDSLError(
                f"`{file.path}` lies in no folder of a class; expected `{root}/CLASS/{name}`"
            )
        yield name, file
