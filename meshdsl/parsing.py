"""JSON and TOML of files that anybody may have written: a value, or a ValueError.

The parsers of Python raise other errors where brackets nest deeply.
"""

from __future__ import annotations

import json
import tomllib
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
