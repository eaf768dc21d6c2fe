"""Which files a dataset is, and what format each has."""

from __future__ import annotations

import os
import sysconfig
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from meshdsl.errors import MeshDSLError

ENDINGS = {
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".parquet": "parquet",
    ".bin": "tokens",
}  # anything else is text, but for
UNREADABLE = {
    ".7z",
    ".arrow",
    ".bz2",
    ".feather",
    ".gz",
    ".h5",
    ".npy",
    ".npz",
    ".pickle",
    ".pkl",
    ".pt",
    ".safetensors",
    ".tar",
    ".tgz",
    ".xz",
    ".zip",
    ".zst",
}
_INSTALLED = {
    "site-packages",
    "dist-packages",
    "__pycache__",
}  # in the library's folder, but not of it


class File(NamedTuple):
    """A file to read: where it is, its format, and what tells whether it has changed."""

    path: Path
    format: str
    size: int
    changed: int  # nanoseconds


def library() -> str:
    """The folder of the running interpreter's standard library."""
    return sysconfig.get_paths()["stdlib"]


def find_files(paths: Sequence[str], format: str = "auto", *, suffix: str = "") -> list[File]:
    """The files to read, in an order that does not depend on the machine. Of folders all files that no name hides, of the format's endings where
    it has some; a file that is named twice, or linked to, is read once.

    Args:
      paths: files and folders.
      format: as `config.Source.format`.
      suffix: of the files that are taken from folders.

    Raises:
      MeshDSLError: a path does not exist or cannot be read, or a file's ending says that it is of no format that we read.
    """
    suffixes = (
        (suffix,)
        if suffix
        else tuple(ending for ending, known in ENDINGS.items() if known == format)
    )
    found: dict[str, File] = {}
    for root in map(Path, paths):
        if not root.exists():
            raise MeshDSLError(f"no file or folder `{root}`")
        for path in (
            [root]
            if root.is_file()
            else sorted(_inside(root, suffixes), key=lambda path: path.parts)
        ):
            status = path.stat()
            found.setdefault(
                os.path.realpath(path),
                File(path, _format(path, format), status.st_size, status.st_mtime_ns),
            )
    return list(found.values())


def _inside(root: Path, suffixes: tuple[str, ...]) -> Iterator[Path]:
    def unreadable(error: OSError) -> None:
        raise MeshDSLError(f"`{error.filename}` cannot be read: {error.strerror}")

    for folder, folders, names in os.walk(root, onerror=unreadable):
        folders[:] = [name for name in folders if _wanted(name)]
        for name in names:
            path = Path(folder, name)
            if _wanted(name) and (not suffixes or path.suffix in suffixes) and path.is_file():
                yield path


def _wanted(name: str) -> bool:
    return not name.startswith(".") and name not in _INSTALLED


def _format(path: Path, format: str) -> str:
    if format != "auto":
        return format
    if path.suffix in UNREADABLE:
        raise MeshDSLError(
            f"`{path}`: files that end in {path.suffix} cannot be read; unpack it or turn it into text, JSONL (.jsonl), parquet (.parquet) "
            "or tokens (.bin), or say which of these it is by `format`"
        )
    return ENDINGS.get(path.suffix, "text")
