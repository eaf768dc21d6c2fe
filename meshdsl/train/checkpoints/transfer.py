"""Export of parameters from a checkpoint to safetensors, and import from there, without a device.

Both go chunk by chunk, so a tensor may be larger than the memory.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from pathlib import Path

from meshdsl.errors import MeshDSLError
from meshdsl.extras import extra
from meshdsl.train.checkpoints import folders, manifest, safetensors_files
from meshdsl.train.checkpoints.digest import chunk_digest
from meshdsl.train.checkpoints.hugging_face import PublishedTensors
from meshdsl.train.checkpoints.merged_arrays import to_export
from meshdsl.train.checkpoints.named_parameters import PREFIX, differences, matching, parameters_of
from meshdsl.train.checkpoints.saved_arrays import chunk_indices, location
from meshdsl.train.checkpoints.tree_leaves import Leaf

# Bytes of an array that an import has in memory at once, in several copies on their way.
CHUNK = 16 << 20


def export_parameters(
    folder: Path, step: int, out: Path, config: str, limit: int, *, average: bool = False
) -> list[Path]:
    """Write the parameters of a checkpoint as safetensors: full tensors, named as in the model.

    Args:
      folder: of the checkpoints.
      out: the file to write; see `safetensors_files.write` where there are several.
      config: the text of the run's configuration, for the header.
      limit: the most bytes in one file, unless a single tensor has more.
      average: the averages over the steps instead, which `optimizer.average` keeps.

    Returns:
      The files that were written.

    Raises:
      MeshDSLError: the checkpoint is damaged, or `out` cannot be written.
    """
    with to_export(folder, step, out, average=average) as (content, arrays):
        leaves = parameters_of(content)
        dims = {name: leaf["dims"] for name, leaf in leaves.items()}
        about = {"step": str(step), "config": config, "dims": json.dumps(dims)}
        chunks = lambda name: arrays.chunks(PREFIX + name)
        return safetensors_files.write(out, leaves, chunks, about, limit)


Tensors = safetensors_files.TensorFiles | PublishedTensors


def import_parameters(files: Tensors, like: dict[str, Leaf], folder: Path) -> list[str]:
    """Write the tensors of `files` as the checkpoint of step 0 in `folder`.

    Args:
      like: the descriptions of the model's parameters, whose dtypes the tensors get.
      folder: of the checkpoints.

    Returns:
      Lines for the user on the tensors that were not used.

    Raises:
      MeshDSLError: a parameter of the model is absent or of another shape, or `folder` cannot be
        written. Then nothing of it is left.
    """
    refused = [line for line in differences(files.leaves, like) if not line.startswith("not used")]
    if len(matching(files.leaves, like)) < len(like):
        raise MeshDSLError(
            f"{files.path}: does not hold the parameters of this model; {'; '.join(refused)}"
        )
    unfinished = folders.unfinished(folder, 0)
    try:
        with folders.making(unfinished):
            digests = {
                PREFIX + name: _copy(files, name, leaf, unfinished) for name, leaf in like.items()
            }
            leaves = {PREFIX + name: leaf for name, leaf in like.items()}
            content = manifest.made(0, leaves, digests, None, whole_state=False)
            manifest.write(unfinished, content)
            unfinished.rename(folder / "0")
    except MeshDSLError:
        raise
    except (OSError, ValueError) as error:  # tensorstore raises no OSError
        raise MeshDSLError(f"{folder} cannot be written: {manifest.reason(error)}") from None
    return differences(files.leaves, like)


def _copy(files: Tensors, name: str, leaf: Leaf, folder: Path) -> int:
    """Copy one tensor into the checkpoint in `folder`; returns its digest."""
    with extra("train"):
        import tensorstore as ts
    shape, dtype = tuple(leaf["shape"]), safetensors_files.numpy_dtype(leaf["dtype"])
    order = files.halved_first(name) if isinstance(files, PublishedTensors) else None
    chunk_shape = _chunk_shape(shape, dtype.itemsize, order or range(len(shape)))
    array = ts.open(
        location(folder, PREFIX + name) | {"metadata": {"compressor": None}},
        create=True,
        dtype=ts.dtype(dtype),
        shape=shape,
        chunk_layout=ts.ChunkLayout(chunk_shape=chunk_shape),
    ).result()
    digest = 0
    for index in chunk_indices(shape, chunk_shape):
        chunk = files.read(name, index).astype(dtype, copy=False)
        array[index if index else ...].write(chunk).result()
        digest += chunk_digest(chunk, tuple(each.start for each in index), shape)
    return digest % (1 << 32)


def _chunk_shape(shape: tuple[int, ...], itemsize: int, order: Iterable[int]) -> tuple[int, ...]:
    """The shape of chunks of at most CHUNK bytes.

    Args:
      order: the positions in the shape; the first ones are divided first.
    """
    chunk = list(shape)
    for i in order:
        while math.prod(chunk) * itemsize > CHUNK and chunk[i] > 1:
            chunk[i] = -(-chunk[i] // 2)
    return tuple(chunk)
