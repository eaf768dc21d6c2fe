"""The manifest of a checkpoint, `meshdsl.json`: what the checkpoint holds and how to check it.

It holds the step, the state of the data, a description and a digest of each array, and the size of
each file (of small files a CRC too). The sizes show a truncated or missing file without reading it,
the digests show any change of an array that is read. The first line is a CRC of the manifest
itself.

It is written last, when all other files of the checkpoint lie in its folder. The folder gets its
final name after that.
"""

from __future__ import annotations

import json
import os
import time
import zlib
from pathlib import Path
from typing import Any

from meshdsl.links import leads_out
from meshdsl.parsing import parse_json
from meshdsl.train.checkpoints.tree_leaves import Leaf

Manifest = dict[str, Any]  # the content of the file, with the keys that `made` gives it

FILE = "meshdsl.json"
# Orbax writes these after the manifest, and nothing reads them.
_ORBAX_STAMPS = ("_CHECKPOINT_METADATA", "commit_success.txt")
_SMALL = 1 << 20  # up to so many bytes a file that holds no array data has a CRC


# What `made` gives, by key: of the manifest, and of a leaf in its state.
_KINDS = {"step": int, "time": (int, float), "whole_state": bool, "state": dict, "files": dict}
_KINDS_OF_LEAF = {
    "dims": (list, type(None)),
    "shape": list,
    "dtype": str,
    "digest": int,
}


class Damaged(Exception):
    """A checkpoint is not what was saved. The text is one phrase that says what is wrong."""


def reason(error: Exception) -> str:
    """What went wrong, in one line.

    The texts of tensorstore and orbax go on with a place in their source or the name of a thread;
    that is left out.
    """
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return str(error).partition(" [")[0].partition("\n")[0]


def made(
    step: int,
    leaves: dict[str, Leaf],
    digests: dict[str, int],
    data: Any,
    *,
    whole_state: bool = True,
) -> Manifest:
    """The manifest of a state, without files.

    Args:
      leaves: a description of every leaf of the state by name, from `tree_leaves.describe`.
      digests: by name, for each leaf that has an array.
      data: the state of the data, as JSON can hold it.
      whole_state: False where the checkpoint holds parameters and nothing else.
    """
    state = {
        name: leaf | ({"digest": digests[name]} if name in digests else {})
        for name, leaf in leaves.items()
    }
    return {
        "step": step,
        "time": time.time(),
        "whole_state": whole_state,
        "data": data,
        "state": state,
        "files": {},
    }


def write(folder: Path, content: Manifest) -> None:
    """Write the manifest of a checkpoint whose other files all lie in `folder`."""
    text = json.dumps(content | {"files": _files(folder)})
    with (folder / FILE).open("w", encoding="utf-8") as file:
        file.write(f"{zlib.crc32(text.encode()):08x}\n{text}\n")
        file.flush()
        os.fsync(file.fileno())


def read(folder: Path) -> Manifest:
    """Read the manifest in the folder of a checkpoint, and no other file.

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
    try:
        return _checked(parse_json(text))
    except ValueError:
        raise Damaged(f"{FILE} is no manifest") from None


def _checked(found: Any) -> Manifest:
    """A manifest, unless its keys or the types of their values are not those that `made` gives.

    A CRC that is right says nothing of who wrote it.
    """
    are_there = isinstance(found, dict) and all(isinstance(found.get(k), _KINDS[k]) for k in _KINDS)
    if not (are_there and all(_is_leaf(*item) for item in found["state"].items())):
        raise ValueError("state")
    for file in found["files"].values():
        if not isinstance(file, dict) or not _is_size(file.get("size")):
            raise ValueError("files")
    return found


def _is_leaf(name: str, leaf: Any) -> bool:
    name.encode()  # JSON can spell names that are no text: a ValueError
    if not isinstance(leaf, dict) or not isinstance(leaf.get("is"), str):
        return False
    for key, kind in _KINDS_OF_LEAF.items():
        if (key in leaf or "digest" in leaf) and not isinstance(leaf.get(key), kind):
            return False
    dims = leaf.get("dims") or []
    if not all(isinstance(d, list) and len(d) == 2 and isinstance(d[0], str) for d in dims):
        return False
    return all(map(_is_size, [*(leaf.get("shape") or []), *(size for _, size in dims)]))


def _is_size(size: Any) -> bool:
    return isinstance(size, int) and not isinstance(size, bool) and 0 <= size < 2**63


def check_files(folder: Path, manifest: Manifest) -> None:
    """Compare the files of a checkpoint with its manifest: their sizes, and the CRCs of small ones.

    Raises:
      Damaged: a file is missing or differs.
    """
    present = _files(folder)
    for name in present:
        if real := leads_out(folder / name, folder):
            raise Damaged(f"{name} is a link to {real}, outside of the checkpoint")
    for name, expected in manifest["files"].items():
        file = present.get(name)
        if file is None:
            raise Damaged(f"{name} is missing")
        if file["size"] != expected["size"]:
            raise Damaged(f"{name} has {file['size']:,} bytes instead of {expected['size']:,}")
        if file != expected:
            raise Damaged(f"{name} is not what was written")


def size_in_bytes(manifest: Manifest) -> int:
    """The bytes of all files of a checkpoint together, without the manifest itself."""
    return sum(file["size"] for file in manifest["files"].values())


def _files(folder: Path) -> dict[str, dict[str, int]]:
    """The size and perhaps the CRC of every file, by its path in the folder."""
    paths = sorted(
        path
        for path in folder.rglob("*")
        if path.is_file() and path.name not in (FILE, *_ORBAX_STAMPS)
    )
    return {path.relative_to(folder).as_posix(): _size_and_crc(path) for path in paths}


def _size_and_crc(path: Path) -> dict[str, int]:
    size = path.stat().st_size
    is_array_data = path.parent.name == "d"
    if is_array_data or size > _SMALL:
        return {"size": size}
    return {"size": size, "crc": zlib.crc32(path.read_bytes())}
