"""Settings by dotted key: parsed from `key=value` texts and from TOML, checked, and written back.

The settings themselves are declared elsewhere, as fields of dataclasses (`meshdsl.train.config`).
This file works for any such dataclass: a setting that is added there needs nothing here.

    override(Config(), ["model.d_model=256", "data.sources.web.paths=web/"])

A field may be text, a number, a boolean, a tuple of texts or numbers, another dataclass, or a dict
of dataclasses by name, which gets an entry where an unknown name is set, such as `web` above. The
type of a field says how its text is parsed, its metadata which values it may have
(`meshdsl.fields`).
"""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from meshdsl.errors import MeshDSLError, nearest
from meshdsl.extras import extra
from meshdsl.fields import BOUNDS, ClassChoice, crossed, legal
from meshdsl.parsing import parse_toml

_WORDS: dict[Any, str] = {int: "a whole number", float: "a number", bool: "true or false"}
_WORDS |= {str: "text", tuple[float, ...]: "a list of numbers"}
_BOOLEANS = {"true": True, "false": False}
_ANY = object()  # the type of a setting in a table that has any: that of its value


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
    texts: dict[str, str] = {}
    for setting in settings:
        key, equals, text = setting.partition("=")
        if not equals:
            raise MeshDSLError(f"setting `{setting}`: expected key=value")
        texts[key] = text
    # First the classes, because they decide which other settings there are.
    config, classes = _with_classes(config, {**values, **texts})
    values = {
        key: _typed(key, value, _field(config, key)[0])
        for key, value in values.items()
        if key not in classes
    }
    for key, text in texts.items():
        if key not in classes:
            values[key] = _parse(key, text, _field(config, key)[0])
    for key, value in values.items():
        _check(key, value, _field(config, key)[1])
    return _applied(config, values)


def _with_classes(config: Any, values: Mapping[str, Any]) -> tuple[Any, set[str]]:
    """`config` with values of other classes where `values` picks them, and the keys that do so.

    A value of another class has that class's defaults.
    """
    changes, keys = {}, set()
    for field in dataclasses.fields(config):
        choice: ClassChoice | None = field.metadata.get("class")
        if choice and (key := f"{field.name}.{choice.key}") in values:
            keys.add(key)
            found = choice.find(_typed(key, values[key], str))
            if type(getattr(config, field.name)) is not found:
                changes[field.name] = found()
    return dataclasses.replace(config, **changes) if changes else config, keys


def _is_found(config: Any, key: str, name: Any) -> bool:
    """Whether the setting `key`, which picks a class, finds one by `name`."""
    try:
        return bool(_with_classes(config, {key: name})[1])
    except MeshDSLError:
        return False


def _field(config: Any, key: str) -> tuple[Any, Mapping[str, Any]]:
    """Type and metadata of the field at a dotted `key`.

    Raises:
      MeshDSLError: there is none, or it is a group of fields.
    """
    inside, names = config, key.split(".")
    for depth, name in enumerate(names):
        fields = _fields(inside)
        if name not in fields:
            close = nearest(key, [each for each, _ in leaves(config)])
            hint = (
                close if "did you mean" in close else "; `meshdsl train --print-config` shows all"
            )
            raise MeshDSLError(f"no setting `{key}`{hint}")
        kind = typing.get_type_hints(type(inside))[name]
        value = getattr(inside, name)
        if kind is dict and depth < len(names) - 1:
            return _ANY, {}
        if entry := entry_type(kind):
            return _field_of_entry(key, value, entry, names[: depth + 1], names[depth + 1 :])
        if depth == len(names) - 1:
            if dataclasses.is_dataclass(value):
                group = [f"`{key}.{each}`" for each, _ in leaves(value)]
                raise MeshDSLError(f"`{key}` is a group of settings; set one of {', '.join(group)}")
            return kind, fields[name].metadata
        inside = value
    raise AssertionError(key)


def _field_of_entry(
    key: str, table: Mapping[str, Any], entry: Any, above: list[str], below: list[str]
) -> tuple[Any, Mapping[str, Any]]:
    """Type and metadata of the field at `key`, in an entry of a dict of dataclasses.

    Args:
      table: the dict.
      entry: the class of its entries.
      above: the parts of the key down to the dict.
      below: the parts after that, which should be the name of an entry and that of a field.

    Raises:
      MeshDSLError: there is no such field.
    """
    path = ".".join(above)
    if len(below) > 2 and below[0] and typing.get_type_hints(entry).get(below[1]) is dict:
        return _ANY, {}
    if len(below) != 2 or not below[0]:
        example = f"{path}.NAME.{dataclasses.fields(entry)[0].name}"
        raise MeshDSLError(f"`{key}` is a table of settings by name; set `{example}`, say")
    name, leaf = below
    known = _fields(table.get(name, entry()))
    if leaf not in known:
        close = nearest(key, [f"{path}.{name}.{each}" for each in known])
        raise MeshDSLError(f"no setting `{key}`{close}")
    return typing.get_type_hints(entry)[leaf], known[leaf].metadata


def _fields(value: Any) -> dict[str, dataclasses.Field]:
    """The fields of a dataclass by name; none of anything else."""
    fields = dataclasses.fields(value) if dataclasses.is_dataclass(value) else ()
    return {field.name: field for field in fields}


def entry_type(kind: Any) -> Any:
    """The class of the entries of a field of type `kind`, if that is a dict of dataclasses by name.

    `Source` for `dict[str, Source]`, and None for all other types.
    """
    arguments = typing.get_args(kind)
    return arguments[-1] if arguments and dataclasses.is_dataclass(arguments[-1]) else None


def _applied(config: Any, values: Mapping[str, Any]) -> Any:
    """`config` with `values`, which are by dotted key, and checked."""
    changes = {key: value for key, value in values.items() if "." not in key}
    for group, inside in _by_first_part(values).items():
        value = getattr(config, group)
        if isinstance(value, dict):
            changes[group] = _with_entries(config, group, inside)
        else:
            changes[group] = _applied(value, inside)
    return dataclasses.replace(config, **changes)


def _with_entries(config: Any, field: str, values: Mapping[str, Any]) -> dict[str, Any]:
    """The dict `field` of `config` with other values, and with an entry for each unknown name."""
    entry = entry_type(typing.get_type_hints(type(config))[field])
    table = dict(getattr(config, field))
    if entry is None:
        return {**table, **values}
    for name, inside in _by_first_part(values).items():
        table[name] = _applied(table.get(name, entry()), inside)
    return table


def _by_first_part(values: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Values by dotted key, grouped by the first part of the key; those without a dot left out."""
    groups: dict[str, dict[str, Any]] = {}
    for key, value in values.items():
        first, dot, rest = key.partition(".")
        if dot:
            groups.setdefault(first, {})[rest] = value
    return groups


def _as_in_toml(text: str) -> Any:
    """The value that `text` stands for in a TOML file, or the text itself."""
    try:
        return parse_toml(f"value = {text}")["value"]
    except ValueError:
        return text


def _parse(key: str, text: str, kind: Any) -> Any:
    """The value that `text` spells for a field of type `kind`."""
    if kind is _ANY:
        return _as_in_toml(text)
    many = typing.get_origin(kind) is tuple
    if many and not text.startswith("["):
        parts = [part for part in text.split(",") if part]
        try:
            return tuple(map(typing.get_args(kind)[0], parts))
        except ValueError:
            raise _mistyped(key, text, kind) from None
    kind = kind if many else _plain_type(kind)
    try:
        if many:  # a list as in a TOML file
            return _typed(key, parse_toml(f"list = {text}")["list"], kind)
        return _BOOLEANS[text.lower()] if kind is bool else kind(text)
    except (KeyError, ValueError):
        raise _mistyped(key, text, kind) from None


def _typed(key: str, value: Any, kind: Any) -> Any:
    """`value`, which a TOML file or a flag gave, as a field of type `kind` has it.

    Raises:
      MeshDSLError: it is of another type.
    """
    if kind is _ANY:
        return value
    if typing.get_origin(kind) is tuple:
        of = typing.get_args(kind)[0]
        legal_types = (float, int) if of is float else (of,)
        if not (isinstance(value, (list, tuple)) and all(type(x) in legal_types for x in value)):
            raise _mistyped(key, value, kind)
        return tuple(map(of, value))
    several = typing.get_args(kind)  # the types of a field that may have several
    if type(value) in several:
        return value
    kind = float if float in several and type(value) is int else _plain_type(kind)
    if kind is float and type(value) is int:
        return float(value)
    if type(value) is not kind:
        raise _mistyped(key, value, kind)
    return value


def _plain_type(kind: Any) -> Any:
    """`kind`; where a field may have several types, as `str | dict`, the first of them."""
    return typing.get_args(kind)[0] if isinstance(kind, types.UnionType) else kind


def _mistyped(key: str, value: Any, kind: Any) -> MeshDSLError:
    return MeshDSLError(f"{key}={value}: expected {_WORDS.get(kind, 'a list of texts')}")


def _check(key: str, value: Any, metadata: Mapping[str, Any]) -> None:
    """Raise a MeshDSLError unless `value` is one that the metadata of its field allows."""
    known = metadata.get("known")
    if known and value not in known:
        close = nearest(value, known)
        hint = close if "did you mean" in close else ""
        raise MeshDSLError(f"{key}={value}: expected {legal(metadata)}{hint}")
    if bound := crossed(value, metadata):
        raise MeshDSLError(f"{key}={value}: must be {BOUNDS[bound]} {metadata[bound]}")


# -- as a table ------------------------------------------------------------------------------------


def to_dict(config: Any) -> dict[str, Any]:
    """`config` as nested dicts of what TOML can hold; its tuples become lists."""
    found = {}
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        found[field.name] = _plain(value)
        if name := dict(class_setting(field, value)):
            found[field.name] = name | found[field.name]
    return found


def class_setting(field: dataclasses.Field, value: Any) -> list[tuple[str, str]]:
    """Key and value of the setting that picks the class of `value`; none where it has one class."""
    choice: ClassChoice | None = field.metadata.get("class")
    return [(choice.key, choice.name_of(value))] if choice else []


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value):
        return to_dict(value)
    if isinstance(value, dict):
        return {key: _plain(each) for key, each in value.items()}
    return list(value) if isinstance(value, tuple) else value


def leaves(config: Any) -> Iterator[tuple[str, Any]]:
    """Every setting of `config` with its dotted key; its tuples become lists."""
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        if dataclasses.is_dataclass(value):
            inside = (*class_setting(field, value), *leaves(value))
            yield from ((f"{field.name}.{key}", leaf) for key, leaf in inside)
        elif isinstance(value, dict) and any(map(dataclasses.is_dataclass, value.values())):
            yield from (
                (f"{field.name}.{name}.{key}", leaf)
                for name, entry in value.items()
                for key, leaf in leaves(entry)
            )
        elif not (isinstance(value, dict) and not value):
            yield field.name, list(value) if isinstance(value, tuple) else value


def to_toml(config: Any) -> str:
    """`config` as the text of a TOML file that `read` reads."""
    return toml_text(to_dict(config))


def toml_text(values: Mapping[str, Any]) -> str:
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
        values = parse_toml(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise MeshDSLError(f"{path}: {error.strerror}") from None
    except ValueError as error:
        raise MeshDSLError(f"{path}: not TOML: {error}") from None
    try:
        found = dict(_settings_in(values, config))
        for key, name in (instead or {}).items():
            if key in found and not _is_found(config, key, found[key]):
                found[key] = name
        return override(_with_tables(values, config), **found)
    except MeshDSLError as error:
        raise MeshDSLError(f"{path}: {error}") from None


def _with_tables(values: dict[str, Any], config: Any) -> Any:
    """`config` with an entry for each table by name in `values`, also for a table that is empty.

    Raises:
      MeshDSLError: an empty table is not a group of settings. In one that is not empty, its keys
        are found to be unknown later.
    """
    hints = typing.get_type_hints(type(config))
    changes: dict[str, Any] = {}
    for key, value in values.items():
        if not isinstance(value, dict):
            continue
        kind = hints.get(key)
        if dataclasses.is_dataclass(inside := getattr(config, key, None)):
            changes[key] = _with_tables(value, inside)
        elif entry := entry_type(kind):
            table = getattr(config, key)
            names = [name for name, each in value.items() if isinstance(each, dict)]
            changes[key] = table | {name: table.get(name, entry()) for name in names}
        elif not value and kind is not dict and dict not in typing.get_args(kind):
            raise MeshDSLError(f"no table `{key}`{nearest(key, hints)}")
    return dataclasses.replace(config, **changes) if changes else config


def _settings_in(
    values: dict[str, Any], config: Any, prefix: str = ""
) -> Iterator[tuple[str, Any]]:
    """Dotted key and value of each setting in nested dicts.

    Where a field may be a table itself, as `layout` may, the table is its value.
    """
    hints = typing.get_type_hints(type(config)) if dataclasses.is_dataclass(config) else {}
    for key, value in values.items():
        if isinstance(value, dict) and dict not in typing.get_args(hints.get(key)):
            yield from _settings_in(value, getattr(config, key, None), f"{prefix}{key}.")
        else:
            yield prefix + key, value
