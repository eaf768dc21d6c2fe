"""The arrays in a checkpoint, as orbax wrote them: zarr in one OCDBT store, read by tensorstore.

Orbax could read them back itself, but only with barriers among all processes, in which the healthy ones would wait for one that
met a damaged file. Here every process reads what its devices need, and says afterwards whether it could.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

import jax
import numpy as np
import tensorstore as ts

from meshdsl.train.checkpoints import manifest
from meshdsl.train.checkpoints.digest import on_host
from meshdsl.train.checkpoints.manifest import Damaged

CHUNK = 64 << 20  # bytes of an array that are written and read as one

Index = tuple[slice, ...]


def location(folder: Path, name: str) -> dict[str, Any]:
    """Where the array `name` of a checkpoint is, for tensorstore."""
    return {
        "driver": "zarr",
        "kvstore": {"driver": "ocdbt", "base": f"file://{folder.absolute()}/", "path": f"{name}/"},
    }


class Stored:
    """The arrays of one checkpoint.

    Args:
      folder: of the checkpoint.
      leaves: what its record says of its state.
    """

    def __init__(self, folder: Path, leaves: dict[str, dict[str, Any]]):
        self.folder = folder
        self._leaves = leaves
        self._context = ts.Context(
            {"cache_pool": {"total_bytes_limit": 1 << 24}}
        )  # for the store's index; arrays are read once

    def open(self, name: str) -> ts.TensorStore:
        """The array `name`, of which nothing is read yet.

        Raises:
          Damaged: it is not there, or not as the record says.
        """
        said = self._leaves[name]
        try:
            found = ts.open(
                location(self.folder, name), read=True, open=True, context=self._context
            ).result()
        except ValueError as error:
            raise _unreadable(name, error) from None
        if (list(found.shape), str(found.dtype.numpy_dtype)) != (said["shape"], said["dtype"]):
            raise Damaged(
                f"`{name}` is stored as {list(found.shape)} {found.dtype.numpy_dtype}, not as {said['is']}"
            )
        return found

    def chunks(self, name: str) -> Iterator[tuple[Index, np.ndarray]]:
        """Every part of the array `name`, one after the other: where it lies, and its elements.

        Raises:
          Damaged: it cannot be read; or, after the last part, it is not what was saved.
        """
        array, digest = self.open(name), 0
        for index in parts(array.shape, array.chunk_layout.read_chunk.shape if array.rank else ()):
            part = _wait(name, array[index].read() if array.rank else array.read())
            digest += on_host(part, tuple(cut.start for cut in index), array.shape)
            yield index, part
        if digest % (1 << 32) != self._leaves[name]["digest"]:
            raise Damaged(f"`{name}` is not what was saved")

    def read(self, like: dict[str, Any]) -> dict[str, jax.Array]:
        """The arrays that `like` names, each in its sharding. This process reads what its own devices hold, each element once.

        Args:
          like: anything with a `shape` and a `sharding` by name.
        """
        made: dict[str, jax.Array] = {}
        before: tuple[str, dict] | None = None
        for name, target in like.items():
            asked = self._ask(
                name, target
            )  # is on its way while the array before it is put on the devices
            if before:
                made[before[0]] = _put(*before, like[before[0]])
            before = name, asked
        if before:
            made[before[0]] = _put(*before, like[before[0]])
        return made

    def _ask(self, name: str, target: Any) -> dict[tuple, ts.Future]:
        array = self.open(name)
        wanted = target.sharding.addressable_devices_indices_map(tuple(target.shape)).values()
        return {
            _key(index, array.shape): array[index].read() if array.rank else array.read()
            for index in wanted
            if index is not None
        }


def verify(folder: Path) -> str:
    """What is wrong with the checkpoint in a folder, after reading all of it, a chunk at a time; empty where nothing is."""
    try:
        found = manifest.read(folder)
        manifest.check_files(folder, found)
        stored = Stored(folder, found["state"])
        for name in (name for name, said in found["state"].items() if "digest" in said):
            for _ in stored.chunks(name):
                pass
    except Damaged as damage:
        return str(damage)
    return ""


def _put(name: str, asked: dict[tuple, ts.Future], target: Any) -> jax.Array:
    read = {key: _wait(name, future) for key, future in asked.items()}
    shape = tuple(target.shape)
    return jax.make_array_from_callback(
        shape, target.sharding, lambda index: read[_key(index, shape)]
    )


def _wait(name: str, future: ts.Future) -> np.ndarray:
    try:
        return np.asarray(future.result())
    except ValueError as error:
        raise _unreadable(name, error) from None


def _unreadable(name: str, error: ValueError) -> Damaged:
    return Damaged(f"`{name}` cannot be read: {manifest.reason(error)}")


def _key(index: Index, shape: tuple[int, ...]) -> tuple[tuple[int, int], ...]:
    return tuple(part.indices(size)[:2] for part, size in zip(index, shape, strict=True))


def parts(shape: tuple[int, ...], chunk: tuple[int, ...]) -> Iterator[Index]:
    """The parts of an array of `shape`, cut every `chunk` elements."""
    starts = [range(0, size, step) for size, step in zip(shape, chunk, strict=True)]
    for at in product(*starts):
        yield tuple(
            slice(a, min(a + step, size)) for a, step, size in zip(at, chunk, shape, strict=True)
        )
