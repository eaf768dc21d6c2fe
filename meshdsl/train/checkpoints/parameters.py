"""Reads the parameters of a run and nothing else of it: its optimizer and layout do not matter.

A warm start takes those parameters that match by name and dims, from a checkpoint or from
safetensors. The others keep their values, and a report says which they are.

The descriptions of what was saved are called `there`, those of the model that reads them `here`.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from meshdsl.errors import MeshDSLError
from meshdsl.models.published import form_of_config
from meshdsl.schema import read_object
from meshdsl.train.adapters import merged_array
from meshdsl.train.checkpoints import folders, tree_leaves
from meshdsl.train.checkpoints.hugging_face import PublishedTensors, own_names
from meshdsl.train.checkpoints.manifest import Manifest
from meshdsl.train.checkpoints.named_parameters import (
    PREFIX,
    SCALE,
    A,
    B,
    adapters_of,
    differences,
    matching,
    parameters_of,
)
from meshdsl.train.checkpoints.newest import GoodCheckpoint, read_newest_good
from meshdsl.train.checkpoints.quantized import opened
from meshdsl.train.checkpoints.safetensors_files import TensorFiles
from meshdsl.train.checkpoints.tree_leaves import Leaf


def warm_start(path: Path, like_params: Any) -> tuple[Any, str]:
    """The parameters at `path`, in the shardings and dtypes of `like_params`.

    Args:
      path: the folder of a run, a safetensors file, index or folder, or a folder of Hugging Face.
      like_params: the parameters of the model; those that do not match are returned as they are.

    Returns:
      The parameters, and a report on what matched.

    Raises:
      MeshDSLError: nothing is there, or nothing of it matches.
    """
    if not path.exists():
        raise MeshDSLError(f"warm_start={path}: no such run, and no such file")
    here = tree_leaves.describe(like_params)
    targets = tree_leaves.named_arrays(like_params)
    folder = checkpoints_folder(path)
    if folder:
        checkpoint = read_newest_good(
            folder,
            lambda manifest: _with_adapters(
                {PREFIX + name: targets[name] for name in matching(parameters_of(manifest), here)},
                manifest,
            ),
        )
        there, arrays = parameters_of(checkpoint.manifest), _merged(checkpoint)
        lines, source = checkpoint.warnings(), f"{path}, step {checkpoint.step}"
    else:
        files = _published(path, here) if is_published(path) else TensorFiles(path)
        there = files.leaves
        # Each gets its dtype before the next is read: the model is never there twice.
        arrays = {
            name: _cast(_from_file(files, name, targets[name]), targets[name])
            for name in matching(there, here)
        }
        lines, source = [], str(path)
    report = differences(there, here)
    if not arrays:
        raise MeshDSLError(
            f"warm_start={path}: none of its {len(there)} parameters is one of this model's; "
            f"{'; '.join(report)}"
        )
    arrays = {name: _cast(array, targets[name]) for name, array in arrays.items()}
    lines.append(f"warm start from {source}: {len(arrays)} of {len(here)} parameters")
    return tree_leaves.with_arrays(like_params, arrays), "\n".join(
        [*lines, *(f"  {line}" for line in report)]
    )


def read_params(
    folder: Path, like_params: Any, step: int | None = None, report: Callable[[str], Any] = print
) -> tuple[int, Any]:
    """All parameters of a run, in the shardings and dtypes of `like_params`, and their step.

    Args:
      folder: of the checkpoints.
      step: of the checkpoint to read; by default the newest good one.
      report: called with a line on each damaged checkpoint that is passed over.

    Returns:
      The step of the checkpoint, and the parameters.

    Raises:
      MeshDSLError: there is no good checkpoint, none of that step, or it is of another model.
    """
    here = tree_leaves.describe(like_params)
    targets = tree_leaves.named_arrays(like_params)

    def wanted(manifest: Manifest) -> dict[str, Any]:
        there = parameters_of(manifest)
        if len(matching(there, here)) < max(len(there), len(here)):
            raise MeshDSLError(
                f"{folder.parent} holds the parameters of another model; "
                f"{'; '.join(differences(there, here))}"
            )
        found = {PREFIX + name: target for name, target in targets.items()}
        return _with_adapters(found, manifest)

    checkpoint = read_newest_good(folder, wanted, step)
    for line in checkpoint.warnings():
        report(line)
    arrays = {name: _cast(array, targets[name]) for name, array in _merged(checkpoint).items()}
    return checkpoint.step, tree_leaves.with_arrays(like_params, arrays)


def checkpoints_folder(path: Path) -> Path | None:
    """The folder of checkpoints at `path`, which is that folder or a run's; None if neither."""
    candidates = (path / "checkpoints", path)
    return next((folder for folder in candidates if folders.saved_steps(folder)), None)


def _with_adapters(targets: dict[str, Any], manifest: Manifest) -> dict[str, Any]:
    """`targets`, and those of the adapters of these parameters, which every device gets whole."""
    wanted = [name for name in adapters_of(manifest) if PREFIX + name in targets]
    if not wanted:
        return targets
    mesh = targets[PREFIX + wanted[0]].sharding.mesh
    everywhere = NamedSharding(mesh, PartitionSpec())
    state = manifest["state"]
    more = {
        name: jax.ShapeDtypeStruct(
            tuple(state[name]["shape"]), state[name]["dtype"], sharding=everywhere
        )
        for name in (SCALE, *(part + name for name in wanted for part in (A, B)))
    }
    return targets | more


def _merged(checkpoint: GoodCheckpoint) -> dict[str, jax.Array]:
    """The parameters by their names in the model, with the adapters added to them."""
    arrays, adapters = checkpoint.arrays, adapters_of(checkpoint.manifest)
    found = {}
    for path, array in arrays.items():
        if not path.startswith(PREFIX):
            continue
        name = path.removeprefix(PREFIX)
        if name in adapters:
            parts = array, arrays[A + name], arrays[B + name], arrays[SCALE]
            array = merged_array(*parts, adapters[name])
        found[name] = array
    return found


def is_published(path: Path) -> bool:
    """Whether at `path` is a folder of Hugging Face, with a model's `config.json`."""
    return (path / "config.json").is_file() and checkpoints_folder(path) is None


def _published(folder: Path, here: dict[str, Leaf]) -> PublishedTensors:
    """The weights in a folder of Hugging Face, as the parameters of the model here."""
    said = read_object(folder / "config.json")
    try:
        files = opened(folder, said)
        return PublishedTensors(files, form_of_config(said, own_names(files)), here)
    except MeshDSLError as error:
        raise MeshDSLError(f"warm_start: {error}") from None


def _from_file(files: TensorFiles | PublishedTensors, name: str, target: Any) -> jax.Array:
    def part(index: tuple[slice, ...] | None) -> np.ndarray:
        assert index is not None  # JAX calls this for devices of this process only
        return files.read(name, index)

    return jax.make_array_from_callback(tuple(target.shape), target.sharding, part)


def _cast(array: jax.Array, target: Any) -> jax.Array:
    if array.dtype == target.dtype:
        return array
    return jax.jit(lambda x: x.astype(target.dtype), out_shardings=target.sharding)(array)
