"""The arrays in a checkpoint, read by tensorstore: orbax wrote them as zarr in one OCDBT store.

Orbax could read them back itself, but only with barriers among all processes, in which the healthy
ones would wait for one that met a damaged file. Here every process reads what its own devices need,
and says afterwards whether it could.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from meshdsl.extras import extra
from meshdsl.train.checkpoints import manifest
from meshdsl.train.checkpoints.digest import chunk_digest
from meshdsl.train.checkpoints.manifest import Damaged
from meshdsl.train.checkpoints.tree_leaves import Leaf

if TYPE_CHECKING:
    import tensorstore as ts

CHUNK = 64 << 20  # bytes of an array that are written and read at once

Index = tuple[slice, ...]
_Bounds = tuple[tuple[int, int], ...]  # an index as pairs of start and stop, to look up by


def location(folder: Path, name: str) -> dict[str, Any]:
    """Where the array `name` of the checkpoint in `folder` is, as tensorstore wants to be told."""
    return {
        "driver": "zarr",
        "kvstore": {"driver": "ocdbt", "base": f"file://{folder.absolute()}/", "path": f"{name}/"},
    }


class SavedArrays:
    """The arrays of one checkpoint on disk. Of an array without elements nothing is stored.

    Args:
      folder: of the checkpoint.
      leaves: the descriptions of the leaves in its manifest.
    """

    def __init__(self, folder: Path, leaves: dict[str, Leaf]):
        self.folder = folder
        self._leaves = leaves
        with extra("train"):
            import tensorstore as ts
        self._open = ts.open
        # The cache is for the index of the store: arrays are read only once.
        self._context = ts.Context({"cache_pool": {"total_bytes_limit": 1 << 24}})

    def open(self, name: str) -> ts.TensorStore:
        """Open the array `name`; none of its elements is read yet.

        Raises:
          Damaged: it is not there, or not of the shape and dtype in the manifest.
        """
        leaf = self._leaves[name]
        try:
            array = self._open(
                location(self.folder, name), read=True, open=True, context=self._context
            ).result()
        except ValueError as error:
            raise _unreadable(name, error) from None
        dtype = str(array.dtype.numpy_dtype)
        if (list(array.shape), dtype) != (leaf["shape"], leaf["dtype"]):
            raise Damaged(f"`{name}` is stored as {list(array.shape)} {dtype}, not as {leaf['is']}")
        return array

    def part(self, name: str, first: tuple[int, ...]) -> np.ndarray:
        """A part of the array `name`, by its places along the first dims, as layers and experts."""
        array = self.open(name)
        return _wait(name, (array[first] if first else array).read())

    def chunks(self, name: str) -> Iterator[tuple[Index, np.ndarray]]:
        """Read the array `name` chunk by chunk; gives the index and the elements of each.

        Raises:
          Damaged: a chunk cannot be read; or, after the last one, the array is not what was saved.
        """
        if not _has_elements(self._leaves[name]):
            return
        array, digest = self.open(name), 0
        chunk_shape = array.chunk_layout.read_chunk.shape if array.rank else ()
        # Tensorstore's types allow for chunks of unknown size, but zarr has none.
        for index in chunk_indices(array.shape, chunk_shape):  # pyright: ignore[reportArgumentType]
            chunk = _wait(name, array[index].read() if array.rank else array.read())
            digest += chunk_digest(chunk, tuple(each.start for each in index), array.shape)
            yield index, chunk
        if digest % (1 << 32) != self._leaves[name]["digest"]:
            raise Damaged(f"`{name}` is not what was saved")

    def read(self, like: dict[str, Any]) -> dict[str, jax.Array]:
        """Read the arrays that `like` names, each into its sharding.

        This process reads what its own devices need, each element once.

        Args:
          like: anything with a `shape` and a `sharding` by name.

        Raises:
          Damaged: an array cannot be read.
        """
        arrays: dict[str, jax.Array] = {}
        previous: tuple[str, dict[_Bounds, ts.Future]] | None = None
        for name, target in like.items():
            # The next array is being read while the previous one is put on the devices.
            reads = self._start_reads(name, target)
            if previous:
                arrays[previous[0]] = self._on_devices(*previous, like[previous[0]])
            previous = name, reads
        if previous:
            arrays[previous[0]] = self._on_devices(*previous, like[previous[0]])
        return arrays

    def _start_reads(self, name: str, target: Any) -> dict[_Bounds, ts.Future]:
        """Begin to read each part of an array that a device of this process needs."""
        if not _has_elements(self._leaves[name]):
            return {}
        array = self.open(name)
        indices = target.sharding.addressable_devices_indices_map(tuple(target.shape)).values()
        return {
            _bounds(index, array.shape): array[index].read() if array.rank else array.read()
            for index in indices
            if index is not None
        }

    def _on_devices(self, name: str, reads: dict[_Bounds, ts.Future], target: Any) -> jax.Array:
        leaf, shape = self._leaves[name], tuple(target.shape)
        read = {bounds: _wait(name, future) for bounds, future in reads.items()}

        def part(index: Index | None) -> np.ndarray:
            assert index is not None  # JAX calls this for devices of this process only
            if _has_elements(leaf):
                return read[_bounds(index, shape)]
            return np.zeros(shape, jnp.dtype(leaf["dtype"]))[index]

        return jax.make_array_from_callback(shape, target.sharding, part)


def _has_elements(leaf: Leaf) -> bool:
    return 0 not in leaf["shape"]


def verify(folder: Path) -> str:
    """What is wrong with the checkpoint in a folder; empty where nothing is.

    All of it is read, a chunk at a time.
    """
    try:
        content = manifest.read(folder)
        manifest.check_files(folder, content)
        arrays = SavedArrays(folder, content["state"])
        for name in (name for name, leaf in content["state"].items() if "digest" in leaf):
            for _ in arrays.chunks(name):
                pass
    except Damaged as damage:
        return str(damage)
    return ""


def _wait(name: str, future: ts.Future) -> np.ndarray:
    try:
        return np.asarray(future.result())
    except ValueError as error:
        raise _unreadable(name, error) from None


def _unreadable(name: str, error: ValueError) -> Damaged:
    return Damaged(f"`{name}` cannot be read: {manifest.reason(error)}")


def _bounds(index: Index, shape: tuple[int, ...]) -> _Bounds:
    return tuple(each.indices(size)[:2] for each, size in zip(index, shape, strict=True))


def chunk_indices(shape: tuple[int, ...], chunk: tuple[int, ...]) -> Iterator[Index]:
    """The index of each chunk when an array of `shape` is divided into chunks of shape `chunk`."""
    starts = [range(0, size, length) for size, length in zip(shape, chunk, strict=True)]
    for corner in product(*starts):
        yield tuple(
            slice(start, min(start + length, size))
            for start, length, size in zip(corner, chunk, shape, strict=True)
        )
