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
from meshdsl.errors import MeshDSLError, quote
from meshdsl.extras import extra
from meshdsl.links import check_stays
from meshdsl.parsing import parse_json
from meshdsl.schema import REQUIRED, read, read_object, table, word
from meshdsl.train.checkpoints.tree_leaves import Leaf

_SAFETENSORS_NAMES = {
    "float32": "F32", "bfloat16": "BF16", "float16": "F16", "float64": "F64", "bool": "BOOL",
    "uint8": "U8", "int8": "I8", "uint16": "U16", "int16": "I16",
    "uint32": "U32", "int32": "I32", "uint64": "U64", "int64": "I64",
    "float8_e4m3fn": "F8_E4M3",
}  # fmt: skip
_DTYPE_NAMES = {short: name for name, short in _SAFETENSORS_NAMES.items()}
_INDEX = ".index.json"
_INDEXED = {"weight_map": table(REQUIRED, of=word())}  # the file of each tensor

# An index and the elements there, each.
Chunks = Iterable[tuple[tuple[slice | np.ndarray, ...], np.ndarray]]


def numpy_dtype(name: str) -> np.dtype:
    """The dtype that a description calls `name`."""
    return np.dtype(getattr(ml_dtypes, name, name))


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
        try:
            file_of_each = _file_of_each(path, safe_open)
            opened = {file: _OpenFile(file, safe_open) for file in set(file_of_each.values())}
        except (
            OSError,
            SafetensorError,
            ValueError,
            KeyError,
            AttributeError,
            TypeError,
            struct.error,
        ) as error:
            if isinstance(error, MeshDSLError):
                raise
            raise MeshDSLError(f"{path}: not safetensors: {error}") from None
        for name, file in file_of_each.items():
            if name not in opened[file]:
                raise MeshDSLError(f"{path}: its index has `{name}` in {file.name}, which lacks it")
        self._files = {name: opened[file] for name, file in file_of_each.items()}

    @cached_property
    def leaves(self) -> dict[str, Leaf]:
        """The description of each tensor; with dims where the file is an export of meshdsl."""
        return {name: self._describe(name) for name in self._files}

    def _describe(self, name: str) -> Leaf:
        file = self._files[name]
        shape, dtype, _ = file.tensor(name)
        dims = file.dims.get(name)
        shown = show(Dim(*dim) for dim in dims) if dims else shape
        return {"is": f"{shown} {dtype}", "dims": dims, "shape": shape, "dtype": dtype}

    def read(self, name: str, index: tuple[slice, ...]) -> np.ndarray:
        """The elements of the tensor `name` at `index`.

        The rest of the file does not come into the memory of this process.

        Raises:
          MeshDSLError: they cannot be read.
        """
        try:
            return self._files[name].read(name, index)
        except TypeError:  # NumPy has no such dtype
            dtype = self.leaves[name]["dtype"]
            raise MeshDSLError(
                f"{self.path}: `{name}` is of {dtype}, which is not known here"
            ) from None
        except (OSError, ValueError) as error:
            raise MeshDSLError(f"{self.path}: `{name}` cannot be read: {error}") from None


class _OpenFile:
    """One file, of which any part is read by its offset."""

    def __init__(self, path: Path, safe_open: Callable[..., Any]):
        with safe_open(path, framework="np") as file:  # which checks the header
            about = file.metadata() or {}
        self._path = path
        with path.open("rb") as stream:
            size = struct.unpack("<Q", stream.read(8))[0]
            self._header: dict[str, Any] = parse_json(stream.read(size))
        self._header.pop("__metadata__", None)
        self._begin = 8 + size
        self.dims = self._checked_dims(parse_json(about.get("dims", "{}")))

    def _checked_dims(self, said: Any) -> dict[str, Any]:
        """What an export of meshdsl says of dims, as far as it is of tensors in the file.

        Raises:
          ValueError: it is of another form, or the sizes differ from a tensor's.
        """
        if not isinstance(said, dict):
            raise ValueError("`dims` in its header is no JSON object")
        for name in said.keys() & self._header.keys():
            dims = said[name]
            if not isinstance(dims, (list, type(None))):
                raise ValueError(f"`dims` in its header has no list for `{name}`")
            if dims and [Dim(*dim).size for dim in dims] != self._header[name]["shape"]:
                raise ValueError(f"`dims` in its header has other sizes than `{name}`")
        return said

    def __contains__(self, name: str) -> bool:
        return name in self._header

    def tensor(self, name: str) -> tuple[list[int], str, int]:
        """The shape, the dtype and the offset of a tensor."""
        said = self._header[name]
        kind: str = said["dtype"]
        dtype = _DTYPE_NAMES.get(kind, kind)
        return list(said["shape"]), dtype, self._begin + said["data_offsets"][0]

    def read(self, name: str, index: tuple[slice, ...]) -> np.ndarray:
        """The elements of a tensor at `index`, of its dtype."""
        shape, dtype, offset = self.tensor(name)
        if 0 in shape:
            return np.empty(shape, numpy_dtype(dtype))[index]
        # Mapped anew each time, so that what was read before is no memory of this process.
        whole = np.memmap(self._path, numpy_dtype(dtype), "r", offset, tuple(shape) or (1,))
        return np.array(whole[index] if shape else whole.reshape(())[()])


def _file_of_each(path: Path, safe_open: Callable[..., Any]) -> dict[str, Path]:
    """The file that each tensor is in, by the tensor's name."""
    if path.is_dir():
        for file in path.iterdir():
            check_stays(file, path)
        found = sorted(path.glob(f"*.safetensors{_INDEX}")) or sorted(path.glob("*.safetensors"))
        usual = [file for file in found if file.name.partition(".")[0] == "model"]
        found = usual if len(usual) == 1 else found  # others may be of another format
        if len(found) != 1:
            raise MeshDSLError(f"{path}: has {len(found)} safetensors files; name one")
        path = found[0]
    if path.name.endswith(_INDEX):
        weight_map = read(_INDEXED, read_object(path), path)["weight_map"]
        return {name: _file_beside(path, file) for name, file in weight_map.items()}
    with safe_open(path, framework="np") as file:
        return dict.fromkeys(file.keys(), path)


def _file_beside(index: Path, name: str) -> Path:
    """The file of that name in the folder of an index.

    Raises:
      MeshDSLError: it is the name of something elsewhere.
    """
    if not name or Path(name).name != name:
        raise MeshDSLError(f"{index}: names the file {quote(name)}; expected one beside it")
    return index.parent / name


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
