"""Files that commands write beside what they print."""

from __future__ import annotations

import sys
from pathlib import Path
from tempfile import NamedTemporaryFile

from meshdsl.errors import system_errors_say


def check_files(*paths: Path | None) -> None:
    """Refuse before the work what could not be written after it; None is no file.

    It is tried, because what the permissions say is not all: a file system may refuse too.

    Raises:
      MeshDSLError: one of them cannot be written.
    """
    for path in filter(None, paths):
        with system_errors_say(path):
            if path.is_file() or path.is_dir():
                path.open("ab").close()
            elif not path.exists():
                NamedTemporaryFile(dir=path.parent, prefix=path.name).close()


def write_file(path: Path, text: str) -> None:
    """Write a file and say so on stderr.

    Raises:
      MeshDSLError: it cannot be written.
    """
    with system_errors_say(path):
        path.write_text(text, encoding="utf-8")
    print(f"wrote {path}", file=sys.stderr)
