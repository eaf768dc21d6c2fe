"""Parameters in the files of Hugging Face, read and written as those of the model here.

A file has a tensor for each layer, and a parameter here has all layers. So what is read of a
parameter is put together from some rows and columns of some tensors, and no more is in memory.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from meshdsl.errors import MeshDSLError
from meshdsl.models.families import ADAPTERS
from meshdsl.models.published import Place, places
from meshdsl.train.checkpoints import safetensors_files
from meshdsl.train.checkpoints.manifest import Damaged
from meshdsl.train.checkpoints.merged_arrays import to_export
from meshdsl.train.checkpoints.named_parameters import PREFIX, parameters_of
from meshdsl.train.checkpoints.quantized import QuantizedTensors
from meshdsl.train.checkpoints.safetensors_files import Chunks, TensorFiles
from meshdsl.train.checkpoints.saved_arrays import SavedArrays, verify
from meshdsl.train.checkpoints.tree_leaves import Leaf

# Tensors that say nothing about the model: masks and frequencies, and what reads images.
_IGNORED_ENDS = ("rotary_emb.inv_freq", ".attn.bias", ".attn.masked_bias")
_IGNORED_STARTS = (
    *("vision_tower.", "multi_modal_projector."),
    *("model.vision_tower.", "model.multi_modal_projector."),
)
_TABLES = ("embed_tokens.weight", "wte.weight", "shared.weight", "word_embeddings.weight")
_HEADS = ("lm_head.weight",)  # of names of output layers
_LAYER = re.compile(r"model\.layers\.(\d+)\.")
_ROWS = 4096  # of a table that are compared at once
_SHOWN = 4  # names in an error
_MOST = 200_000  # tensors that are looked for; no published model has as many


class PublishedTensors:
    """The parameters of a model, in the files of Hugging Face that hold it.

    It is used as `TensorFiles` is, by the names of the parameters here.

    Args:
      files: the files.
      style: of the model.
      like: the descriptions of its parameters.

    Raises:
      MeshDSLError: a tensor is missing, one is there that the model has no place for, or one has
        another shape.
    """

    def __init__(self, files: TensorFiles | QuantizedTensors, style: str, like: dict[str, Leaf]):
        self.path = files.path
        self._files, self._like, self._adapter = files, like, ADAPTERS[style]
        self._places = places(style, {name: tuple(leaf["shape"]) for name, leaf in like.items()})
        self._names = _Names(set(files.leaves), self._adapter.older)
        self._check()

    @property
    def leaves(self) -> dict[str, Leaf]:
        """The description of each parameter."""
        return dict(self._like)

    def read(self, name: str, index: tuple[slice, ...]) -> np.ndarray:
        """The elements of the parameter `name` at `index`; nothing else is read.

        Raises:
          MeshDSLError: they cannot be read.
        """
        place, shape = self._places[name], self._like[name]["shape"]
        index = index or (slice(None),) * len(shape)
        bounds = [each.indices(size)[:2] for each, size in zip(index, shape, strict=True)]
        first = place.numbered
        if not first:
            return self._part(place, place.name, bounds)
        found: np.ndarray | None = None
        sizes = tuple(end - begin for begin, end in bounds[:first])
        for at in np.ndindex(*sizes):
            numbers = tuple(i + begin for i, (begin, _) in zip(at, bounds[:first], strict=True))
            part = self._part(place, place.tensor(numbers), bounds[first:])
            if found is None:  # of the dtype of the first layer, unless another one has a wider one
                found = np.empty((*sizes, *part.shape), part.dtype)
            if part.dtype != found.dtype:
                found = found.astype(np.promote_types(found.dtype, part.dtype))
            found[at] = part
        assert found is not None  # a model has layers
        return found

    def halved_first(self, name: str) -> tuple[int, ...]:
        """Positions in a parameter's shape: by which to divide it, so that whole rows are read."""
        place, count = self._places[name], len(self._like[name]["shape"])
        first = place.numbered + len(place.stacked)
        outs = first + len(place.ins)
        rest = range(first, count)
        if place.outs_first:
            rest = (*range(outs, count), *range(first, outs))
        return (*range(first), *rest)

    def _part(self, place: Place, name: str, bounds: list[tuple[int, int]]) -> np.ndarray:
        """The elements within `bounds` of what one tensor has of a parameter."""
        name, front = self._names.there(name), len(place.stacked)
        stacked = tuple(slice(*each) for each in bounds[:front])
        ahead = (*((slice(0, 1),) * place.ones), *stacked)
        of_ins, of_outs = bounds[front : front + len(place.ins)], bounds[front + len(place.ins) :]
        columns = place.columns()[tuple(slice(*each) for each in of_outs)]
        begin, end = int(columns.min()), int(columns.max()) + 1
        sizes = tuple(each.stop - each.start for each in stacked)
        if not place.ins:
            read = self._files.read(name, (*ahead, slice(begin, end)))
            return _taken(read.reshape((*sizes, -1)), columns, begin)
        first, last, ins, inner = _run(place.ins, of_ins)
        pair = (slice(begin, end), slice(first, last))
        index = pair if place.outs_first else pair[::-1]
        if place.apart:
            index = (pair[0], slice(*of_ins[0]), *(slice(0, size) for size in place.ins[1:]))
        read = self._files.read(name, (*ahead, *index))
        shape = (end - begin, last - first)
        read = read.reshape((*sizes, *(shape if place.outs_first else shape[::-1])))
        read = np.swapaxes(read, -1, -2) if place.outs_first else read
        read = read.reshape((*sizes, *ins, -1))[(..., *inner, slice(None))]
        return _taken(read, columns, begin)

    def _check(self) -> None:
        """Raise a MeshDSLError that names what is missing, too much, or of another shape."""
        wanted = dict(islice(_tensors(self._places, self._like), _MOST))
        there = {self._names.here(name): leaf for name, leaf in self._files.leaves.items()}
        shapes = {name: there[name]["shape"] for name in wanted if name in there}
        wrong = {
            "missing": [name for name in wanted if name not in there],
            "of another shape": [
                f"{name} {shape} instead of {list(wanted[name])}"
                for name, shape in shapes.items()
                if shape != list(wanted[name])
            ],
            "not of this model": [
                name for name in there if name not in wanted and not self._is_unread(name)
            ],
            "not alike, as they are in this model": [
                f"{copy} and {original}"
                for copy, original in self._adapter.copies.items()
                if copy in there and original in there
                if not _alike(self._files, *map(self._names.there, (copy, original)))
            ],
        }
        said = [f"{what}: {_listed(names)}" for what, names in wrong.items() if names]
        if said:
            raise MeshDSLError(f"{self.path}: {'; '.join(said)}")

    def _is_unread(self, name: str) -> bool:
        """Whether the model has no use for a tensor that files may have."""
        tied = "head.weight" not in self._places
        return (
            name.endswith(_IGNORED_ENDS)
            or name.startswith((*_IGNORED_STARTS, *self._adapter.not_read(self._like)))
            or (tied and name == "lm_head.weight")
            or (self._adapter.ahead and self._is_ahead(name))
        )

    def _is_ahead(self, name: str) -> bool:
        """Whether a tensor is of a layer after those that the model has."""
        found = _LAYER.match(name)
        layers = sum(
            leaf["shape"][0] for part, leaf in self._like.items() if part.endswith("mlp_norm.scale")
        )
        return found is not None and int(found[1]) >= layers


def own_names(files: TensorFiles | QuantizedTensors) -> list[str]:
    """The names of the tensors in files, but for an output layer that is a copy of the embedding.

    With them `family_of` tells whether both are one, whatever `config.json` says: where both are
    there and differ, each is used, as `transformers` does.
    """
    names = list(files.leaves)
    table = next((name for name in names if name.endswith(_TABLES)), None)
    return [name for name in names if not (name.endswith(_HEADS) and _alike(files, name, table))]


def _alike(files: TensorFiles | QuantizedTensors, name: str, other: str | None) -> bool:
    """Whether two tensors of the files have the same elements."""
    if other is None or files.leaves[name]["shape"] != files.leaves[other]["shape"]:
        return False
    count = files.leaves[name]["shape"][0]
    parts = [(slice(start, start + _ROWS),) for start in range(0, count, _ROWS)]
    return all(np.array_equal(files.read(name, at), files.read(other, at)) for at in parts)


class _Names:
    """The names in a file, which may lack the first part or have one more, or be older.

    Files of a model without its output layer lack `model.`, those of a model that reads images too
    have `language_model.`.

    Args:
      there: the names in the files.
      older: endings of names in older files, with those that the tables have.
    """

    def __init__(self, there: Collection[str], older: Mapping[str, str]):
        bare = {"wte.weight": "transformer.", "embed_tokens.weight": "model."}
        self._older = older
        self._bare = next((start for name, start in bare.items() if name in there), "")
        starts = ("language_model.model.", "model.language_model.")
        self._inner = next(
            (start for start in starts if f"{start}embed_tokens.weight" in there), ""
        )
        self._there = {self.here(name): name for name in there}

    def there(self, name: str) -> str:
        """The name in the files of the tensor that the tables call `name`."""
        return self._there.get(name, name)

    def here(self, name: str) -> str:
        """The name in the tables of the tensor that the files call `name`."""
        for old, ending in self._older.items():
            if name.endswith(old):
                return name.removesuffix(old) + ending
        if self._bare:
            return name if name.startswith("lm_head.") else self._bare + name
        if self._inner and name.startswith(self._inner):
            return "model." + name.removeprefix(self._inner)
        return name.removeprefix("language_model.") if self._inner else name


def _taken(read: np.ndarray, columns: np.ndarray, begin: int) -> np.ndarray:
    """Of the columns of `read` from `begin` on those of a parameter, in the shape of its outs."""
    flat = columns.reshape(-1) - begin
    if not np.array_equal(flat, np.arange(read.shape[-1])):
        read = read[..., flat]
    return read.reshape((*read.shape[:-1], *columns.shape))


def _run(
    sizes: tuple[int, ...], bounds: list[tuple[int, int]]
) -> tuple[int, int, tuple[int, ...], tuple[slice, ...]]:
    """Which run of elements of dims that lie as one has all that is within `bounds`.

    Returns:
      Where the run begins and ends, the shape that it has, and what of it is within the bounds.
    """
    if not sizes:
        return 0, 1, (), ()
    inner = math.prod(sizes[1:])
    begin, end = bounds[0]
    within = (slice(None), *(slice(*each) for each in bounds[1:]))
    return begin * inner, end * inner, (end - begin, *sizes[1:]), within


def _tensors(
    found: dict[str, Place], like: dict[str, Leaf]
) -> Iterator[tuple[str, tuple[int, ...]]]:
    """The name and the shape of every tensor that a model's parameters are in."""
    for name, place in found.items():
        for numbers in np.ndindex(*like[name]["shape"][: place.numbered]):
            yield place.tensor(numbers), place.shape


def _listed(names: list[str]) -> str:
    more = f", and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(f"`{name}`" for name in names[:_SHOWN]) + more


def export_published(
    folder: Path,
    step: int,
    out: Path,
    style: str,
    dtype: str | None,
    limit: int,
    *,
    average: bool = False,
) -> list[Path]:
    """Write the parameters of a checkpoint as Hugging Face writes those of a model.

    Args:
      folder: of the checkpoints.
      out: the file to write; see `safetensors_files.write` where there are several.
      style: of the model.
      dtype: of the tensors; None: as the parameters have it.
      limit: the most bytes in one file, unless a single tensor has more.
      average: the averages over the steps instead, which `optimizer.average` keeps.

    Returns:
      The files that were written.

    Raises:
      MeshDSLError: the checkpoint is damaged, their files have no place for a parameter, or `out`
        cannot be written.
    """
    with to_export(folder, step, out, average=average) as (content, arrays):
        if damage := verify(folder / str(step)):
            raise Damaged(damage)
        return _write(arrays, parameters_of(content), out, style, dtype, limit)


def _write(
    arrays: SavedArrays,
    leaves: dict[str, Leaf],
    out: Path,
    style: str,
    dtype: str | None,
    limit: int,
) -> list[Path]:
    found = places(style, {name: tuple(leaf["shape"]) for name, leaf in leaves.items()})
    tensors: dict[str, Leaf] = {}
    # What is in a tensor: a parameter, and the numbers of its layer and expert.
    parts: dict[str, list[tuple[str, tuple[int, ...]]]] = {}
    for name, place in found.items():
        for numbers in np.ndindex(*leaves[name]["shape"][: place.numbered]):
            tensor = place.tensor(numbers)
            kind = dtype or leaves[name]["dtype"]
            tensors[tensor] = {"shape": list(place.shape), "dtype": kind}
            parts.setdefault(tensor, []).append((name, numbers))

    def chunks(tensor: str) -> Chunks:
        for name, numbers in parts[tensor]:
            yield _as_there(arrays, found[name], name, numbers, tensors[tensor]["dtype"])

    order = sorted(
        tensors, key=lambda name: [int(p) if p.isdigit() else -1 for p in name.split(".")]
    )
    tensors = {name: tensors[name] for name in order}
    return safetensors_files.write(out, tensors, chunks, {"format": "pt"}, limit)


def _as_there(
    arrays: SavedArrays, place: Place, name: str, numbers: tuple[int, ...], dtype: str
) -> tuple[tuple[slice | np.ndarray, ...], np.ndarray]:
    """Where one parameter of a layer goes in its tensor, and its elements as they lie there."""
    read = arrays.part(PREFIX + name, numbers)
    read = read.astype(safetensors_files.numpy_dtype(dtype), copy=False)
    columns: Any = place.columns().reshape(-1)
    if np.array_equal(columns, np.arange(len(columns)) + columns[0]):
        columns = slice(columns[0], columns[0] + len(columns))
    ahead = (slice(None),) * (place.ones + len(place.stacked))
    front = (*((1,) * place.ones), *place.stacked)
    if not place.ins:
        return (*ahead, columns), np.ascontiguousarray(read.reshape((*front, -1)))
    matrix = read.reshape((*front, math.prod(place.ins), -1))
    if place.apart:
        every = (slice(None),) * len(place.ins)
        whole = np.swapaxes(matrix, -1, -2).reshape((*front, -1, *place.ins))
        return (*ahead, columns, *every), np.ascontiguousarray(whole)
    if place.outs_first:
        return (*ahead, columns, slice(None)), np.ascontiguousarray(np.swapaxes(matrix, -1, -2))
    return (*ahead, slice(None), columns), np.ascontiguousarray(matrix)
