"""JSON and TOML of files that anybody may have written: a value, or a ValueError; JSON to write.

The parsers of Python raise other errors where brackets nest deeply.
"""

from __future__ import annotations

import json
import os
import tomllib
from pathlib import Path
from typing import Any


def parse_json(text: str | bytes) -> Any:
    """The value that a text in JSON stands for.

    Raises:
      ValueError: it is not JSON, or nests too deeply.
    """
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("it nests too deeply") from None


def parse_toml(text: str) -> dict[str, Any]:
    """The tables of a text in TOML.

    Raises:
      ValueError: it is not TOML, or nests too deeply, or has a number of thousands of digits.
    """
    try:
        return tomllib.loads(text)
    except RecursionError:
        raise ValueError("it nests too deeply") from None


def write_json(path: Path, value: Any) -> None:
    """Write a file that whoever reads it sees as it was, or as it is then."""
    part = path.with_suffix(f".part{os.getpid()}")
    part.write_text(json.dumps(value), encoding="utf-8")
    part.replace(path)
