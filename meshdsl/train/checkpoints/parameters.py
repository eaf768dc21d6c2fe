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

from meshdsl.errors import MeshDSLError
from meshdsl.train.checkpoints import folders, tree_leaves
from meshdsl.train.checkpoints.manifest import Manifest
from meshdsl.train.checkpoints.newest import read_newest_good
from meshdsl.train.checkpoints.safetensors_files import TensorFiles
from meshdsl.train.checkpoints.tree_leaves import Leaf

PREFIX = "params."  # of the names of parameters in a state


def warm_start(path: Path, like_params: Any) -> tuple[Any, str]:
    """The parameters at `path`, in the shardings and dtypes of `like_params`.

    Args:
      path: the folder of a run, or a safetensors file, index or folder.
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
            lambda manifest: {
                PREFIX + name: targets[name] for name in matching(parameters_of(manifest), here)
            },
        )
        there, arrays = parameters_of(checkpoint.manifest), _without_prefix(checkpoint.arrays)
        lines, source = checkpoint.warnings(), f"{path}, step {checkpoint.step}"
    else:
        files = TensorFiles(path)
        there = files.leaves
        arrays = {name: _from_file(files, name, targets[name]) for name in matching(there, here)}
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
        return {PREFIX + name: target for name, target in targets.items()}

    checkpoint = read_newest_good(folder, wanted, step)
    for line in checkpoint.warnings():
        report(line)
    arrays = {
        name: _cast(array, targets[name])
        for name, array in _without_prefix(checkpoint.arrays).items()
    }
    return checkpoint.step, tree_leaves.with_arrays(like_params, arrays)


def checkpoints_folder(path: Path) -> Path | None:
    """The folder of checkpoints at `path`, which is that folder or a run's; None if neither."""
    candidates = (path / "checkpoints", path)
    return next((folder for folder in candidates if folders.saved_steps(folder)), None)


def parameters_of(manifest: Manifest) -> dict[str, Leaf]:
    """The descriptions of the parameters in a manifest, by their names in the model."""
    return {
        name.removeprefix(PREFIX): leaf
        for name, leaf in manifest["state"].items()
        if name.startswith(PREFIX) and "dtype" in leaf
    }


def matching(there: dict[str, Leaf], here: dict[str, Leaf]) -> list[str]:
    """The names that have the same dims on both sides; the same shape where a side has no dims."""
    return [name for name, leaf in here.items() if name in there and _same(there[name], leaf)]


def _same(there: Leaf, here: Leaf) -> bool:
    by = "dims" if there["dims"] and here["dims"] else "shape"
    return there[by] == here[by]


def differences(there: dict[str, Leaf], here: dict[str, Leaf]) -> list[str]:
    """Lines for the user on what does not match: absent, of another shape, and not used."""
    absent = [f"`{name}`" for name in here if name not in there]
    other = [
        f"`{name}` is {there[name]['is']} there and {leaf['is']} here"
        for name, leaf in here.items()
        if name in there and not _same(there[name], leaf)
    ]
    unused = [f"`{name}`" for name in there if name not in here]
    kinds = (
        ("not there: ", ", ", absent),
        ("of another shape: ", "; ", other),
        ("not used: ", ", ", unused),
    )
    return [title + separator.join(names) for title, separator, names in kinds if names]


def _without_prefix(arrays: dict[str, Any]) -> dict[str, Any]:
    return {name.removeprefix(PREFIX): array for name, array in arrays.items()}


def _from_file(files: TensorFiles, name: str, target: Any) -> jax.Array:
    def part(index: tuple[slice, ...] | None) -> np.ndarray:
        assert index is not None  # JAX calls this for devices of this process only
        return files.read(name, index)

    return jax.make_array_from_callback(tuple(target.shape), target.sharding, part)


def _cast(array: jax.Array, target: Any) -> jax.Array:
    if array.dtype == target.dtype:
        return array
    return jax.jit(lambda x: x.astype(target.dtype), out_shardings=target.sharding)(array)
