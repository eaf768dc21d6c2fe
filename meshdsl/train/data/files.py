"""Which files a dataset consists of and which format each has, by the settings of its source."""

from __future__ import annotations

import os
import sysconfig
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import NamedTuple

from meshdsl.errors import MeshDSLError, either, system_errors_say
from meshdsl.links import check_stays
from meshdsl.train.config import Config, Source

# The format of a file by its ending. Any other ending is text, unless it is in UNREADABLE.
ENDINGS = {
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".parquet": "parquet",
    ".arrow": "arrow",
    ".bin": "tokens",
}
UNREADABLE = {
    ".7z", ".feather", ".gz", ".h5", ".npy", ".npz", ".pickle", ".pkl", ".pt",
    ".safetensors", ".tar", ".tgz", ".zip", ".zst",
}  # fmt: skip
# What Hugging Face's `datasets` writes beside the files of a dataset.
_ABOUT_DATASETS = {"dataset_dict.json", "dataset_info.json", "state.json"}
# Folders that lie in the standard library's and are no part of it.
_INSTALLED = {"site-packages", "dist-packages", "__pycache__"}


class File(NamedTuple):
    """A file to read: where it is, its format, and what tells whether it has changed."""

    path: Path
    format: str
    size: int  # bytes
    changed: int  # when, in nanoseconds


def library_folder() -> str:
    """The folder of the running interpreter's standard library."""
    return sysconfig.get_paths()["stdlib"]


def nothing_in(paths: Iterable[object]) -> MeshDSLError:
    """The error where there is nothing to read at some paths."""
    return MeshDSLError(f"nothing to read in {', '.join(f'`{path}`' for path in paths)}")


def find_files(paths: Sequence[str], format: str = "auto", *, suffix: str = "") -> list[File]:
    """The files at `paths`, in an order that does not depend on the machine.

    Of a folder these are all files, in folders inside it too; with a format that has endings of its
    own, only the files with those endings. Names that begin with a dot, and folders of installed
    packages and of compiled Python, are passed over. A file that is named or linked to twice is
    read once.

    Args:
      paths: files and folders.
      format: as `config.Source.format`; `auto` goes by the ending of each file.
      suffix: the only ending that is taken from folders, whatever the format.

    Raises:
      MeshDSLError: a path does not exist or cannot be read, a file in a folder is a link to one
        outside, or the ending of a file says that it is of a format that cannot be read.
    """
    formats = ("jsonl", "parquet", "arrow") if format == "chat" else (format,)
    suffixes = (
        (suffix,)
        if suffix
        else tuple(ending for ending, known in ENDINGS.items() if known in formats)
    )
    found: dict[str, File] = {}
    for root in map(Path, paths):
        if not root.exists():
            raise MeshDSLError(f"no file or folder `{root}`")
        for path in (
            [root]
            if root.is_file()
            else sorted(_files_in(root, suffixes), key=lambda path: path.parts)
        ):
            if path != root:
                check_stays(path, root)
            status = path.stat()
            found.setdefault(
                os.path.realpath(path),
                File(path, _format_of(path, format), status.st_size, status.st_mtime_ns),
            )
    return list(found.values())


def _files_in(root: Path, suffixes: tuple[str, ...]) -> Iterator[Path]:
    def unreadable(error: OSError) -> None:
        raise MeshDSLError(f"`{error.filename}` cannot be read: {error.strerror}")

    for folder, folders, names in os.walk(root, onerror=unreadable):
        folders[:] = [name for name in folders if _is_wanted(name)]
        if "dataset_dict.json" in names or any(name.endswith(".arrow") for name in names):
            names = [name for name in names if name not in _ABOUT_DATASETS]
        for name in names:
            path = Path(folder, name)
            if _is_wanted(name) and (not suffixes or path.suffix in suffixes) and path.is_file():
                yield path


def _is_wanted(name: str) -> bool:
    return not name.startswith(".") and name not in _INSTALLED


def _format_of(path: Path, format: str) -> str:
    if format != "auto":
        return format
    if path.suffix in UNREADABLE:
        raise MeshDSLError(
            f"`{path}`: files that end in {path.suffix} cannot be read; unpack it or turn it into "
            "text, JSONL (.jsonl), parquet (.parquet) or tokens (.bin), or say which of these it "
            "is by `format`"
        )
    return ENDINGS.get(path.suffix, "text")


# -- the sources of a run --------------------------------------------------------------------------


def checked_sources(
    task: str, config: Config, *, formats: Sequence[str], functions: bool
) -> list[tuple[str, Source]]:
    """The sources of a task by name, of which there is at least one.

    Args:
      formats: those that the task reads; none where it reads no files.
      functions: whether it takes a function that gives a dataset.

    Raises:
      MeshDSLError: there is no source, or one has settings that the task cannot use.
    """
    if not config.data.sources:
        wanted = "paths" if formats else "dataset"
        raise MeshDSLError(f"data: nothing to read; set data.sources.NAME.{wanted}")
    for name, source in config.data.sources.items():
        where = f"data.sources.{name}"
        if source.dataset and not functions:
            raise MeshDSLError(
                f"{where}: the task `{task}` reads files, not the function {source.dataset}; with "
                "data.task=examples a function gives what the model's batch has"
            )
        if source.dataset and (source.paths or source.validation):
            raise MeshDSLError(f"{where}: either {where}.dataset or {where}.paths is set, not both")
        if source.paths and not formats:
            raise MeshDSLError(
                f"{where}: the task `{task}` reads no files; set {where}.dataset to a function "
                "that gives a dataset"
            )
        if not (source.paths or source.dataset):
            missing = f"files; set {where}.paths" if formats else f"dataset; set {where}.dataset"
            raise MeshDSLError(f"{where}: no {missing}")
        if source.paths and source.format not in ("auto", *formats):
            raise MeshDSLError(
                f"{where}: the task `{task}` does not read the format {source.format}; it reads "
                f"{either(formats, 'and')}"
            )
    return list(config.data.sources.items())


def files_of(source: Source) -> tuple[list[File], list[File]]:
    """The files of a source: those that are trained on, and those that it brings for validation.

    Raises:
      MeshDSLError: there is nothing to read at the paths of one of them.
    """
    both = find_files(source.paths, source.format), find_files(source.validation, source.format)
    for files, paths in zip(both, (source.paths, source.validation), strict=True):
        if paths and not any(file.size for file in files):
            raise nothing_in(paths)
    return both


@contextmanager
def errors_say(where: str) -> Iterator[None]:
    """Begin errors of the block with the setting at fault, unless they do so already."""
    try:
        yield
    except MeshDSLError as error:
        text = str(error)
        if text.startswith("data."):
            raise
        raise MeshDSLError(f"{where}: {text}") from error.__cause__


def failures_say(path: Path) -> AbstractContextManager[None]:
    """A context that makes a MeshDSLError of what fails while a file is read."""
    return system_errors_say(f"`{path}` cannot be read")
