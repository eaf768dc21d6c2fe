"""Parameters in safetensors files: one file, or several with an index as Hugging Face writes them.

A file begins with a header, JSON that says of each tensor its dtype, shape and offsets; then come
the tensors. So any part of any tensor is read or written alone.
https://huggingface.co/docs/safetensors
"""

from __future__ import annotations

import json
import math
import os
import struct
from collections.abc import Callable, Iterable, Iterator
from functools import cached_property
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from meshdsl.dims import Dim, show
from meshdsl.errors import MeshDSLError
from meshdsl.extras import extra
from meshdsl.train.checkpoints.tree_leaves import Leaf

_SAFETENSORS_NAMES = {
    "float32": "F32", "bfloat16": "BF16", "float16": "F16", "float64": "F64", "bool": "BOOL",
    "uint8": "U8", "int8": "I8", "uint16": "U16", "int16": "I16",
    "uint32": "U32", "int32": "I32", "uint64": "U64", "int64": "I64",
}  # fmt: skip
_DTYPE_NAMES = {short: name for name, short in _SAFETENSORS_NAMES.items()}
_INDEX = ".index.json"

Chunks = Iterable[tuple[tuple[slice, ...], np.ndarray]]  # an index and the elements there, each


def numpy_dtype(name: str) -> np.dtype:
    """The dtype that a description calls `name`."""
    return np.dtype(ml_dtypes.bfloat16) if name == "bfloat16" else np.dtype(name)


class TensorFiles:
    """The tensors in a safetensors file, or in all files of an index.

    Args:
      path: a file, an index, or a folder with one of either.

    Raises:
      MeshDSLError: there is no such file, or it is not safetensors.
    """

    def __init__(self, path: Path):
        with extra("train"):
            from safetensors import SafetensorError, safe_open
        self.path = path
        self._read_errors = (OSError, SafetensorError)
        try:
            self._files = {
                name: safe_open(file, framework="np")
                for name, file in _file_of_each(path, safe_open).items()
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
    def leaves(self) -> dict[str, Leaf]:
        """The description of each tensor; with dims where the file is an export of meshdsl."""
        return {name: self._describe(name) for name in self._files}

    def _describe(self, name: str) -> Leaf:
        tensor = self._files[name].get_slice(name)
        dims = json.loads((self._files[name].metadata() or {}).get("dims", "{}")).get(name)
        shown = show(Dim(*dim) for dim in dims) if dims else tensor.get_shape()
        dtype = _DTYPE_NAMES.get(tensor.get_dtype(), tensor.get_dtype())
        return {"is": f"{shown} {dtype}", "dims": dims, "shape": tensor.get_shape(), "dtype": dtype}

    def read(self, name: str, index: tuple[slice, ...]) -> np.ndarray:
        """The elements of the tensor `name` at `index`; no others are read.

        Raises:
          MeshDSLError: they cannot be read.
        """
        try:
            file = self._files[name]
            return file.get_slice(name)[index] if index else file.get_tensor(name)
        except self._read_errors as error:
            raise MeshDSLError(f"{self.path}: `{name}` cannot be read: {error}") from None


def _file_of_each(path: Path, safe_open: Callable[..., Any]) -> dict[str, Path]:
    """The file that each tensor is in, by the tensor's name."""
    if path.is_dir():
        found = sorted(path.glob(f"*{_INDEX}")) or sorted(path.glob("*.safetensors"))
        if len(found) != 1:
            raise MeshDSLError(f"{path}: has {len(found)} safetensors files; name one")
        path = found[0]
    if path.name.endswith(_INDEX):
        weight_map = json.loads(path.read_text(encoding="utf-8"))["weight_map"]
        return {name: path.parent / file for name, file in weight_map.items()}
    with safe_open(path, framework="np") as file:
        return dict.fromkeys(file.keys(), path)


def write(
    out: Path,
    leaves: dict[str, Leaf],
    chunks: Callable[[str], Chunks],
    about: dict[str, str],
    limit: int,
) -> list[Path]:
    """Write tensors chunk by chunk: into one file, or into several with an index.

    If a file cannot be written, none is left.

    Args:
      out: the file; several are named `model-00001-of-00003.safetensors` after `model.safetensors`.
      leaves: the descriptions of the tensors by name.
      chunks: gives the chunks of the tensor of that name.
      about: texts for the header.
      limit: the most bytes of tensors in one file, unless a single tensor has more.

    Returns:
      The files; the index is the last one.
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
            _write_file(file, {name: leaves[name] for name in group}, chunks, about)
            written.append(file)
        if len(files) > 1:
            weight_map = {
                name: file.name for file, group in zip(files, groups, strict=True) for name in group
            }
            total_size = sum(map(size_in_bytes, leaves.values()))
            index = {"metadata": {"total_size": total_size}, "weight_map": weight_map}
            written.append(out.with_name(out.name + _INDEX))
            written[-1].write_text(json.dumps(index, indent=1), encoding="utf-8")
    except BaseException:
        for file in written:
            file.unlink(missing_ok=True)
        raise
    return written


def size_in_bytes(leaf: Leaf) -> int:
    """The bytes of the array that a description is of."""
    return math.prod(leaf["shape"]) * numpy_dtype(leaf["dtype"]).itemsize


def _groups(leaves: dict[str, Leaf], limit: int) -> Iterator[list[str]]:
    """The names of the tensors of each file, in order."""
    group: list[str] = []
    for name in leaves:
        if group and sum(size_in_bytes(leaves[each]) for each in [*group, name]) > limit:
            yield group
            group = []
        group.append(name)
    yield group


def _write_file(
    file: Path, leaves: dict[str, Leaf], chunks: Callable[[str], Chunks], about: dict[str, str]
) -> None:
    header: dict[str, Any] = {"__metadata__": about}
    end = 0
    for name, leaf in leaves.items():
        begin, end = end, end + size_in_bytes(leaf)
        header[name] = {
            "dtype": _SAFETENSORS_NAMES[leaf["dtype"]],
            "shape": leaf["shape"],
            "data_offsets": [begin, end],
        }
    text = json.dumps(header).encode()
    text = text.ljust(-(-len(text) // 8) * 8)  # tensors begin at a multiple of 8
    unfinished = file.with_name(file.name + ".part")
    try:
        with unfinished.open("wb") as stream:
            stream.write(struct.pack("<Q", len(text)) + text)
            # A full disk is an error here; in memory-mapped writes it would end the process.
            os.posix_fallocate(stream.fileno(), 0, 8 + len(text) + end)
        for name, leaf in leaves.items():
            offset = 8 + len(text) + header[name]["data_offsets"][0]
            _fill(unfinished, offset, leaf, chunks(name))
        unfinished.replace(file)
    finally:
        unfinished.unlink(missing_ok=True)


def _fill(file: Path, offset: int, leaf: Leaf, chunks: Chunks) -> None:
    """Write the elements of the tensor that begins at `offset`, in whatever order chunks come."""
    uint = np.dtype(f"u{numpy_dtype(leaf['dtype']).itemsize}")
    tensor = np.memmap(file, uint, "r+", offset, tuple(leaf["shape"]) or (1,))
    for index, chunk in chunks:
        tensor[index or ...] = chunk.view(uint)
    tensor.flush()
