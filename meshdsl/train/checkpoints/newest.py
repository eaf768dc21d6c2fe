"""Finds the newest good checkpoint in a folder, and reads it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np

from meshdsl.errors import MeshDSLError
from meshdsl.hosts import first_does
from meshdsl.train.checkpoints import folders, manifest
from meshdsl.train.checkpoints.digest import digests
from meshdsl.train.checkpoints.first_error import first_error
from meshdsl.train.checkpoints.manifest import Damaged, Manifest
from meshdsl.train.checkpoints.saved_arrays import SavedArrays
from meshdsl.train.checkpoints.tree_leaves import Leaf


@dataclass(frozen=True)
class GoodCheckpoint:
    """A checkpoint that is as it was saved, as far as it was looked at.

    Attributes:
      arrays: those that were asked for, by name.
      damaged: newer checkpoints that were passed over, by step, and what is wrong with each.
    """

    step: int
    manifest: Manifest
    arrays: dict[str, jax.Array]
    damaged: dict[int, str]

    def warnings(self) -> list[str]:
        """A line for the user on each checkpoint that was passed over."""
        return [
            f"the checkpoint of step {step} is damaged: {why}; using step {self.step}"
            for step, why in self.damaged.items()
        ]


def newest_complete(folder: Path) -> GoodCheckpoint | None:
    """The newest checkpoint whose files are all there; its arrays are not read.

    Returns:
      The checkpoint, without arrays; None where the folder has no checkpoint.

    Raises:
      MeshDSLError: there are checkpoints, and all are damaged.
    """
    damaged: dict[int, str] = {}
    for step in reversed(_saved_steps(folder)):
        try:
            return GoodCheckpoint(step, _checked_manifest(folder / str(step)), {}, damaged)
        except Damaged as damage:
            damaged[step] = str(damage)
    if damaged:
        raise _none_good(folder, damaged)
    return None


def read_newest_good(
    folder: Path, wanted: Callable[[Manifest], dict[str, Any]], only: int | None = None
) -> GoodCheckpoint:
    """Read the newest checkpoint whose files and arrays are what was saved.

    Every process calls this.

    Args:
      wanted: called with the manifest of a checkpoint; gives by name anything with a shape and a
        sharding for each array to read. It may refuse the checkpoint with a MeshDSLError.
      only: the only step to look at; by default all.

    Raises:
      MeshDSLError: there is no checkpoint, or none is good.
    """
    damaged: dict[int, str] = {}
    for step in reversed(_chosen_steps(folder, only)):
        try:
            content = _checked_manifest(folder / str(step))
            arrays = _checked_arrays(folder / str(step), content["state"], wanted(content))
            return GoodCheckpoint(step, content, arrays, damaged)
        except Damaged as damage:
            damaged[step] = str(damage)
    raise _none_good(folder, damaged)


def _saved_steps(folder: Path) -> list[int]:
    return first_does(lambda: folders.saved_steps(folder))


def _chosen_steps(folder: Path, only: int | None) -> list[int]:
    steps = _saved_steps(folder)
    if only is None:
        return steps
    if only not in steps:
        raise MeshDSLError(
            f"{folder}: there is no checkpoint of step {only}; {folders.in_words(steps)}"
        )
    return [only]


def _none_good(folder: Path, damaged: dict[int, str]) -> MeshDSLError:
    why = "; ".join(f"step {step} is damaged: {text}" for step, text in damaged.items())
    return MeshDSLError(
        f"{folder}: there is no good checkpoint; {why}"
        if damaged
        else f"{folder}: there is no checkpoint"
    )


def _checked_manifest(folder: Path) -> Manifest:
    """The manifest of a checkpoint whose files are all there; process 0 looks for all processes.

    Raises:
      Damaged: on all processes, if a file is missing or has another size.
    """

    def look() -> dict[str, Any]:
        try:
            content = manifest.read(folder)
            manifest.check_files(folder, content)
            return {"manifest": content}
        except Damaged as damage:
            return {"damage": str(damage)}

    seen = first_does(look)
    if "damage" in seen:
        raise Damaged(seen["damage"])
    return seen["manifest"]


def _checked_arrays(
    folder: Path, leaves: dict[str, Leaf], wanted: dict[str, Any]
) -> dict[str, jax.Array]:
    """The arrays of a checkpoint by name, compared with their digests.

    Args:
      leaves: the descriptions in its manifest.
      wanted: by name, anything with a shape and a sharding for each array to read.

    Raises:
      Damaged: on all processes, if one of them cannot read an array or a digest is another.
    """
    arrays, problem = {}, ""
    try:
        arrays = SavedArrays(folder, leaves).read(wanted)
    except Damaged as damage:
        problem = str(damage)
    if problem := first_error(problem):
        raise Damaged(problem)
    found = map(int, np.asarray(digests(arrays)) if arrays else ())
    wrong = [
        name for name, digest in zip(arrays, found, strict=True) if digest != leaves[name]["digest"]
    ]
    if problem := first_error(f"`{wrong[0]}` is not what was saved" if wrong else ""):
        raise Damaged(problem)
    return arrays
