"""The parameters of a checkpoint with its adapters added, read in parts without a device.

An export reads parameters from here as from `SavedArrays`. Adapters are thin, so both of a weight
are in memory at once, and of the weight what is asked for.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from meshdsl.errors import MeshDSLError
from meshdsl.train.checkpoints import manifest
from meshdsl.train.checkpoints.manifest import Damaged, Manifest
from meshdsl.train.checkpoints.named_parameters import PREFIX, SCALE, A, B, adapters_of, averages_of
from meshdsl.train.checkpoints.safetensors_files import numpy_dtype
from meshdsl.train.checkpoints.saved_arrays import Index, SavedArrays


@contextmanager
def to_export(
    folder: Path, step: int, out: Path, *, average: bool
) -> Iterator[tuple[Manifest, MergedArrays]]:
    """A context that reads a checkpoint and writes `out`: its manifest and its arrays.

    Raises:
      MeshDSLError: the checkpoint is damaged, or `out` cannot be written.
    """
    checkpoint = folder / str(step)
    try:
        content = manifest.read(checkpoint)
        manifest.check_files(checkpoint, content)
        yield content, MergedArrays(checkpoint, content, average=average)
    except Damaged as damage:
        raise MeshDSLError(
            f"{folder}: the checkpoint of step {step} is damaged: {damage}; "
            "choose another by --step"
        ) from None
    except OSError as error:
        raise MeshDSLError(f"{out}: {error.strerror or error}") from None


class MergedArrays(SavedArrays):
    """The arrays of a checkpoint, where a weight that has an adapter is the sum of both.

    Args:
      folder: of the checkpoint.
      content: its manifest.
      average: take the averages over the steps of what is trained.

    Raises:
      MeshDSLError: the run keeps no average.
    """

    def __init__(self, folder: Path, content: Manifest, *, average: bool):
        super().__init__(folder, content["state"])
        self._averages = averages_of(content) if average else {}
        if average and not self._averages:
            raise MeshDSLError(
                f"--average: {folder} has none; a run with optimizer.average keeps one"
            )
        self._adapters = adapters_of(content)

    def part(self, name: str, first: tuple[int, ...]) -> np.ndarray:
        found = super().part(self._averages.get(name, name), first)
        adapter = self._adapter(name)
        if adapter is None:
            return found
        rest = self._leaves[name]["shape"][len(first) :]
        index = (*(slice(i, i + 1) for i in first), *map(slice, rest))
        return adapter.added(index, found[(None,) * len(first)])[(0,) * len(first)]

    def chunks(self, name: str) -> Iterator[tuple[Index, np.ndarray]]:
        adapter, dtype = self._adapter(name), numpy_dtype(self._leaves[name]["dtype"])
        for index, chunk in super().chunks(self._averages.get(name, name)):
            whole = chunk if adapter is None else adapter.added(index, chunk)
            yield index, whole.astype(dtype, copy=False)

    def _adapter(self, path: str) -> _Adapter | None:
        """The adapter of the parameter at `path`, if it has one."""
        name = path.removeprefix(PREFIX)
        if not path.startswith(PREFIX) or name not in self._adapters:
            return None
        read = {part: self._whole(part) for part in (A + name, B + name, SCALE)}
        return _Adapter(read[A + name], read[B + name], read[SCALE], self._adapters[name])

    def _whole(self, name: str) -> np.ndarray:
        """An array, put together of its chunks, so that damage is seen."""
        shape = tuple(self._leaves[name]["shape"])
        found = np.zeros(shape, np.float32)
        for index, chunk in super().chunks(self._averages.get(name, name)):
            found[index if index else ...] = chunk
        return found


class _Adapter:
    """What is added to a weight: `scale * a b`, in parts."""

    def __init__(self, a: np.ndarray, b: np.ndarray, scale: np.ndarray, names: list[list[str]]):
        self._a, self._b, self._scale = a, b, float(scale)
        self._of_weight, self._of_a, self._of_b = names

    def added(self, index: Index, part: np.ndarray) -> np.ndarray:
        """The `part` of the weight at `index`, with what is added to it there."""
        at = dict(zip(self._of_weight, index, strict=True))
        a = self._a[tuple(at.get(name, slice(None)) for name in self._of_a)]
        b = self._b[tuple(at.get(name, slice(None)) for name in self._of_b)]
        number = {name: i for i, name in enumerate([*self._of_weight, *self._of_a, *self._of_b])}
        of = [[number[name] for name in each] for each in (self._of_a, self._of_b)]
        product = np.einsum(a, of[0], b, of[1], [number[name] for name in self._of_weight])
        return (part.astype(np.float32) + self._scale * product).astype(part.dtype)
