"""Files that are not here or are compressed: brought to the cache, once, where tasks read them.

A path with a protocol, as `s3://bucket/corpus`, is read by fsspec, whose packages know the
protocols. Files that end in .gz, .bz2, .xz or .zst are unpacked. Of a folder all files are brought,
in folders inside it too.
"""

from __future__ import annotations

import bz2
import gzip
import hashlib
import lzma
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path, PurePath
from typing import Any

from meshdsl.errors import MeshDSLError
from meshdsl.extras import extra
from meshdsl.links import check_stays
from meshdsl.train.config import Config
from meshdsl.train.data.cache_entry import Report, cache_folder, made_once
from meshdsl.train.data.files import errors_say, nothing_in

# A file that claims to unpack to more than this fills disks, on purpose or by damage. Text is
# packed to a third or a tenth of its size; gzip reaches 1,032 times at most, zstandard any number.
_MOST_TIMES = 200
ANY_SIZE = 1 << 30  # bytes, which any file may unpack to
# What tells whether a remote file has changed, as far as its protocol says.
_STATE = ("size", "mtime", "LastModified", "last_modified", "updated", "ETag", "etag", "created")


def with_files_here(config: Config, report: Report = lambda text: None) -> Config:
    """`config`, whose datasets name plain files on this machine.

    Args:
      report: called with a line on each path whose files are brought.

    Raises:
      MeshDSLError: a path cannot be read, or what its protocol or compression needs is missing.
    """
    sources = {}
    for name, source in config.data.sources.items():
        with errors_say(f"data.sources.{name}"):
            here = lambda paths: tuple(_here(path, config, report) for path in paths)
            sources[name] = replace(
                source, paths=here(source.paths), validation=here(source.validation)
            )
    return replace(config, data=replace(config.data, sources=sources))


def _here(path: str, config: Config, report: Report) -> str:
    """A path on this machine with the files at `path`, none of which is compressed."""
    with extra("train", f"`{path}`"):
        import fsspec
    is_remote = "://" in path
    with _failures_say(path):
        if is_remote:
            system, root = fsspec.url_to_fs(path)
            if not system.exists(root):
                raise MeshDSLError(f"no file or folder `{path}`")
        else:
            system, root = fsspec.filesystem("file"), os.path.realpath(path)
        files = {file: PurePath(file).name for file in [root] if not system.isdir(root)}
        for file in sorted(system.find(root)) if system.isdir(root) else ():
            files[file] = file[len(root) :].lstrip("/")
        if not is_remote:
            files = {file: name for file, name in files.items() if os.path.isfile(file)}
            if not any(_ending(name) in _UNPACK for name in files.values()):
                return path
            for file in files:
                check_stays(Path(file), Path(root))
        if not files:
            raise nothing_in([path])
        folder = _brought(path, system, files, cache_folder(config) / "files", report)
        return str(folder if system.isdir(root) else next(folder.iterdir()))


def _brought(path: str, system: Any, files: dict[str, str], cache: Path, report: Report) -> Path:
    """A folder of the cache with some files, all of them plain.

    Args:
      system: of fsspec, which has the files.
      files: for each file there its path in the folder.
    """
    about = {file: system.info(file) for file in files}
    which = [[file, *(str(about[file].get(key)) for key in _STATE)] for file in files]
    entry = cache / hashlib.sha256(repr((path, which)).encode()).hexdigest()[:32]

    def write(folder: Path) -> None:
        report(f"bringing {len(files):,} files of {path} into {entry}")
        for file, name in files.items():
            target = folder / name
            if ".." in target.parts:
                raise MeshDSLError(f"{path}: a file is called `{name}`, which leads out of it")
            target.parent.mkdir(parents=True, exist_ok=True)
            with _failures_say(f"{path}, {name}" if len(files) > 1 else path):
                if _ending(name) not in _UNPACK:
                    system.get_file(file, str(target))
                else:
                    plain = target.with_suffix("")
                    if name.removesuffix(_ending(name)) in files.values():
                        raise MeshDSLError(
                            f"`{name}` is unpacked into `{plain.name}`, which is there as well"
                        )
                    with system.open(file, "rb") as packed:
                        _unpack(packed, about[file].get("size") or 0, name, plain)

    return made_once(entry, lambda: entry if entry.is_dir() else None, write)


def _ending(name: str) -> str:
    return PurePath(name).suffix


def _unpack(packed: Any, size: int, name: str, target: Path) -> None:
    most = max(ANY_SIZE, _MOST_TIMES * size)
    with _UNPACK[_ending(name)](packed) as plain, target.open("wb") as out:
        while piece := plain.read(1 << 20):
            if out.tell() + len(piece) > most:
                raise MeshDSLError(
                    f"`{name}` has {size:,} bytes and unpacks to more than {most:,}; if that is "
                    "right, unpack it yourself and name the plain file"
                )
            out.write(piece)


@contextmanager
def _failures_say(path: str) -> Iterator[None]:
    """Make a MeshDSLError of what fails while files are brought: each protocol has its own."""
    try:
        yield
    except MeshDSLError:
        raise
    except Exception as error:
        said = getattr(error, "strerror", None) or str(error) or type(error).__name__
        raise MeshDSLError(f"`{path}` cannot be read: {said}") from error


def _zstandard(packed: Any) -> Any:
    with extra("zst", "a file that ends in .zst"):
        import zstandard  # pyright: ignore[reportMissingImports] (not needed to check types)
    # A file may have several frames, one after the other.
    return zstandard.ZstdDecompressor().stream_reader(packed, read_across_frames=True)


# By the ending of a file: what opens it to be read unpacked.
_UNPACK: dict[str, Callable[[Any], Any]] = {
    ".gz": gzip.open,
    ".bz2": bz2.open,
    ".xz": lzma.open,
    ".zst": _zstandard,
}
