"""The parameters of a run, and nothing else of it: neither its optimizer nor its layout matters.

A warm start takes those that match by name and dims, also from safetensors; the others keep what they have, and the report says
which they are.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax

from meshdsl.errors import MeshDSLError
from meshdsl.train.checkpoints import folders, tree_leaves
from meshdsl.train.checkpoints.newest import newest_good
from meshdsl.train.checkpoints.safetensors_files import TensorFiles

PREFIX = "params."


def warm_start(path: Path, like_params: Any) -> tuple[Any, str]:
    """The parameters at `path`, in the shardings and dtypes of `like_params`.

    Args:
      path: the folder of a run, or a safetensors file, index or folder.
      like_params: what a parameter that does not match stays.

    Returns:
      The parameters, and a report on what matched.

    Raises:
      MeshDSLError: nothing is there, or nothing of it matches.
    """
    if not path.exists():
        raise MeshDSLError(f"warm_start={path}: no such run, and no such file")
    here = tree_leaves.described(like_params)
    targets = tree_leaves.arrays(like_params)
    folder = folder_of(path)
    if folder:
        found = newest_good(
            folder,
            lambda record: {
                PREFIX + name: targets[name] for name in matching(parameters_of(record), here)
            },
        )
        there, values = parameters_of(found.record), _unprefixed(found.values)
        lines, source = found.lines(), f"{path}, step {found.step}"
    else:
        files = TensorFiles(path)
        there = files.leaves
        values = {name: _from_file(files, name, targets[name]) for name in matching(there, here)}
        lines, source = [], str(path)
    report = differences(there, here)
    if not values:
        raise MeshDSLError(
            f"warm_start={path}: none of its {len(there)} parameters is one of this model's; {'; '.join(report)}"
        )
    values = {name: _cast(value, targets[name]) for name, value in values.items()}
    lines.append(f"warm start from {source}: {len(values)} of {len(here)} parameters")
    return tree_leaves.with_arrays(like_params, values), "\n".join(
        [*lines, *(f"  {line}" for line in report)]
    )


def read_params(
    folder: Path, like_params: Any, step: int | None = None, report: Callable[[str], Any] = print
) -> tuple[int, Any]:
    """All parameters of a run, in the shardings and dtypes of `like_params`, and the step that they are of.

    Args:
      folder: of the checkpoints.
      step: of the checkpoint; by default the newest good one.
      report: called with a line on each damaged checkpoint that is passed over.

    Raises:
      MeshDSLError: there is no good checkpoint, none of that step, or it is of another model.
    """
    here = tree_leaves.described(like_params)
    targets = tree_leaves.arrays(like_params)

    def wanted(record: dict[str, Any]) -> dict[str, Any]:
        there = parameters_of(record)
        if len(matching(there, here)) < max(len(there), len(here)):
            raise MeshDSLError(
                f"{folder.parent} holds the parameters of another model; {'; '.join(differences(there, here))}"
            )
        return {PREFIX + name: target for name, target in targets.items()}

    found = newest_good(folder, wanted, step)
    for line in found.lines():
        report(line)
    values = {
        name: _cast(value, targets[name]) for name, value in _unprefixed(found.values).items()
    }
    return found.step, tree_leaves.with_arrays(like_params, values)


def folder_of(path: Path) -> Path | None:
    """The checkpoints at `path`, the folder of a run; None where there are none."""
    return next((folder for folder in (path / "checkpoints", path) if folders.steps(folder)), None)


def parameters_of(record: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """What a record says of the parameters, by their names in the model."""
    return {
        name.removeprefix(PREFIX): said
        for name, said in record["state"].items()
        if name.startswith(PREFIX) and "dtype" in said
    }


def matching(there: dict[str, dict[str, Any]], here: dict[str, dict[str, Any]]) -> list[str]:
    """The names that stand for the same dims on both sides; where a side knows no dims, for the same shape."""
    return [name for name, said in here.items() if name in there and _same(there[name], said)]


def _same(there: dict[str, Any], here: dict[str, Any]) -> bool:
    by = "dims" if there["dims"] and here["dims"] else "shape"
    return there[by] == here[by]


def differences(there: dict[str, dict[str, Any]], here: dict[str, dict[str, Any]]) -> list[str]:
    """What does not match, in lines."""
    absent = [f"`{name}`" for name in here if name not in there]
    other = [
        f"`{name}` is {there[name]['is']} there and {said['is']} here"
        for name, said in here.items()
        if name in there and not _same(there[name], said)
    ]
    unused = [f"`{name}`" for name in there if name not in here]
    kinds = (
        ("not there: ", ", ", absent),
        ("of another shape: ", "; ", other),
        ("not used: ", ", ", unused),
    )
    return [what + between.join(which) for what, between, which in kinds if which]


def _unprefixed(values: dict[str, Any]) -> dict[str, Any]:
    return {name.removeprefix(PREFIX): value for name, value in values.items()}


def _from_file(files: TensorFiles, name: str, target: Any) -> jax.Array:
    return jax.make_array_from_callback(
        tuple(target.shape), target.sharding, lambda index: files.part(name, index)
    )


def _cast(value: jax.Array, target: Any) -> jax.Array:
    if value.dtype == target.dtype:
        return value
    return jax.jit(lambda x: x.astype(target.dtype), out_shardings=target.sharding)(value)
