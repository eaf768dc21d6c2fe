"""The folder of a run's checkpoints: one folder for each, named by its step, such as `200/`.

Only a complete checkpoint ever has such a name. One that is being written has another name until
its last file lies there, and one that is removed loses its name before it loses its first file. So
a process that is killed leaves complete checkpoints and leftovers, never half a checkpoint.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

# How the names of other folders end: one that is being removed, one that was found damaged, and
# one that orbax is writing.
_REMOVED = ".leaving"
_DAMAGED = ".damaged"
_UNFINISHED = ".orbax-checkpoint-tmp"
_KEPT = 2  # so many damaged checkpoints stay for a person to look at


def saved_steps(folder: Path) -> list[int]:
    """The steps of the checkpoints in a folder, ascending; none where there is no folder."""
    try:
        return sorted(
            int(path.name) for path in folder.iterdir() if path.name.isdecimal() and path.is_dir()
        )
    except (FileNotFoundError, NotADirectoryError):
        return []


def in_words(steps: list[int]) -> str:
    """Which checkpoints there are, as the end of a message: `there are those of steps 2, 4`."""
    return f"there are those of steps {', '.join(map(str, steps))}" if steps else "there is none"


def newest_step(folder: Path) -> int:
    """The step of the newest checkpoint in a folder; 0 where there is none."""
    return max(saved_steps(folder), default=0)


def writes(folder: Path) -> bool:
    """Whether a checkpoint is being written into a folder, or was by a process that was killed."""
    with suppress(OSError):
        return any(_UNFINISHED in path.name for path in folder.iterdir())
    return False


def unfinished(folder: Path, step: int) -> Path:
    """The folder in which a checkpoint is written until it is complete, as orbax names it too."""
    return folder / f"{step}{_UNFINISHED}"


@contextmanager
def making(folder: Path) -> Iterator[None]:
    """Make a folder and those above it; if the block raises, remove all that was made."""
    topmost = next(
        (path for path in (*reversed(folder.parents), folder) if not path.exists()), None
    )
    try:
        folder.mkdir(parents=True, exist_ok=True)
        yield
    except BaseException:
        if topmost:
            shutil.rmtree(topmost, ignore_errors=True)
        raise


def remove(folder: Path, steps: Iterable[int]) -> None:
    """Remove the checkpoints of `steps`, each of which loses its name first."""
    for step in steps:
        removed = folder / f"{step}{_REMOVED}"
        shutil.rmtree(removed, ignore_errors=True)
        (folder / str(step)).rename(removed)
        shutil.rmtree(removed, ignore_errors=True)


def set_aside(folder: Path, steps: Iterable[int]) -> None:
    """Rename damaged checkpoints to `200.damaged`, so that they stay for a person to look at.

    The newest two stay. Those that were set aside before them are removed.
    """
    for step in sorted(steps):
        names = [f"{step}{_DAMAGED}", *(f"{step}{_DAMAGED}-{i}" for i in range(2, 1000))]
        aside = next(folder / name for name in names if not (folder / name).exists())
        (folder / str(step)).rename(aside)
        os.utime(aside)  # the time by which `damaged` sorts
    for path in damaged(folder)[:-_KEPT]:
        shutil.rmtree(path, ignore_errors=True)


def damaged(folder: Path) -> list[Path]:
    """The folders of damaged checkpoints that were set aside, the newest last."""
    found = [path for path in folder.iterdir() if _DAMAGED in path.name]
    return sorted(found, key=lambda path: (path.stat().st_mtime, path.name))


def remove_leftovers(folder: Path) -> None:
    """Remove what killed processes left: checkpoints that were being written or removed."""
    for path in folder.iterdir():
        if path.name.endswith(_REMOVED) or _UNFINISHED in path.name:
            shutil.rmtree(path, ignore_errors=True)


def surplus(steps: Iterable[int], keep: int, keep_every: int) -> list[int]:
    """Those steps that need not be kept.

    Kept are the newest `keep`, and those that `keep_every` divides unless it is 0.
    """
    ordered = sorted(steps)
    return [
        step
        for step in ordered[: max(0, len(ordered) - keep)]
        if not (keep_every and step % keep_every == 0)
    ]
