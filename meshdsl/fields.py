"""Fields of configurations: each setting is declared once, with what it is and what it may be.

A configuration is a dataclass. To add a setting to one, add a field, and an entry for it to the
section `Attributes:` of the docstring:

    @dataclass(frozen=True)
    class Checkpoint:
        \"""When checkpoints are written.

        Attributes:
          every: steps between two checkpoints; 0: none by steps.
        \"""

        every: int = bounded(200, least=0)

The values that a field may have are in its metadata, put there by `bounded`, `chosen` or `listed`.
Whatever shows a setting to a user, or checks one, reads the entry and the metadata through the
other functions of this file.
"""

from __future__ import annotations

import dataclasses
import inspect
import math
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

# What a setting of a family is while it is left to the commands, see `tried`.
AUTO = "auto"
# How each kind of bound is put into words.
BOUNDS = {"least": "at least", "above": "more than", "below": "less than"}
_HOLDS = {"least": operator.ge, "above": operator.gt, "below": operator.lt}
_ENTRY = re.compile(r"(\w+): (.*)")


def bounded(
    default: Any,
    *,
    least: float = -math.inf,
    above: float = -math.inf,
    below: float = math.inf,
    tries: Sequence[float] = (),
) -> Any:
    """A field whose value is at least `least`, more than `above` and less than `below`.

    Args:
      tries: with them the value may also be `AUTO`, see `tried`.
    """
    given = {"least": least, "above": above, "below": below}
    metadata: dict[str, Any] = {k: bound for k, bound in given.items() if math.isfinite(bound)}
    if tries:
        metadata["tries"] = tuple(tries)
    return dataclasses.field(default=default, metadata=metadata)


def chosen(default: str, known: Sequence[str]) -> Any:
    """A field whose value is one of `known`."""
    return dataclasses.field(default=default, metadata={"known": tuple(known)})


def listed(default: tuple[str, ...], known: Sequence[str]) -> Any:
    """A field whose value is a tuple of some of `known`."""
    return dataclasses.field(default=default, metadata={"each": tuple(known)})


class ClassChoice(NamedTuple):
    """How a setting picks the class of the dataclass that a field holds: its metadata `class`.

    Attributes:
      key: of the setting, inside of the field: with `family`, `model.family` picks the class.
      find: the class of a name; it raises a MeshDSLError where there is none.
      name_of: the name by which `find` finds the class of a value.
      says: what the setting is, in words.
    """

    key: str
    find: Callable[[str], type]
    name_of: Callable[[Any], str]
    says: str


def tried(metadata: Mapping[str, Any]) -> tuple[Any, ...]:
    """The values that commands try for a field that is `AUTO`; empty where it cannot be that.

    Such a field is a setting of a family of which no value changes a result: it says how much
    memory or time a step takes. The first value is what `AUTO` means where nobody chooses.
    """
    known = metadata.get("known", ())
    return metadata.get("tries") or tuple(x for x in known if AUTO in known and x != AUTO)


def crossed(value: Any, metadata: Mapping[str, Any]) -> str | None:
    """The first bound that `value` does not keep to, as a key of BOUNDS; None if there is none."""
    bounds = {word: metadata[word] for word in BOUNDS if word in metadata}
    if tried(metadata) and isinstance(value, str):
        return None if value == AUTO else next(iter(bounds), None)
    return next((word for word, bound in bounds.items() if not _HOLDS[word](value, bound)), None)


def key_of(field: dataclasses.Field) -> str:
    """The key of a setting: the name of its field, whose `_` at the end only avoids a keyword."""
    return field.name.removesuffix("_")


def legal(metadata: Mapping[str, Any]) -> str:
    """The values that a field may have, in words: `at least 0 and less than 1`.

    Empty where it may have any value of its type.
    """
    if known := metadata.get("known"):
        return f"{', '.join(known[:-1])} or {known[-1]}"
    if each := metadata.get("each"):
        return f"any of {', '.join(each)}"
    bounds = {word: metadata[word] for word in BOUNDS if word in metadata}
    words = " and ".join(f"{BOUNDS[word]} {_number(bound)}" for word, bound in bounds.items())
    return f"{words}, or {AUTO}" if tried(metadata) else words


def _number(bound: float) -> float:
    """`bound` as it is shown: 1, not 1.0."""
    return int(bound) if bound == int(bound) else bound


def summary(config: type) -> str:
    """What the docstring of a configuration says before `Attributes:`, in one line."""
    return " ".join(_sections(config)[0].split())


def descriptions(config: type) -> dict[str, str]:
    """The entry of each field in the docstring of a configuration, in one line.

    Fields that it inherits are described by the class that declares them.
    """
    found: dict[str, str] = {}
    for declaring in reversed([each for each in config.__mro__ if dataclasses.is_dataclass(each)]):
        name = ""
        for line in _sections(declaring)[1].splitlines():
            entry = _ENTRY.match(line)  # an entry's first line; what goes on below it is indented
            if entry:
                name, found[entry[1]] = entry[1], entry[2]
            elif name and line.strip():
                found[name] += f" {line.strip()}"
    return found


def _sections(config: type) -> tuple[str, str]:
    """The two parts of a configuration's docstring: before `Attributes:`, and its entries."""
    text = inspect.cleandoc(config.__doc__ or "")
    before, _, after = text.partition("\nAttributes:\n")
    block = re.match(r"(?:  .*\n?|\n)*", after)
    return before, inspect.cleandoc(block[0]) if block else ""
