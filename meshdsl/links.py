"""Links that lead out of a folder of files: they are refused.

Who makes a folder decides what is in it. With a link a stranger's folder could make a run read any
file that its user may read, and put that into weights that are given away.
"""

from __future__ import annotations

import os
from pathlib import Path

from meshdsl.errors import MeshDSLError


def leads_out(path: Path, folder: Path) -> str:
    """What a file of a folder really is, if that is outside of the folder; else nothing.

    In a cache of Hugging Face the files of `snapshots/REVISION` are links to those of `blobs`.
    """
    real, root = Path(os.path.realpath(path)), Path(os.path.realpath(folder))
    inside = [root, *([root.parents[1] / "blobs"] if root.parent.name == "snapshots" else [])]
    return "" if any(real.is_relative_to(each) for each in inside) else str(real)


def check_stays(path: Path, folder: Path) -> None:
    """Raise a MeshDSLError if a file of a folder is a link to something outside of it."""
    if real := leads_out(path, folder):
        raise MeshDSLError(
            f"`{path}` is a link to `{real}`, outside of `{folder}`; if it is meant, name that "
            "file itself, or put it into the folder"
        )
