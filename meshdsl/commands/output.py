"""What commands print of the phases of a run, and files that they write beside it."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any

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


def print_phases(
    found: Mapping[str, Any],
    text: Callable[[Any], str],
    data: Callable[[Any], dict[str, Any]],
    as_json: bool,
) -> None:
    """Print what was found of each phase of a run, headed by the phase where there are several.

    Args:
      found: by what the phase is in words.
      text, data: what is printed of one; `data` where it is for machines.
    """
    if as_json:
        each = [data(one) for one in found.values()]
        phases = [{"phase": words, **one} for words, one in zip(found, each, strict=True)]
        print(json.dumps({"phases": phases} if len(each) > 1 else each[0]))
    elif len(found) == 1:
        print(*map(text, found.values()))
    else:
        print("\n\n".join(f"{words}\n\n{text(one)}" for words, one in found.items()))
