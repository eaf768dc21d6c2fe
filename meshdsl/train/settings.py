"""Settings by dotted key: parsed from `key=value` texts and from TOML, checked, and written back.

The settings themselves are declared elsewhere, as fields of dataclasses (`meshdsl.train.config`).
This file works for any such dataclass: a setting that is added there needs nothing here.

    override(Config(), ["model.d_model=256", "data.sources.web.paths=web/"])

A field may be text, a number, a boolean, a tuple of texts or numbers, another dataclass, a dict of
dataclasses by name, which gets an entry where an unknown name is set, such as `web` above, or a
dict that takes any settings. The type of a field says how its text is parsed, its metadata which
values it may have (`meshdsl.fields`).
"""

from __future__ import annotations

import dataclasses
import textwrap
import typing
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from meshdsl.errors import MeshDSLError, nearest
from meshdsl.extras import extra
from meshdsl.fields import (
    AUTO,
    BOUNDS,
    ClassChoice,
    crossed,
    descriptions,
    key_of,
    legal,
    summary,
    tried,
)
from meshdsl.parsing import parse_toml

_WIDTH = 100  # of comments
_TABLES = tuple[dict, ...]  # the type of a field that has a table `[[name]]` for each of its values
_WORDS: dict[Any, str] = {int: "a whole number", float: "a number", bool: "true or false"}
_WORDS |= {str: "text", tuple[float, ...]: "a list of numbers", _TABLES: "a list of tables"}


class _Text(str):
    """The value of a setting as a text, which is parsed by the type of the field."""


def override(config: Any, settings: Iterable[str] = (), **values: Any) -> Any:
    """`config` with other values.

    All are applied together, so only the result has to be consistent.

    Args:
      config: a dataclass, whose nested dataclasses are addressed by dots.
      settings: texts such as `optimizer.name=lion`; of two for one key the last one counts.
      values: Python values by dotted key; where a text sets the same key, the text counts.

    Raises:
      MeshDSLError: a setting has no `=`, a key is unknown (the text names the nearest known one),
        or a value is not of the field's type or not within its bounds.
    """
    for setting in settings:
        key, equals, text = setting.partition("=")
        if not equals:
            raise MeshDSLError(f"setting `{setting}`: expected key=value")
        values[key] = _Text(text)
    return _updated(config, values)


def _updated(
    config: Any,
    values: Mapping[str, Any],
    path: str = "",
    known: Iterable[str] = (),
    instead: Mapping[str, str] | None = None,
) -> Any:
    """`config` with other values, which are by dotted key or in nested dicts, and are checked.

    Args:
      path: what the keys begin with in messages, as `model.`.
      known: the keys that a key that is unknown may be meant for; by default those of `config`.
      instead: as for `read`.
    """
    fields = {key_of(field): field for field in dataclasses.fields(config)}
    kinds = {
        key.removesuffix("_"): kind for key, kind in typing.get_type_hints(type(config)).items()
    }
    known = known or [each for each, _ in leaves(config)]
    changes: dict[str, Any] = {}
    groups: dict[str, dict[str, Any]] = {}
    for key, value in values.items():
        name, dot, rest = key.partition(".")
        kind = kinds.get(name)
        now = getattr(config, fields[name].name) if name in fields else None
        takes_table = dict in typing.get_args(kind)  # as it is, in a field of `str | dict`
        if kind is dict or _entry_type(kind) or dataclasses.is_dataclass(now):
            below = {rest: value} if dot else value
            if not isinstance(below, dict):
                raise MeshDSLError(f"`{path}{name}` is {_group_words(path + name, kind, now)}")
            groups.setdefault(name, {}).update(below)
        elif name not in fields or dot or (isinstance(value, dict) and not takes_table):
            raise _unknown(path, key, value, kinds, known)
        else:
            changes[name] = _typed(path + name, value, kind)
            _check(path + name, changes[name], fields[name].metadata)
    for name, below in groups.items():
        kind, now, here = kinds[name], getattr(config, name), f"{path}{name}."
        if choice := fields[name].metadata.get("class"):
            now = _of_class(now, choice, here, below, instead or {})
            known = [*known, *(here + each for each, _ in leaves(now))]
        if kind is dict:
            changes[name] = now | {key: _as_in_toml(value) for key, value in below.items()}
        elif entry := _entry_type(kind):
            changes[name] = _with_entries(now, entry, below, here)
        else:
            changes[name] = _updated(now, below, here, known)
    changes = {fields[key].name: value for key, value in changes.items()}
    return dataclasses.replace(config, **changes) if changes else config


def _with_entries(
    table: Mapping[str, Any], entry: Any, values: Mapping[str, Any], path: str
) -> dict[str, Any]:
    """A dict of dataclasses, of the class `entry`, with other values and entries for new names."""
    groups: dict[str, dict[str, Any]] = {}
    for key, value in values.items():
        name, dot, rest = key.partition(".")
        below = {rest: value} if dot else value
        if not name or not isinstance(below, dict):
            words = _group_words(path[:-1], dict[str, entry], table)
            raise MeshDSLError(f"`{path}{key}` is {words}")
        groups.setdefault(name, {}).update(below)
    found = dict(table)
    for name, below in groups.items():
        now, here = found.get(name, entry()), f"{path}{name}."
        found[name] = _updated(now, below, here, [here + each for each, _ in leaves(now)])
    return found


def _of_class(
    value: Any, choice: ClassChoice, path: str, values: dict[str, Any], instead: Mapping[str, str]
) -> Any:
    """`value`, or one of the class that `values` picks, with the defaults of that class.

    The setting that picks is taken out of `values`.
    """
    if choice.key not in values:
        return value
    key = path + choice.key
    name = _typed(key, values.pop(choice.key), str)
    try:
        found = choice.find(name)
    except MeshDSLError:
        if key not in instead:
            raise
        found = choice.find(instead[key])
    return value if type(value) is found else found()


def _group_words(key: str, kind: Any, value: Any) -> str:
    """What a message says of the group of settings at `key`, for which a value was given."""
    if entry := _entry_type(kind):
        first = dataclasses.fields(entry)[0].name
        return f"a table of settings by name; set `{key}.NAME.{first}`, say"
    if kind is dict:
        return f"a table of settings by name; set `{key}.NAME`"
    each = ", ".join(f"`{key}.{each}`" for each, _ in leaves(value))
    return f"a group of settings; set one of {each}"


def _unknown(
    path: str, key: str, value: Any, names: Iterable[str], known: Iterable[str]
) -> MeshDSLError:
    """The error where there is no setting at `key` below `path`, or no table."""
    if isinstance(value, dict):
        return MeshDSLError(f"no table `{key}`{nearest(key, names)}")
    hint = nearest(path + key, known, "; `meshdsl train --print-config` shows all")
    return MeshDSLError(f"no setting `{path}{key}`{hint}")


def _entry_type(kind: Any) -> Any:
    """The class of the entries of a field of type `kind`, if that is a dict of dataclasses by name.

    `Source` for `dict[str, Source]`, and None for all other types.
    """
    arguments = typing.get_args(kind)
    return arguments[-1] if arguments and dataclasses.is_dataclass(arguments[-1]) else None


def _as_in_toml(value: Any) -> Any:
    """`value`; a text is what it stands for in a TOML file, or else itself."""
    if not isinstance(value, _Text):
        return value
    try:
        return parse_toml(f"value = {value}")["value"]
    except ValueError:
        return str(value)


def _parsed(text: str, kind: Any) -> Any:
    """The value that `text` spells for a field of type `kind`; a ValueError if it spells none."""
    if typing.get_origin(kind) is tuple:
        if text.startswith("["):  # a list as in a TOML file
            return parse_toml(f"list = {text}")["list"]
        return tuple(typing.get_args(kind)[0](part) for part in text.split(",") if part)
    if typing.get_args(kind) == (int, str):
        return int(text) if text.removeprefix("-").isdecimal() else str(text)
    kind = (typing.get_args(kind) or (kind,))[0]
    if kind is bool and text.lower() not in ("true", "false"):
        raise ValueError(text)
    return text.lower() == "true" if kind is bool else kind(text)


def _typed(key: str, value: Any, kind: Any) -> Any:
    """`value`, which a text, a TOML file or a flag gave, as a field of type `kind` has it.

    Raises:
      MeshDSLError: it is of another type.
    """
    kinds, is_tuple = typing.get_args(kind) or (kind,), typing.get_origin(kind) is tuple
    try:
        found = _parsed(value, kind) if isinstance(value, _Text) else value
    except ValueError:
        found = None
    of = kinds[0]  # of the elements of a tuple
    if is_tuple and isinstance(found, (list, tuple)):
        if all(type(x) is of or (of is float and type(x) is int) for x in found):
            return tuple(map(of, found))
    elif type(found) in kinds and not is_tuple:
        return found
    elif type(found) is int and float in kinds and not is_tuple:
        return float(found)
    expected = _WORDS.get(kind if is_tuple else of, "a list of texts")
    raise MeshDSLError(f"{key}={value}: expected {expected}")


def _check(key: str, value: Any, metadata: Mapping[str, Any]) -> None:
    """Raise a MeshDSLError unless `value` is one that the metadata of its field allows."""
    known = metadata.get("known")
    if known and value not in known:
        hint = nearest(value, known, far="")
        raise MeshDSLError(f"{key}={value}: expected {legal(metadata)}{hint}")
    if isinstance(value, str) and value != AUTO and tried(metadata) and not known:
        raise MeshDSLError(f"{key}={value}: expected a whole number or {AUTO}")
    if bound := crossed(value, metadata):
        raise MeshDSLError(f"{key}={value}: must be {BOUNDS[bound]} {metadata[bound]}")


# -- written back ---------------------------------------------------------------------------------


def _class_setting(field: dataclasses.Field, value: Any) -> list[tuple[str, str]]:
    """Key and value of the setting that picks the class of `value`; none where it has one class."""
    choice: ClassChoice | None = field.metadata.get("class")
    return [(choice.key, choice.name_of(value))] if choice else []


def leaves(config: Any) -> Iterator[tuple[str, Any]]:
    """Every setting of `config` with its dotted key; its tuples become lists."""
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        if dataclasses.is_dataclass(value):
            inside = (*_class_setting(field, value), *leaves(value))
            yield from ((f"{field.name}.{key}", leaf) for key, leaf in inside)
        elif isinstance(value, dict) and any(map(dataclasses.is_dataclass, value.values())):
            yield from (
                (f"{field.name}.{name}.{key}", leaf)
                for name, entry in value.items()
                for key, leaf in leaves(entry)
            )
        elif not (isinstance(value, dict) and not value):
            yield key_of(field), list(value) if isinstance(value, tuple) else value


def to_toml(config: Any) -> str:
    """`config` as the text of a TOML file that `read` reads."""
    lines = commented_toml(config).splitlines()
    text = "\n".join(line for line in lines if line and not line.startswith("#"))
    return text.replace("\n[", "\n\n[") + "\n"


def commented_toml(config: Any) -> str:
    """As `to_toml`, with comments that say what each setting is and may be.

    They come from the docstrings and fields of the configuration, see `meshdsl.fields`.
    """
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
        for key, name in _class_setting(of, config):
            said = of.metadata["class"].says
            yield from ("", *_comment(said), as_toml({key: name}).rstrip())
    for field in dataclasses.fields(config):
        value, said = getattr(config, field.name), says.get(field.name, "")
        if dataclasses.is_dataclass(value):
            tables.append(_group(value, (*path, field.name), field))
        elif isinstance(value, dict):
            entry = _entry_type(kinds[field.name])
            tables.append(_table(value, entry, said, (*path, field.name)))
        elif (
            kinds[field.name] == _TABLES and (text := as_toml({field.name: list(value)}))[0] == "["
        ):
            tables.append(("", *_comment(said), text.rstrip("\n")))  # each has a header of its own
        else:
            yield from ("", *_setting(field, said, value, kinds[field.name]))
    for table in tables:
        yield from table


def _setting(field: dataclasses.Field, said: str, value: Any, kind: Any) -> Iterator[str]:
    """The lines of one setting: what it is and may be, as a comment, and `key = value`."""
    values = "true or false" if kind is bool else legal(field.metadata)
    yield from _comment(f"{said} Legal: {values}.".lstrip() if values else said)
    plain = list(value) if isinstance(value, tuple) else value
    yield as_toml({key_of(field): plain}).rstrip("\n")


def _table(values: dict[str, Any], entry: Any, said: str, path: tuple[str, ...]) -> Iterator[str]:
    """The lines of a field that is a dict.

    Args:
      entry: the class of its entries; None where it is a table that is shown as it is.
      said: what the field is.
    """
    if entry is None:
        yield from ("", *_comment(said), as_toml(_nested(path, values)).rstrip("\n"))
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
    return as_toml(_nested(path, {})).splitlines()[-1]


def _nested(path: tuple[str, ...], values: dict[str, Any]) -> dict[str, Any]:
    """`values` in nested dicts, by the names in `path`."""
    for name in reversed(path):
        values = {name: values}
    return values


def as_toml(values: Mapping[str, Any]) -> str:
    """Nested dicts as the text of a TOML file.

    Raises:
      MeshDSLError: tomli_w is not installed.
    """
    with extra("train"):
        import tomli_w
    return tomli_w.dumps(values)


def read(path: Path, config: Any, instead: Mapping[str, str] | None = None) -> Any:
    """`config` with the values in a TOML file.

    Args:
      instead: names of classes by dotted key, which count where the class that the file names
        cannot be found, as when a file of code has been moved.

    Raises:
      MeshDSLError: the file cannot be read, or has something that is not a setting.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else f"not TOML: {error}"
        raise MeshDSLError(f"{path}: {why}") from None
    values = parsed(text, path)
    try:
        return _updated(config, values, instead=instead)
    except MeshDSLError as error:
        raise MeshDSLError(f"{path}: {error}") from None


def parsed(text: str, path: Path) -> dict[str, Any]:
    """The tables in the text of the TOML file at `path`.

    Raises:
      MeshDSLError: it is not TOML.
    """
    try:
        return parse_toml(text)
    except ValueError as error:
        raise MeshDSLError(f"{path}: not TOML: {error}") from None
