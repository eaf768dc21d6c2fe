"""A configuration as TOML with comments, which say what each setting is and may be.

The comments come from the docstrings and fields of the configuration, see `meshdsl.fields`.
"""

from __future__ import annotations

import dataclasses
import textwrap
import typing
from collections.abc import Iterator
from typing import Any

from meshdsl.fields import descriptions, legal, summary
from meshdsl.train.settings import class_setting, entry_type, toml_text

_WIDTH = 100


def commented_toml(config: Any) -> str:
    """`config` as the text of a TOML file that `settings.read` reads back as the same."""
    return "\n".join(_group(config, ())).lstrip("\n") + "\n"


def _group(
    config: Any, path: tuple[str, ...], of: dataclasses.Field | None = None
) -> Iterator[str]:
    """The lines of a dataclass: its own settings first, then its tables.

    Args:
      of: the field that holds it, where that may say which class it has.
    """
    says, kinds = descriptions(type(config)), typing.get_type_hints(type(config))
    if path:
        yield from ("", *_comment(summary(type(config))), _header(path))
    else:
        yield from _comment(summary(type(config)))
    tables = []
    if of is not None:
        for key, name in class_setting(of, config):
            said = of.metadata["class"].says
            yield from ("", *_comment(said), toml_text({key: name}).rstrip())
    for field in dataclasses.fields(config):
        value, said = getattr(config, field.name), says.get(field.name, "")
        if dataclasses.is_dataclass(value):
            tables.append(_group(value, (*path, field.name), field))
        elif isinstance(value, dict):
            entry = entry_type(kinds[field.name])
            tables.append(_table(value, entry, said, (*path, field.name)))
        else:
            yield from ("", *_setting(field, said, value, kinds[field.name]))
    for table in tables:
        yield from table


def _setting(field: dataclasses.Field, said: str, value: Any, kind: Any) -> Iterator[str]:
    """The lines of one setting: what it is and may be, as a comment, and `key = value`."""
    values = "true or false" if kind is bool else legal(field.metadata)
    yield from _comment(f"{said} Legal: {values}.".lstrip() if values else said)
    plain = list(value) if isinstance(value, tuple) else value
    yield toml_text({field.name: plain}).rstrip("\n")


def _table(values: dict[str, Any], entry: Any, said: str, path: tuple[str, ...]) -> Iterator[str]:
    """The lines of a field that is a dict.

    Args:
      entry: the class of its entries; None where it is a table that is shown as it is.
      said: what the field is.
    """
    if entry is None:
        yield from ("", *_comment(said), toml_text(_nested(path, values)).rstrip("\n"))
        return
    yield from ("", *_comment(said), _header(path))
    for name, value in values.items():
        yield from _group(value, (*path, name))
    if not values:  # what an entry could have, as comments
        for line in _group(entry(), (*path, "NAME")):
            yield f"# {line}" if line else line


def _comment(text: str) -> list[str]:
    text = text[:1].upper() + text[1:]
    return textwrap.wrap(text, _WIDTH, initial_indent="# ", subsequent_indent="# ")


def _header(path: tuple[str, ...]) -> str:
    """The header of a table: `[data.sources.web]`."""
    return toml_text(_nested(path, {})).splitlines()[-1]


def _nested(path: tuple[str, ...], values: dict[str, Any]) -> dict[str, Any]:
    """`values` in nested dicts, by the names in `path`."""
    for name in reversed(path):
        values = {name: values}
    return values
