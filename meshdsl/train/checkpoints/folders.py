"""The folder of a run's checkpoints: one folder for each, named by its step, `200/`.

Only a whole checkpoint ever has such a name. One that is being written has another name until its last file lies there, and one
that goes away loses its name before its first file does, so whoever is killed leaves whole checkpoints and leftovers, never
half of one.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

_LEAVING = ".leaving"
_ASIDE = ".damaged"
_WRITING = ".orbax-checkpoint-tmp"


def steps(folder: Path) -> list[int]:
    """The steps of the checkpoints, ascending; none where there is no folder."""
    try:
        return sorted(
            int(path.name) for path in folder.iterdir() if path.name.isdecimal() and path.is_dir()
        )
    except (FileNotFoundError, NotADirectoryError):
        return []


def words(known: list[int]) -> str:
    """`there are those of steps 2, 4`."""
    return f"there are those of steps {', '.join(map(str, known))}" if known else "there is none"


def unnamed(folder: Path, step: int) -> Path:
    """Where a checkpoint is written until it is whole. Orbax makes the same name of the final one."""
    return folder / f"{step}{_WRITING}"


@contextmanager
def making(folder: Path) -> Iterator[None]:
    """The folder is made, with those above it. If the block raises, all that was made goes away again, with what lies in it."""
    made = next((path for path in (*reversed(folder.parents), folder) if not path.exists()), None)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        yield
    except BaseException:
        if made:
            shutil.rmtree(made, ignore_errors=True)
        raise


def remove(folder: Path, gone: Iterable[int]) -> None:
    for step in gone:
        leaving = folder / f"{step}{_LEAVING}"
        shutil.rmtree(leaving, ignore_errors=True)
        (folder / str(step)).rename(leaving)
        shutil.rmtree(leaving, ignore_errors=True)


def set_aside(folder: Path, damaged: Iterable[int]) -> None:
    """Damaged checkpoints lose their name and stay, as `200.damaged`, for a person to look at."""
    for step in damaged:
        names = [f"{step}{_ASIDE}", *(f"{step}{_ASIDE}-{i}" for i in range(2, 1000))]
        (folder / str(step)).rename(
            next(folder / name for name in names if not (folder / name).exists())
        )


def aside(folder: Path) -> list[Path]:
    """The damaged ones that were set aside."""
    return sorted(path for path in folder.iterdir() if _ASIDE in path.name)


def sweep(folder: Path) -> None:
    """Removes what killed processes left: checkpoints that were being written or removed."""
    for path in folder.iterdir():
        if path.name.endswith(_LEAVING) or _WRITING in path.name:
            shutil.rmtree(path, ignore_errors=True)


def surplus(steps: Iterable[int], keep: int, keep_every: int) -> list[int]:
    """Those that need not be kept: neither among the newest `keep`, nor divided by `keep_every`."""
    ordered = sorted(steps)
    return [
        step
        for step in ordered[: max(0, len(ordered) - keep)]
        if not (keep_every and step % keep_every == 0)
    ]
