"""Files that commands write beside what they print."""

from __future__ import annotations

import sys
from pathlib import Path
from tempfile import NamedTemporaryFile

from meshdsl.errors import MeshDSLError


def check_files(*paths: Path | None) -> None:
    """Refuse before the work what could not be written after it; None is no file.

    It is tried, because what the permissions say is not all: a file system may refuse too.

    Raises:
      MeshDSLError: one of them cannot be written.
    """
    for path in filter(None, paths):
        try:
            if path.is_file() or path.is_dir():
                path.open("ab").close()
            elif not path.exists():
                NamedTemporaryFile(dir=path.parent, prefix=path.name).close()
        except OSError as error:
            raise MeshDSLError(f"{path}: {error.strerror}") from None


def write_file(path: Path, text: str) -> None:
    """Write a file and say so on stderr.

    Raises:
      MeshDSLError: it cannot be written.
    """
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise MeshDSLError(f"{path}: {error.strerror}") from None
    print(f"wrote {path}", file=sys.stderr)
