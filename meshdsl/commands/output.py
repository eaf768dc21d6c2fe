"""Files that commands write beside what they print."""

from __future__ import annotations

import sys
from pathlib import Path

from meshdsl.errors import MeshDSLError


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
