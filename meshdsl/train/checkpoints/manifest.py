"""The record of a checkpoint, `meshdsl.json`: what is in it, and by what to see that it is still whole.

It is written last, when all else of the checkpoint lies in its folder, and the folder gets its name after that. It holds the
step, the state of the data, each array's description and digest, and each file's size (of small ones a CRC too). A CRC of
its own comes first. The sizes tell a truncated or missing file without reading it, the digests any change of what is read.
"""

from __future__ import annotations

import json
import os
import time
import zlib
from pathlib import Path
from typing import Any

FILE = "meshdsl.json"
_STAMPS = (
    "_CHECKPOINT_METADATA",
    "commit_success.txt",
)  # orbax writes them after the record, and nothing reads them
_SMALL = 1 << 20  # bytes up to which a file that is not array data has a CRC


class Damaged(Exception):
    """What is wrong with a checkpoint, in one phrase."""


def reason(error: Exception) -> str:
    """In a line: after the reason tensorstore says where in its source it came from, and orbax which thread was in it."""
    return (
        error.strerror
        if isinstance(error, OSError) and error.strerror
        else str(error).partition(" [")[0].partition("\n")[0]
    )


def write(
    folder: Path,
    step: int,
    leaves: dict[str, dict[str, Any]],
    digests: dict[str, int],
    data: Any,
    *,
    whole_state: bool = True,
) -> None:
    """The record of the files that lie in `folder` now.

    Args:
      leaves: what `tree_leaves.described` gives.
      digests: of each leaf that has an array.
      data: the state of the data, as JSON holds it.
      whole_state: False where it has parameters only.
    """
    arrays = {
        name: said | ({"digest": digests[name]} if name in digests else {})
        for name, said in leaves.items()
    }
    content = {
        "step": step,
        "time": time.time(),
        "whole_state": whole_state,
        "data": data,
        "state": arrays,
        "files": _files(folder),
    }
    text = json.dumps(content)
    with (folder / FILE).open("w", encoding="utf-8") as file:
        file.write(f"{zlib.crc32(text.encode()):08x}\n{text}\n")
        file.flush()
        os.fsync(file.fileno())


def read(folder: Path) -> dict[str, Any]:
    """The record in the folder of a checkpoint, and nothing else of it.

    Raises:
      Damaged: it is missing, or not what was written.
    """
    try:
        crc, _, text = (folder / FILE).read_bytes().partition(b"\n")
    except OSError as error:
        raise Damaged(f"{FILE}: {error.strerror}") from None
    text = text.removesuffix(b"\n")
    if crc != b"%08x" % zlib.crc32(text):
        raise Damaged(f"{FILE} is not what was written")
    return json.loads(text)


def check_files(folder: Path, record: dict[str, Any]) -> None:
    """Raise Damaged unless every file of the checkpoint is there, has its size, and the small ones their contents."""
    found = _files(folder)
    for name, said in record["files"].items():
        now = found.get(name)
        if now is None:
            raise Damaged(f"{name} is missing")
        if now["size"] != said["size"]:
            raise Damaged(f"{name} has {now['size']:,} bytes instead of {said['size']:,}")
        if now != said:
            raise Damaged(f"{name} is not what was written")


def bytes_of(record: dict[str, Any]) -> int:
    return sum(file["size"] for file in record["files"].values())


def _files(folder: Path) -> dict[str, dict[str, Any]]:
    paths = sorted(
        path for path in folder.rglob("*") if path.is_file() and path.name not in (FILE, *_STAMPS)
    )
    return {path.relative_to(folder).as_posix(): _file(path) for path in paths}


def _file(path: Path) -> dict[str, Any]:
    size = path.stat().st_size
    is_data = path.parent.name == "d"
    return (
        {"size": size}
        if is_data or size > _SMALL
        else {"size": size, "crc": zlib.crc32(path.read_bytes())}
    )
