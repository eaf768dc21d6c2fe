"""Times and rates as users write them: `4h`, `20min`, `20GB/s`."""

from __future__ import annotations

import re
from collections.abc import Iterable

from meshdsl.errors import MeshDSLError, nearest

_SECONDS = {"ms": 1e-3, "s": 1.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
_BYTES = {
    "MB/s": 1e6,
    "GB/s": 1e9,
    "TB/s": 1e12,
    "MiB/s": 2.0**20,
    "GiB/s": 2.0**30,
    "TiB/s": 2.0**40,
}
_NUMBER = re.compile(r"(\d+(?:\.\d+)?)([A-Za-z/]*)")


def parse_seconds(what: str, text: str) -> float:
    """The seconds in `4h`, `3d`, `90s`, `20min` or `250ms`.

    Args:
      what: begins the error: a flag, and the key in it.

    Raises:
      MeshDSLError: it is no time of more than nothing, or has no unit.
    """
    return _parsed(what, text, _SECONDS, "a time with its unit, as 90s, 20min, 4h or 3d")


def parse_rate(what: str, text: str) -> float:
    """The bytes per second in `20GB/s`; the errors are those of `parse_seconds`."""
    return _parsed(what, text, _BYTES, "a rate with its unit, as 500MB/s, 20GB/s or 2TB/s")


def _parsed(what: str, text: str, units: dict[str, float], expected: str) -> float:
    found = _NUMBER.fullmatch(text.strip())
    if not found or found[2] not in units or not float(found[1]):
        raise MeshDSLError(f"{what}{text}: expected {expected}")
    return float(found[1]) * units[found[2]]


def parse_pairs(flag: str, text: str, known: Iterable[str]) -> dict[str, float]:
    """The times in `mtbf=4h,slice_mtbf=3d`, by their keys.

    Raises:
      MeshDSLError: a key is not `known` or given twice, or its value is no time.
    """
    found: dict[str, float] = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        key, equals, value = part.partition("=")
        if key not in known:
            raise MeshDSLError(f"{flag} {part}: there is no `{key}`{nearest(key, known)}")
        if not equals:
            raise MeshDSLError(f"{flag} {part}: expected a time after it, as {key}=4h")
        if key in found:
            raise MeshDSLError(f"{flag} {text}: `{key}` is given twice")
        found[key] = parse_seconds(f"{flag} {key}=", value)
    return found
