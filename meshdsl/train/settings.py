"""Settings of a dataclass by dotted key: parsed from `key=value` texts and from TOML, checked, and written back.

A field may be text, a number, a boolean, a tuple of texts, another dataclass, or a dict of dataclasses by name, which grows where a
new name is set (`data.sources.web.paths=web/`). What else a field says about its values is in its
metadata, see `meshdsl.fields`.
"""

from __future__ import annotations

import dataclasses
import tomllib
import types
import typing
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import tomli_w

from meshdsl.errors import MeshDSLError, nearest
from meshdsl.fields import BOUNDS, crossed, legal

_WORDS = {int: "a whole number", float: "a number", bool: "true or false", str: "text"}
_BOOLEANS = {"true": True, "false": False}


def override(config: Any, settings: Iterable[str] = (), **values: Any) -> Any:
    """`config` with other values; all are applied together, so only the result has to be consistent.

    Args:
      config: a dataclass, whose nested dataclasses are addressed by dots.
      settings: texts such as `optimizer.name=lion`; of two for one key the last holds.
      values: Python values by dotted key. Settings go before them.

    Raises:
      MeshDSLError: for a setting without `=`, an unknown key (with the nearest known one), or a value that is not of
        the field's type or bounds.
    """
    values = {key: _typed(key, value, _field(config, key)[0]) for key, value in values.items()}
    for setting in settings:
        key, equals, text = setting.partition("=")
        if not equals:
            raise MeshDSLError(f"setting `{setting}`: expected key=value")
        values[key] = _parse(key, text, _field(config, key)[0])
    for key, value in values.items():
        _check(key, value, _field(config, key)[1])
    return _applied(config, values)


def _field(config: Any, key: str) -> tuple[Any, Any]:
    """Type and metadata of the field at a dotted `key`.

    Raises:
      MeshDSLError: there is none, or it is a group of fields.
    """
    inside, names = config, key.split(".")
    for depth, name in enumerate(names):
        fields = (
            {f.name: f for f in dataclasses.fields(inside)}
            if dataclasses.is_dataclass(inside)
            else {}
        )
        before = ".".join(names[:depth])
        if name not in fields:
            close = nearest(key, _keys(config))
            raise MeshDSLError(
                f"no setting `{key}`{close if 'did you mean' in close else '; `meshdsl train --print-config` shows all'}"
            )
        kind = typing.get_type_hints(type(inside))[name]
        value, last = getattr(inside, name), depth == len(names) - 1
        if isinstance(value, dict) and dataclasses.is_dataclass(entry := typing.get_args(kind)[-1]):
            path = f"{before}.{name}".lstrip(".")
            if len(names) - depth != 3 or not names[depth + 1]:
                raise MeshDSLError(
                    f"`{key}` is a table of settings by name; set `{path}.NAME.{dataclasses.fields(entry)[0].name}`, say"
                )
            item, leaf = value.get(names[depth + 1], entry()), names[depth + 2]
            known = {f.name: f for f in dataclasses.fields(item)}
            if leaf not in known:
                raise MeshDSLError(
                    f"no setting `{key}`{nearest(key, [f'{path}.{names[depth + 1]}.{each}' for each in known])}"
                )
            return typing.get_type_hints(entry)[leaf], known[leaf].metadata
        if last:
            if dataclasses.is_dataclass(value):
                group = [f"`{key}.{each}`" for each, _ in leaves(value)]
                raise MeshDSLError(f"`{key}` is a group of settings; set one of {', '.join(group)}")
            return kind, fields[name].metadata
        inside = value
    raise AssertionError(key)


def _keys(config: Any) -> list[str]:
    return [key for key, _ in leaves(config)]


def _applied(config: Any, values: dict[str, Any]) -> Any:
    changes: dict[str, Any] = {}
    for group in {key.partition(".")[0] for key in values if "." in key}:
        inside = {
            key.partition(".")[2]: value
            for key, value in values.items()
            if key.startswith(group + ".")
        }
        changes[group] = (
            _grown(config, group, inside)
            if isinstance(getattr(config, group), dict)
            else _applied(getattr(config, group), inside)
        )
    return dataclasses.replace(
        config, **changes, **{key: value for key, value in values.items() if "." not in key}
    )


def _grown(config: Any, field: str, values: dict[str, Any]) -> dict[str, Any]:
    """The dict `field` of `config` with other values, and with an entry for each new name."""
    entry = typing.get_args(typing.get_type_hints(type(config))[field])[-1]
    table = dict(getattr(config, field))
    for name in dict.fromkeys(key.partition(".")[0] for key in values):
        inside = {
            key.partition(".")[2]: value
            for key, value in values.items()
            if key.startswith(name + ".")
        }
        table[name] = _applied(table.get(name, entry()), inside)
    return table


def _parse(key: str, text: str, kind: Any) -> Any:
    """The value that `text` spells for a field of type `kind`."""
    many = typing.get_origin(kind) is tuple
    if many and not text.startswith("["):
        return tuple(part for part in text.split(",") if part)
    kind = kind if many else _first(kind)
    try:
        if many:  # as a TOML file has it
            return _typed(key, tomllib.loads(f"list = {text}")["list"], kind)
        return _BOOLEANS[text.lower()] if kind is bool else kind(text)
    except (KeyError, ValueError):
        raise _mistyped(key, text, kind) from None


def _typed(key: str, value: Any, kind: Any) -> Any:
    """`value`, as a TOML file or a flag gave it, as a field of type `kind` holds it."""
    if typing.get_origin(kind) is tuple:
        if not (isinstance(value, (list, tuple)) and all(isinstance(part, str) for part in value)):
            raise _mistyped(key, value, kind)
        return tuple(value)
    several = typing.get_args(kind)  # types that the field may have
    if type(value) in several:
        return value
    kind = float if float in several and type(value) is int else _first(kind)
    if kind is float and type(value) is int:
        return float(value)
    if type(value) is not kind:
        raise _mistyped(key, value, kind)
    return value


def _first(kind: Any) -> Any:
    """The type of a field that may be a table too: what it is otherwise."""
    return typing.get_args(kind)[0] if isinstance(kind, types.UnionType) else kind


def _mistyped(key: str, value: Any, kind: Any) -> MeshDSLError:
    return MeshDSLError(f"{key}={value}: expected {_WORDS.get(kind, 'a list of texts')}")


def _check(key: str, value: Any, says: Any) -> None:
    """Raise a MeshDSLError unless `value` is one that the metadata `says` allow."""
    if known := says.get("known"):
        if value not in known:
            close = nearest(value, known)
            hint = close if "did you mean" in close else ""
            raise MeshDSLError(f"{key}={value}: expected {legal(says)}{hint}")
    if bound := crossed(value, says):
        raise MeshDSLError(f"{key}={value}: must be {BOUNDS[bound]} {says[bound]}")


# -- as a table --------------------------------------------------------------------------------------------------


def to_dict(config: Any) -> dict[str, Any]:
    """`config` as nested dicts of what TOML holds: tuples as lists."""
    return {field.name: _plain(getattr(config, field.name)) for field in dataclasses.fields(config)}


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value):
        return to_dict(value)
    if isinstance(value, dict):
        return {key: _plain(each) for key, each in value.items()}
    return list(value) if isinstance(value, tuple) else value


def leaves(config: Any) -> Iterator[tuple[str, Any]]:
    """Every setting of `config`: (dotted key, value)."""
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        if dataclasses.is_dataclass(value):
            yield from ((f"{field.name}.{key}", leaf) for key, leaf in leaves(value))
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
    return tomli_w.dumps(to_dict(config))


def read(path: Path, config: Any) -> Any:
    """`config` with the values in a TOML file.

    Raises:
      MeshDSLError: the file cannot be read, or holds what is no setting.
    """
    try:
        values = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise MeshDSLError(f"{path}: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise MeshDSLError(f"{path}: not TOML: {error}") from None
    try:
        return override(_with_named(values, config), **dict(_walk(values, config)))
    except MeshDSLError as error:
        raise MeshDSLError(f"{path}: {error}") from None


def _with_named(values: dict[str, Any], config: Any) -> Any:
    """`config` with an entry for each table by name in `values`, also for one that says nothing.

    Raises:
      MeshDSLError: an empty table that is no group of settings; others are found by their keys.
    """
    hints, changes = typing.get_type_hints(type(config)), {}
    for key, value in values.items():
        if not isinstance(value, dict):
            continue
        kind, inside = typing.get_args(hints.get(key)), getattr(config, key, None)
        if dataclasses.is_dataclass(inside):
            changes[key] = _with_named(value, inside)
        elif kind and dataclasses.is_dataclass(entry := kind[-1]):
            changes[key] = inside | {
                name: inside.get(name, entry())
                for name, each in value.items()
                if isinstance(each, dict)
            }
        elif not value and dict not in kind:
            raise MeshDSLError(f"no table `{key}`{nearest(key, hints)}")
    return dataclasses.replace(config, **changes) if changes else config


def _walk(values: dict[str, Any], config: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """(dotted key, value) of each leaf. A table that a field holds as it is is a leaf."""
    hints = typing.get_type_hints(type(config)) if dataclasses.is_dataclass(config) else {}
    for key, value in values.items():
        if isinstance(value, dict) and dict not in typing.get_args(hints.get(key)):
            yield from _walk(value, getattr(config, key, None), f"{prefix}{key}.")
        else:
            yield prefix + key, value
