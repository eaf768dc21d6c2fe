"""Files that are not here or are compressed: brought to the cache, once, where tasks read them.

A path with a protocol, as `s3://bucket/corpus`, is read by fsspec, whose packages know the
protocols. Files that end in `.gz` or `.zst` are unpacked. Of a folder all files are brought, in
folders inside it too.
"""

from __future__ import annotations

import gzip
import hashlib
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from meshdsl.errors import MeshDSLError
from meshdsl.extras import extra
from meshdsl.links import check_stays
from meshdsl.train.config import Config
from meshdsl.train.data.cache_entry import cache_folder, made_once
from meshdsl.train.data.sources import errors_say

Report = Callable[[str], None]

# A file that claims to unpack to more than this fills disks, on purpose or by damage. Text is
# packed to a third or a tenth of its size; gzip reaches 1,032 times at most, zstandard any number.
_MOST_TIMES = 200
_ANY_SIZE = 1 << 30  # bytes, which any file may unpack to


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


def is_remote(path: str) -> bool:
    """Whether a path has a protocol, as `s3://bucket/corpus`."""
    return "://" in path


def _here(path: str, config: Config, report: Report) -> str:
    """A path on this machine with the files at `path`, none of which is compressed."""
    cache = cache_folder(config) / "files"
    with _failures_say(path):
        if is_remote(path):
            return _fetched(path, cache, report)
        found = Path(path)
        if found.is_dir():
            files = [each for each in sorted(found.rglob("*")) if each.is_file()]
            if any(each.suffix in _UNPACK for each in files):
                for each in files:
                    check_stays(each, found)
                listed = [(each.relative_to(found), each) for each in files]
                return str(_gathered(path, listed, cache, report))
        elif found.suffix in _UNPACK:
            folder = _gathered(path, [(Path(found.name), found)], cache, report)
            return str(folder / found.stem)
    return path


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


def _fetched(path: str, cache: Path, report: Report) -> str:
    with extra("remote", f"`{path}`"):
        import fsspec
    system, root = fsspec.url_to_fs(path)
    if not system.exists(root):
        raise MeshDSLError(f"no file or folder `{path}`")
    is_folder = system.isdir(root)
    listed = system.find(root, detail=True) if is_folder else {root: system.info(root)}
    if not listed:
        raise MeshDSLError(f"nothing to read in `{path}`")
    which = [[name, *map(str, _state(about))] for name, about in sorted(listed.items())]
    entry = cache / _name(path, which)

    def write(folder: Path) -> None:
        report(f"fetching {len(listed):,} files of {path} into {entry}")
        for name in sorted(listed):
            within = name[len(root) :].lstrip("/") if is_folder else name.rsplit("/", 1)[-1]
            target = folder / within
            if ".." in Path(within).parts:
                raise MeshDSLError(f"{path}: a file is called `{within}`, which leads out of it")
            target.parent.mkdir(parents=True, exist_ok=True)
            with _failures_say(f"{path}, {within}" if is_folder else path):
                system.get_file(name, str(target))
            if target.suffix in _UNPACK:
                _unpack(target, target.with_suffix(""))
                target.unlink()

    folder = made_once(entry, lambda: entry if entry.is_dir() else None, write)
    if is_folder:
        return str(folder)
    (file,) = folder.iterdir()
    return str(file)


def _state(about: dict[str, Any]) -> tuple:
    """What tells whether a remote file has changed, as far as its protocol says."""
    keys = ("size", "mtime", "LastModified", "last_modified", "updated", "ETag", "etag", "created")
    return tuple(about.get(key) for key in keys)


def _gathered(path: str, listed: list[tuple[Path, Path]], cache: Path, report: Report) -> Path:
    """A folder of the cache with these files: unpacked, or as they are where they are plain.

    Args:
      listed: of each file its path in the folder, and where it is.
    """
    states = [(str(name), file.stat()) for name, file in listed]
    which = [[name, str(state.st_size), str(state.st_mtime_ns)] for name, state in states]
    entry = cache / _name(str(Path(path).resolve()), which)

    def write(folder: Path) -> None:
        report(f"unpacking {path} into {entry}")
        for name, file in listed:
            target = folder / name
            target.parent.mkdir(parents=True, exist_ok=True)
            if file.suffix in _UNPACK:
                _unpack(file, target.with_suffix(""))
            else:
                _copy(file.resolve(), target)

    return made_once(entry, lambda: entry if entry.is_dir() else None, write)


def _copy(file: Path, target: Path) -> None:
    """Put a file into the cache, without a second copy of its bytes where that can be."""
    try:
        os.link(file, target)
    except OSError:  # on another disk, say
        shutil.copyfile(file, target)


def _name(path: str, which: list[list[str]]) -> str:
    return hashlib.sha256(repr((path, which)).encode()).hexdigest()[:32]


def _unpack(file: Path, target: Path) -> None:
    if target.exists():
        raise MeshDSLError(f"`{file}` is unpacked into {target.name}, which is there as well")
    most = max(_ANY_SIZE, _MOST_TIMES * file.stat().st_size)
    with _failures_say(str(file)), _UNPACK[file.suffix](file) as packed, target.open("wb") as out:
        while piece := packed.read(1 << 20):
            if out.tell() + len(piece) > most:
                raise MeshDSLError(
                    f"`{file}` has {file.stat().st_size:,} bytes and unpacks to more than "
                    f"{most:,}; if that is right, unpack it yourself and name the plain file"
                )
            out.write(piece)


@contextmanager
def _zstandard(file: Path) -> Iterator[Any]:
    with extra("zst", f"`{file}`"):
        import zstandard  # pyright: ignore[reportMissingImports] (not needed to check types)
    with file.open("rb") as packed:
        # A file may have several frames, one after the other.
        yield zstandard.ZstdDecompressor().stream_reader(packed, read_across_frames=True)


# By the ending of a file: what opens it to be read unpacked.
_UNPACK: dict[str, Callable[[Path], Any]] = {".gz": gzip.open, ".zst": _zstandard}
