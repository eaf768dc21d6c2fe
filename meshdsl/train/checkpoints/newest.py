"""The newest good checkpoint of a folder."""

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
from meshdsl.train.checkpoints.first_error import first_of
from meshdsl.train.checkpoints.manifest import Damaged
from meshdsl.train.checkpoints.saved_arrays import Stored


@dataclass(frozen=True)
class Found:
    """A good checkpoint.

    Attributes:
      values: the arrays that were asked for, by name.
      damaged: newer checkpoints that were passed over, and what is wrong with each.
    """

    step: int
    record: dict[str, Any]
    values: dict[str, jax.Array]
    damaged: dict[int, str]

    def lines(self) -> list[str]:
        return [
            f"the checkpoint of step {step} is damaged: {why}; using step {self.step}"
            for step, why in self.damaged.items()
        ]


def newest_record(folder: Path) -> Found | None:
    """The newest checkpoint whose files are all there, with no arrays; None where there is no checkpoint. Arrays are not read.

    Raises:
      MeshDSLError: there are checkpoints, and all are damaged.
    """
    damaged: dict[int, str] = {}
    for step in reversed(_steps(folder)):
        try:
            return Found(step, _checked(folder / str(step)), {}, damaged)
        except Damaged as damage:
            damaged[step] = str(damage)
    if damaged:
        raise _none_good(folder, damaged)
    return None


def newest_good(
    folder: Path, wanted: Callable[[dict[str, Any]], dict[str, Any]], only: int | None = None
) -> Found:
    """The arrays of the newest checkpoint whose files and arrays are what was saved. Every process calls this.

    Args:
      only: the step to look at; by default all.
      wanted: given a record, the arrays to read: by name anything with a shape and a sharding. It may refuse with a MeshDSLError.

    Raises:
      MeshDSLError: there is no checkpoint, or none is good.
    """
    damaged: dict[int, str] = {}
    for step in reversed(_chosen(folder, only)):
        try:
            found = _checked(folder / str(step))
            return Found(step, found, _read(folder / str(step), found, wanted(found)), damaged)
        except Damaged as damage:
            damaged[step] = str(damage)
    raise _none_good(folder, damaged)


def _steps(folder: Path) -> list[int]:
    return first_does(lambda: folders.steps(folder))


def _chosen(folder: Path, step: int | None) -> list[int]:
    known = _steps(folder)
    if step is None:
        return known
    if step not in known:
        raise MeshDSLError(
            f"{folder}: there is no checkpoint of step {step}; {folders.words(known)}"
        )
    return [step]


def _none_good(folder: Path, damaged: dict[int, str]) -> MeshDSLError:
    why = "; ".join(f"step {step} is damaged: {text}" for step, text in damaged.items())
    return MeshDSLError(
        f"{folder}: there is no good checkpoint; {why}"
        if damaged
        else f"{folder}: there is no checkpoint"
    )


def _checked(folder: Path) -> dict[str, Any]:
    """The record, after a look at the files: process 0 looks, and tells the others."""

    def look() -> dict[str, Any]:
        try:
            found = manifest.read(folder)
            manifest.check_files(folder, found)
            return {"record": found}
        except Damaged as damage:
            return {"damage": str(damage)}

    seen = first_does(look)
    if "damage" in seen:
        raise Damaged(seen["damage"])
    return seen["record"]


def _read(folder: Path, found: dict[str, Any], wanted: dict[str, Any]) -> dict[str, jax.Array]:
    """The arrays by name. What one process cannot read is damaged for all of them."""
    values, problem = {}, ""
    try:
        values = Stored(folder, found["state"]).read(wanted)
    except Damaged as damage:
        problem = str(damage)
    if problem := first_of(problem):
        raise Damaged(problem)
    numbers = map(int, np.asarray(digests(values)) if values else ())
    wrong = [
        name
        for name, number in zip(values, numbers, strict=True)
        if number != found["state"][name]["digest"]
    ]
    if problem := first_of(f"`{wrong[0]}` is not what was saved" if wrong else ""):
        raise Damaged(problem)
    return values
