"""Parameters out of a checkpoint into safetensors, and back; a chunk at a time, and without any device."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import tensorstore as ts

from meshdsl.errors import MeshDSLError
from meshdsl.train.checkpoints import folders, manifest, safetensors_files
from meshdsl.train.checkpoints.digest import on_host
from meshdsl.train.checkpoints.manifest import Damaged, reason
from meshdsl.train.checkpoints.parameters import (
    PREFIX,
    differences,
    matching,
    parameters_of,
)
from meshdsl.train.checkpoints.saved_arrays import CHUNK, Index, Stored, location, parts


def export(folder: Path, step: int, out: Path, config: str, limit: int) -> list[Path]:
    """Write the parameters of a checkpoint as safetensors, full tensors under their names in the model; returns the files.

    Args:
      folder: of the checkpoints.
      config: the text of the run's configuration, for the header.
      limit: bytes from which there are several files.

    Raises:
      MeshDSLError: the checkpoint is damaged, or `out` cannot be written.
    """
    try:
        found = manifest.read(folder / str(step))
        manifest.check_files(folder / str(step), found)
        stored, leaves = Stored(folder / str(step), found["state"]), parameters_of(found)
        dims = {name: said["dims"] for name, said in leaves.items()}
        about = {"step": str(step), "config": config, "dims": json.dumps(dims)}
        return safetensors_files.write(
            out, leaves, lambda name: stored.chunks(PREFIX + name), about, limit
        )
    except Damaged as damage:
        raise MeshDSLError(
            f"{folder}: the checkpoint of step {step} is damaged: {damage}; choose another by --step"
        ) from None
    except OSError as error:
        raise MeshDSLError(f"{out}: {error.strerror or error}") from None


def take(
    files: safetensors_files.TensorFiles, like: dict[str, dict[str, Any]], folder: Path
) -> list[str]:
    """Write the tensors of `files` as the checkpoint of step 0 in `folder`; returns what of them was not used.

    Args:
      like: the parameters of the model, described as in a record; tensors become of their dtypes.

    Raises:
      MeshDSLError: a parameter of the model is not there, or of another shape; or `folder` cannot be written. Nothing is left of it then.
    """
    refused = [line for line in differences(files.leaves, like) if not line.startswith("not used")]
    if len(matching(files.leaves, like)) < len(like):
        raise MeshDSLError(
            f"{files.path}: does not hold the parameters of this model; {'; '.join(refused)}"
        )
    writing = folders.unnamed(folder, 0)
    try:
        with folders.making(writing):
            digests = {
                PREFIX + name: _copy(writing, PREFIX + name, said, files, name)
                for name, said in like.items()
            }
            manifest.write(
                writing,
                0,
                {PREFIX + name: said for name, said in like.items()},
                digests,
                None,
                whole_state=False,
            )
            writing.rename(folder / "0")
    except MeshDSLError:
        raise
    except (OSError, ValueError) as error:  # tensorstore knows no OSError
        raise MeshDSLError(f"{folder} cannot be written: {reason(error)}") from None
    return differences(files.leaves, like)


def _copy(
    folder: Path,
    stored_as: str,
    said: dict[str, Any],
    files: safetensors_files.TensorFiles,
    name: str,
) -> int:
    """Copy one tensor; returns its digest."""
    shape, kind = tuple(said["shape"]), safetensors_files.dtype(said["dtype"])
    chunk = _chunk(shape, kind.itemsize)
    how = {
        "create": True,
        "dtype": ts.dtype(kind),
        "shape": shape,
        "chunk_layout": ts.ChunkLayout(chunk_shape=chunk),
    }
    array = ts.open(
        location(folder, stored_as) | {"metadata": {"compressor": None}}, **how
    ).result()
    digest = 0
    for index, part in _read(files, name, shape, chunk, kind):
        array[index if index else ...].write(part).result()
        digest += on_host(part, tuple(cut.start for cut in index), shape)
    return digest % (1 << 32)


def _read(
    files: safetensors_files.TensorFiles,
    name: str,
    shape: tuple[int, ...],
    chunk: tuple[int, ...],
    kind: np.dtype,
) -> Iterator[tuple[Index, np.ndarray]]:
    for index in parts(shape, chunk):
        yield index, files.part(name, index).astype(kind, copy=False)


def _chunk(shape: tuple[int, ...], itemsize: int) -> tuple[int, ...]:
    """The shape of chunks of at most CHUNK bytes, of whole rows where they are not too long."""
    chunk = list(shape)
    for i in range(len(chunk)):
        while math.prod(chunk) * itemsize > CHUNK and chunk[i] > 1:
            chunk[i] = -(-chunk[i] // 2)
    return tuple(chunk)
