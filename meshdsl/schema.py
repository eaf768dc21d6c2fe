"""Settings in JSON that others wrote: each has a type, a range and a default.

    SETTINGS = {"vocab_size": whole(32_000), "rope_theta": number(10_000.0, above=1)}
    read(SETTINGS, {"vocab_size": 96}, "config.json")    # {"vocab_size": 96, "rope_theta": 10000.0}

A value of another type, or out of range, is one error that names the file and the setting.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from meshdsl.errors import MeshDSLError, nearest
from meshdsl.parsing import parse_json

ABSENT: Any = object()  # the default of a setting that is not in what `read` gives, unless said
REQUIRED: Any = object()  # the default of a setting that each file must have
_MOST = 2**31 - 1  # of whole numbers, so that sizes fit into the integers of any library
_SHOWN = 60  # characters of a value in an error


@dataclass(frozen=True)
class Setting:
    """What a setting may be.

    Attributes:
      what: the values that are legal, in words.
      fits: whether a value is legal.
      default: the value where a file says nothing. Where it is None, a file may say null as well.
      known: the words that are legal, for a setting that is one of them.
      null: a file may say null, whatever the default is.
      floating: the value is given as a float, also where a file has a whole number.
    """

    what: str
    fits: Callable[[Any], bool]
    default: Any = ABSENT
    known: tuple[str, ...] = ()
    null: bool = False
    floating: bool = False

    def checked(self, value: Any, name: str, where: object) -> Any:
        """The value that a file says.

        Raises:
          MeshDSLError: it is not legal.
        """
        if value is None and (self.null or self.default is None):
            return None
        if not self.fits(value):
            if self.known and isinstance(value, str):
                close = nearest(value, self.known)
                raise MeshDSLError(f"{where}: {name}={as_word(value)} is not known{close}")
            raise MeshDSLError(f"{where}: {name}={shown(value)}: expected {self.what}")
        return float(value) if self.floating and value is not None else value


def whole(
    default: Any = ABSENT, least: int = 1, *, most: int = _MOST, null: bool = False
) -> Setting:
    """A whole number of at least `least`, and of at most `most`."""
    fits = lambda value: type(value) is int and least <= value <= most
    what = f"a whole number of at least {least}"
    what += f" and at most {most}" if most != _MOST else ""
    return Setting(what, fits, default, null=null)


def number(
    default: Any = ABSENT,
    *,
    least: float | None = None,
    above: float | None = None,
    null: bool = False,
) -> Setting:
    """A finite number of at least `least`, or of more than `above`."""
    what = "a number"
    what += f" of at least {least:g}" if least is not None else ""
    what += f" of more than {above:g}" if above is not None else ""

    def fits(value: Any) -> bool:
        if type(value) not in (int, float) or not -1e300 < value < 1e300:
            return False
        return (least is None or value >= least) and (above is None or value > above)

    return Setting(what, fits, default, null=null, floating=True)


def switch(default: Any = ABSENT, *, null: bool = False) -> Setting:
    """True or false."""
    return Setting("true or false", lambda value: type(value) is bool, default, null=null)


def word(default: Any = ABSENT, known: tuple[str, ...] = ()) -> Setting:
    """A text: one of `known`, where some are."""
    what = f"one of {', '.join(known)}" if known else "a text"
    fits = lambda value: isinstance(value, str) and (not known or value in known)
    return Setting(what, fits, default, known)


def tokens(default: Any = ABSENT) -> Setting:
    """The number of a token, or a list of them; -1 stands for none."""
    return one_or_each(whole(least=-1), default)


def each(of: Setting, default: Any = ABSENT, *, count: int | None = None) -> Setting:
    """A list in which every element is legal for `of`."""
    many = "" if count is None else f"{count} elements, each "

    def fits(value: Any) -> bool:
        alike = isinstance(value, list) and all(map(of.fits, value))
        return alike and count in (None, len(value))

    return Setting(f"a list of {many}{of.what}", fits, default)


def one_or_each(of: Setting, default: Any = ABSENT, *, count: int | None = None) -> Setting:
    """What is legal for `of`, or a list of that."""
    several = each(of, count=count)
    fits = lambda value: of.fits(value) or several.fits(value)
    return Setting(f"{of.what}, or {several.what}", fits, default)


def table(default: Any = ABSENT, *, of: Setting | None = None) -> Setting:
    """An object; each of its values is legal for `of`, where that is given."""
    alike = lambda value: of is None or all(map(of.fits, value.values()))
    what = "an object" if of is None else f"an object whose values are each {of.what}"
    return Setting(what, lambda value: isinstance(value, dict) and alike(value), default)


def only(*values: Any) -> Setting:
    """The only value that is known here, or one of several; where a file says nothing, the first.

    The value stands for what the code here computes.
    """
    what = " or ".join(map(shown, values))
    same = lambda value, other: type(value) is type(other) and value == other
    fits = lambda value: any(same(value, other) for other in values)
    return Setting(f"{what}, which alone is known here", fits, values[0])


def with_defaults(settings: Mapping[str, Setting], **defaults: Any) -> dict[str, Setting]:
    """The same settings, some with other defaults."""
    others = {name: replace(settings[name], default=value) for name, value in defaults.items()}
    return {**settings, **others}


def read(settings: Mapping[str, Setting], said: Mapping[str, Any], where: object) -> dict[str, Any]:
    """The values of all settings: what a file says, or else the default.

    Args:
      said: the object in the file; other entries that it has are passed over.
      where: the file, for errors.

    Raises:
      MeshDSLError: a value is not legal, or is missing and has no default.
    """
    found = {}
    for name, setting in settings.items():
        if name in said:
            found[name] = setting.checked(said[name], name, where)
        elif setting.default is REQUIRED:
            raise MeshDSLError(f"{where}: says no `{name}`; expected {setting.what}")
        elif setting.default is not ABSENT:
            found[name] = setting.default
    return found


def as_word(value: Any) -> str:
    """A value for an error: a text of one line as it stands, anything else as `shown` has it."""
    if isinstance(value, str) and value.isprintable() and len(value) <= _SHOWN:
        return value
    return shown(value)


def shown(value: Any) -> str:
    """A value of JSON for an error, in JSON, and not all of a long one."""
    try:
        text = json.dumps(value)
    except RecursionError:
        return "..."
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."


def read_object(path: Path) -> dict[str, Any]:
    """The object in a JSON file.

    Raises:
      MeshDSLError: the file cannot be read, or has no object.
    """
    try:
        found = parse_json(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise MeshDSLError(f"{path}: {error.strerror or error}") from None
    except ValueError as error:
        raise MeshDSLError(f"{path}: is no JSON: {error}") from None
    if not isinstance(found, dict):
        raise MeshDSLError(f"{path}: is no JSON object")
    return found
