"""Finds the newest good state that was kept, and reads it.

That is a checkpoint in a folder, or a copy in the memory of hosts.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

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


class Kept(Protocol):
    """A state that was kept. All processes call its methods, in the same order.

    Attributes:
      step: after which it was.
      words: what it is, for messages.
    """

    step: int
    words: str

    def manifest(self) -> Manifest:
        """Its manifest.

        Raises:
          Damaged: on all processes, if something of it is missing.
        """
        ...

    def read(self, leaves: dict[str, Leaf], like: dict[str, Any]) -> dict[str, jax.Array]:
        """The arrays that `like` names, each in its sharding, for `leaves` of the manifest.

        Raises:
          Damaged: on this process, if one cannot be read.
        """
        ...


class OnDisk:
    """A checkpoint in a folder of its own, named by its step."""

    def __init__(self, folder: Path):
        self.folder, self.step = folder, int(folder.name)
        self.words = f"checkpoint of step {self.step}"

    def manifest(self) -> Manifest:
        return _checked_manifest(self.folder)

    def read(self, leaves: dict[str, Leaf], like: dict[str, Any]) -> dict[str, jax.Array]:
        return SavedArrays(self.folder, leaves).read(like)


@dataclass(frozen=True)
class GoodCheckpoint:
    """A state that is as it was kept, as far as it was looked at.

    Attributes:
      kept: where it is.
      arrays: those that were asked for, by name.
      damaged: newer ones that were passed over, and what is wrong with each.
    """

    kept: Kept
    manifest: Manifest
    arrays: dict[str, jax.Array]
    damaged: dict[Kept, str]

    @property
    def step(self) -> int:
        return self.kept.step

    def warnings(self) -> list[str]:
        """A line for the user on each state that was passed over."""
        return [
            f"the {kept.words} is damaged: {why}; using step {self.step}"
            for kept, why in self.damaged.items()
        ]


def newest_complete(folder: Path, copy: Kept | None = None) -> GoodCheckpoint | None:
    """The newest state of which all is there; its arrays are not read.

    Args:
      folder: of checkpoints.
      copy: the newest one that is kept elsewhere.

    Returns:
      The checkpoint, without arrays; None where there is none.

    Raises:
      MeshDSLError: there are checkpoints, and all are damaged.
    """
    return _newest(folder, _all_kept(folder, copy), lambda manifest: None)


def read_newest_good(
    folder: Path,
    wanted: Callable[[Manifest], dict[str, Any]],
    only: int | None = None,
    copy: Kept | None = None,
) -> GoodCheckpoint:
    """Read the newest state that is wholly what was kept.

    Every process calls this.

    Args:
      folder: of checkpoints.
      wanted: called with the manifest of a state; gives by name anything with a shape and a
        sharding for each array to read. It may refuse the state with a MeshDSLError.
      only: the only step to look at; by default all.
      copy: the newest state that is kept elsewhere.

    Raises:
      MeshDSLError: there is no checkpoint, or none is good.
    """
    every = _all_kept(folder, copy)
    kept = [each for each in every if only in (None, each.step)]
    if only is not None and not kept:
        steps = sorted(each.step for each in every)
        raise MeshDSLError(
            f"{folder}: there is no checkpoint of step {only}; {folders.in_words(steps)}"
        )
    found = _newest(folder, kept, wanted)
    if found is None:
        raise MeshDSLError(f"{folder}: there is no checkpoint")
    return found


def _all_kept(folder: Path, copy: Kept | None) -> list[Kept]:
    """The checkpoints in a folder and a copy, the newest first; of two of one step the copy."""
    steps = first_does(lambda: folders.saved_steps(folder))
    found: list[Kept] = [OnDisk(folder / str(step)) for step in steps]
    found += [copy] if copy else []
    return sorted(found, key=lambda kept: kept.step)[::-1]


def _newest(
    folder: Path, every: list[Kept], wanted: Callable[[Manifest], dict[str, Any] | None]
) -> GoodCheckpoint | None:
    """The first good state, with the arrays that are wanted; None where there is no state.

    Raises:
      MeshDSLError: all of them are damaged.
    """
    damaged: dict[Kept, str] = {}
    for kept in every:
        try:
            content = kept.manifest()
            like = wanted(content)
            arrays = _checked_arrays(kept, content["state"], like) if like else {}
            return GoodCheckpoint(kept, content, arrays, damaged)
        except Damaged as damage:
            damaged[kept] = str(damage)
    if not damaged:
        return None
    why = "; ".join(f"the {kept.words} is damaged: {text}" for kept, text in damaged.items())
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
    kept: Kept, leaves: dict[str, Leaf], wanted: dict[str, Any]
) -> dict[str, jax.Array]:
    """The arrays of a state by name, compared with their digests.

    Args:
      leaves: the descriptions in its manifest.
      wanted: by name, anything with a shape and a sharding for each array to read.

    Raises:
      Damaged: on all processes, if one of them cannot read an array or a digest is another.
    """
    arrays, problem = {}, ""
    try:
        arrays = kept.read(leaves, wanted)
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
