"""Finds the newest good checkpoint in a folder, and reads it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.experimental.multihost_utils import process_allgather

from meshdsl.errors import MeshDSLError
from meshdsl.hosts import first_does
from meshdsl.train.checkpoints import folders, manifest
from meshdsl.train.checkpoints.digest import digests
from meshdsl.train.checkpoints.manifest import Damaged, Manifest
from meshdsl.train.checkpoints.saved_arrays import SavedArrays
from meshdsl.train.checkpoints.tree_leaves import Leaf

_LONGEST = 1000  # bytes of an error that processes tell each other


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
    return _newest(folder, _saved_steps(folder), lambda manifest: None)


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
    steps = _saved_steps(folder)
    if only is not None and only not in steps:
        raise MeshDSLError(
            f"{folder}: there is no checkpoint of step {only}; {folders.in_words(steps)}"
        )
    found = _newest(folder, steps if only is None else [only], wanted)
    if found is None:
        raise MeshDSLError(f"{folder}: there is no checkpoint")
    return found


def _saved_steps(folder: Path) -> list[int]:
    return first_does(lambda: folders.saved_steps(folder))


def _newest(
    folder: Path, steps: list[int], wanted: Callable[[Manifest], dict[str, Any] | None]
) -> GoodCheckpoint | None:
    """The newest good checkpoint of `steps`, with the arrays that are wanted; None for no steps.

    Raises:
      MeshDSLError: all of them are damaged.
    """
    damaged: dict[int, str] = {}
    for step in reversed(steps):
        try:
            content = _checked_manifest(folder / str(step))
            like = wanted(content)
            arrays = _checked_arrays(folder / str(step), content["state"], like) if like else {}
            return GoodCheckpoint(step, content, arrays, damaged)
        except Damaged as damage:
            damaged[step] = str(damage)
    if not damaged:
        return None
    why = "; ".join(f"step {step} is damaged: {text}" for step, text in damaged.items())
    raise MeshDSLError(f"{folder}: there is no good checkpoint; {why}")


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


def first_error(text: str) -> str:
    """The text of the first process that has one; empty if all are. Every process calls this.

    What process 0 alone finds out goes to the others by `hosts.first_does` instead.
    """
    if jax.process_count() == 1:
        return text
    sent = np.frombuffer(text.encode()[:_LONGEST].ljust(_LONGEST), np.uint8)
    texts = [bytes(row).decode(errors="ignore").strip() for row in process_allgather(sent)]
    return next(filter(None, texts), "")
