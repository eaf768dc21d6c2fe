"""Parameters in safetensors files: one file, or several with an index, as Hugging Face writes large models.

A file is a header, JSON that says of each tensor its dtype, shape and place, and then the tensors, so any part of any tensor is
read or written alone. https://huggingface.co/docs/safetensors
"""

from __future__ import annotations

import json
import math
import os
import struct
from collections.abc import Iterable, Iterator
from functools import cached_property
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from safetensors import SafetensorError, safe_open

from meshdsl.dims import Dim, show
from meshdsl.errors import MeshDSLError

DTYPES = {
    "float32": "F32", "bfloat16": "BF16", "float16": "F16", "float64": "F64", "bool": "BOOL",
    "uint8": "U8", "int8": "I8", "uint16": "U16", "int16": "I16", "uint32": "U32", "int32": "I32", "uint64": "U64", "int64": "I64",
}  # fmt: skip
_NAMES = {short: name for name, short in DTYPES.items()}
_INDEX = ".index.json"


def dtype(name: str) -> np.dtype:
    return np.dtype(ml_dtypes.bfloat16) if name == "bfloat16" else np.dtype(name)


class TensorFiles:
    """The tensors of a safetensors file, or of all files of an index.

    Args:
      path: a file, an index, or a folder with either.

    Raises:
      MeshDSLError: there is none, or it is not one.
    """

    def __init__(self, path: Path):
        self.path = path
        try:
            self._files = {
                name: safe_open(file, framework="np") for name, file in _places(path).items()
            }
        except (
            OSError,
            SafetensorError,
            json.JSONDecodeError,
            UnicodeDecodeError,
            KeyError,
        ) as error:
            raise MeshDSLError(f"{path}: not safetensors: {error}") from None

    @cached_property
    def leaves(self) -> dict[str, dict[str, Any]]:
        """Each tensor, described as the record of a checkpoint does; dims where an export of ours says them."""
        return {name: self._described(name) for name in self._files}

    def _described(self, name: str) -> dict[str, Any]:
        found = self._files[name].get_slice(name)
        dims = json.loads((self._files[name].metadata() or {}).get("dims", "{}")).get(name)
        shown = show(Dim(*dim) for dim in dims) if dims else found.get_shape()
        kind = _NAMES.get(found.get_dtype(), found.get_dtype())
        return {"is": f"{shown} {kind}", "dims": dims, "shape": found.get_shape(), "dtype": kind}

    def part(self, name: str, index: tuple[slice, ...]) -> np.ndarray:
        """The elements of a tensor at `index`; nothing else is read.

        Raises:
          MeshDSLError: they cannot be read.
        """
        try:
            return (
                self._files[name].get_slice(name)[index]
                if index
                else self._files[name].get_tensor(name)
            )
        except (OSError, SafetensorError) as error:
            raise MeshDSLError(f"{self.path}: `{name}` cannot be read: {error}") from None


def _places(path: Path) -> dict[str, Path]:
    """The file of each tensor."""
    if path.is_dir():
        found = sorted(path.glob(f"*{_INDEX}")) or sorted(path.glob("*.safetensors"))
        if len(found) != 1:
            raise MeshDSLError(f"{path}: has {len(found)} safetensors files; name one")
        path = found[0]
    if path.name.endswith(_INDEX):
        return {
            name: path.parent / file
            for name, file in json.loads(path.read_text(encoding="utf-8"))["weight_map"].items()
        }
    with safe_open(path, framework="np") as file:
        return dict.fromkeys(file.keys(), path)


def write(
    out: Path, leaves: dict[str, dict[str, Any]], chunks: Any, about: dict[str, str], limit: int
) -> list[Path]:
    """Write tensors chunk by chunk, into one file or, where they pass `limit` bytes, into several and an index.

    Args:
      out: the file; several are named `model-00001-of-00003.safetensors` after it.
      leaves: the tensors, described as in the record of a checkpoint.
      chunks: called with a name, gives pairs of an index and the elements there.
      about: texts for the header.

    Returns:
      The files; the index last. If one cannot be written, none is left.
    """
    groups = list(_groups(leaves, limit))
    files = (
        [out]
        if len(groups) == 1
        else [
            out.with_name(f"{out.stem}-{i:05}-of-{len(groups):05}.safetensors")
            for i in range(1, len(groups) + 1)
        ]
    )
    written: list[Path] = []
    try:
        for file, group in zip(files, groups, strict=True):
            _write_one(file, {name: leaves[name] for name in group}, chunks, about)
            written.append(file)
        if len(files) > 1:
            weights = {
                name: file.name for file, group in zip(files, groups, strict=True) for name in group
            }
            written.append(out.with_name(out.name + _INDEX))
            text = json.dumps(
                {
                    "metadata": {"total_size": sum(map(size, leaves.values()))},
                    "weight_map": weights,
                },
                indent=1,
            )
            written[-1].write_text(text, encoding="utf-8")
    except BaseException:
        for file in written:
            file.unlink(missing_ok=True)
        raise
    return written


def size(said: dict[str, Any]) -> int:
    """The bytes of a described array."""
    return math.prod(said["shape"]) * dtype(said["dtype"]).itemsize


def _groups(leaves: dict[str, dict[str, Any]], limit: int) -> Iterator[list[str]]:
    group: list[str] = []
    for name in leaves:
        if group and sum(size(leaves[each]) for each in [*group, name]) > limit:
            yield group
            group = []
        group.append(name)
    yield group


def _write_one(
    file: Path, leaves: dict[str, dict[str, Any]], chunks: Any, about: dict[str, str]
) -> None:
    header: dict[str, Any] = {"__metadata__": about}
    at = 0
    for name, said in leaves.items():
        header[name] = {
            "dtype": DTYPES[said["dtype"]],
            "shape": said["shape"],
            "data_offsets": [at, at + size(said)],
        }
        at += size(said)
    text = json.dumps(header).encode()
    text = text.ljust(-(-len(text) // 8) * 8)  # tensors begin at a multiple of 8
    unfinished = file.with_name(file.name + ".part")
    try:
        with unfinished.open("wb") as stream:
            stream.write(struct.pack("<Q", len(text)) + text)
            os.posix_fallocate(
                stream.fileno(), 0, 8 + len(text) + at
            )  # a full disk is an error here; in mapped memory it would end the process
        for name, said in leaves.items():
            _fill(unfinished, 8 + len(text) + header[name]["data_offsets"][0], said, chunks(name))
        unfinished.replace(file)
    finally:
        unfinished.unlink(missing_ok=True)


def _fill(
    file: Path,
    at: int,
    said: dict[str, Any],
    chunks: Iterable[tuple[tuple[slice, ...], np.ndarray]],
) -> None:
    """Put the elements of a tensor into its place in the file, wherever in the tensor they lie."""
    bits = np.dtype(f"u{dtype(said['dtype']).itemsize}")
    whole = np.memmap(file, bits, "r+", at, tuple(said["shape"]) or (1,))
    for index, part in chunks:
        whole[index or ...] = part.view(bits)
    whole.flush()
