"""Fields of configurations that say what they are and which values they may have.

A configuration is a dataclass whose docstring has a section `Attributes:` with an entry for each
field, `name: what it is.`; bounds and known values are in the field's metadata. Whoever shows a
setting to a user reads it from there, so that each is written down once.
"""

from __future__ import annotations

import dataclasses
import inspect
import math
import operator
import re
from collections.abc import Mapping, Sequence
from typing import Any

BOUNDS = {"least": "at least", "above": "more than", "below": "less than"}
_HOLDS = {"least": operator.ge, "above": operator.gt, "below": operator.lt}
_ENTRY = re.compile(r"(\w+): (.*)")


def bounded(
    default: Any, *, least: float = -math.inf, above: float = -math.inf, below: float = math.inf
) -> Any:
    """A field whose value is at least `least`, more than `above` and less than `below`."""
    given = {"least": least, "above": above, "below": below}
    metadata = {word: bound for word, bound in given.items() if math.isfinite(bound)}
    return dataclasses.field(default=default, metadata=metadata)


def chosen(default: str, known: Sequence[str]) -> Any:
    """A field whose value is one of `known`."""
    return dataclasses.field(default=default, metadata={"known": tuple(known)})


def listed(default: tuple[str, ...], known: Sequence[str]) -> Any:
    """A field whose value is a tuple of some of `known`."""
    return dataclasses.field(default=default, metadata={"each": tuple(known)})


def crossed(value: float, metadata: Mapping[str, Any]) -> str | None:
    """The first bound that `value` does not keep, as a key of BOUNDS; None where it keeps all."""
    bounds = {word: metadata[word] for word in BOUNDS if word in metadata}
    return next((word for word, bound in bounds.items() if not _HOLDS[word](value, bound)), None)


def legal(metadata: Mapping[str, Any]) -> str:
    """The values that a field may have: `at least 0 and less than 1`; "" for any of its type."""
    if known := metadata.get("known"):
        return f"{', '.join(known[:-1])} or {known[-1]}"
    if each := metadata.get("each"):
        return f"any of {', '.join(each)}"
    bounds = {word: metadata[word] for word in BOUNDS if word in metadata}
    number = lambda bound: int(bound) if bound == int(bound) else bound  # noqa: E731
    return " and ".join(f"{BOUNDS[word]} {number(bound)}" for word, bound in bounds.items())


def summary(config: type) -> str:
    """What the docstring of a configuration says before its attributes, in one line."""
    return " ".join(_sections(config)[0].split())


def descriptions(config: type) -> dict[str, str]:
    """What the docstring of a configuration says of each of its fields, each in one line."""
    found: dict[str, str] = {}
    name = ""
    for line in _sections(config)[1].splitlines():
        entry = _ENTRY.match(line)  # an entry's first line; what goes on below it is indented
        if entry:
            name, found[entry[1]] = entry[1], entry[2]
        elif name and line.strip():
            found[name] += f" {line.strip()}"
    return found


def _sections(config: type) -> tuple[str, str]:
    """The docstring of a configuration: what stands before the attributes, and these."""
    text = inspect.cleandoc(config.__doc__ or "")
    before, _, after = text.partition("\nAttributes:\n")
    block = re.match(r"(?:  .*\n?|\n)*", after)
    return before, inspect.cleandoc(block[0]) if block else ""
