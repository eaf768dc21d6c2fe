"""The settings of a training run: typed, printed, written to the run's folder and read back.

Everything beyond the few flags of the command line is a `key=value` setting, where the key is the path of a field
below (`model.d_model=256 optimizer.name=lion checkpoint.every=50`). The dataclasses are the only list of settings: the
parser, the file and the error messages all read it from there.
"""

from __future__ import annotations

import dataclasses
import tomllib
import typing
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import tomli_w

from meshdsl.errors import MeshDSLError, nearest
from meshdsl.models.transformer import Config as Model

VOCABULARY = 256  # the tokens are bytes


def bounded(default: Any, *, least: float | None = None, below: float | None = None) -> Any:
    """A field whose value is at least `least` and less than `below`."""
    return field(default=default, metadata={"least": least, "below": below})


@dataclass(frozen=True)
class Data:
    """What is read. Without paths: the Python source of the running interpreter's standard library."""

    paths: tuple[str, ...] = ()
    validation: float = bounded(0.05, least=0.001, below=1.0)  # the part of the files that is held out


@dataclass(frozen=True)
class Optimizer:
    """An optax optimizer by name, its schedule, and what is done to gradients before it."""

    name: str = "adamw"
    learning_rate: float = bounded(0.0, least=0.0)  # at the peak; 0 means the optimizer's usual one
    warmup: int = bounded(50, least=0)  # steps from 0 to the peak
    final: float = bounded(0.1, least=0.0)  # of the peak, where the cosine ends
    weight_decay: float = bounded(0.1, least=0.0)  # of matrices only
    clip: float = bounded(1.0, least=0.0)  # global norm of the gradient; 0 means no clipping


@dataclass(frozen=True)
class Checkpoint:
    every: int = bounded(200, least=1)  # steps
    keep: int = bounded(2, least=1)  # the newest


@dataclass(frozen=True)
class Validation:
    every: int = bounded(0, least=0)  # steps; 0 means only at the end
    batches: int = bounded(16, least=1)


@dataclass(frozen=True)
class Sample:
    """The text that a run writes at its end."""

    prompt: str = "def "
    bytes: int = bounded(300, least=0)
    temperature: float = bounded(0.8, least=0.0)


@dataclass(frozen=True)
class Config:
    layout: str = "data"  # a file, or the name of a shipped layout
    devices: int = bounded(0, least=0)  # 0 means what the layout's mesh asks for
    steps: int = bounded(400, least=1)
    batch: int = bounded(32, least=1)  # sequences in a step, all microbatches together
    microbatches: int = bounded(1, least=1)  # a step's batch is run in this many parts, one after the other
    seed: int = bounded(0, least=0)
    log_every: int = bounded(10, least=1)  # steps between two printed lines, where there is no terminal
    model: Model = field(default_factory=Model)
    data: Data = field(default_factory=Data)
    optimizer: Optimizer = field(default_factory=Optimizer)
    checkpoint: Checkpoint = field(default_factory=Checkpoint)
    validation: Validation = field(default_factory=Validation)
    sample: Sample = field(default_factory=Sample)

    def __post_init__(self) -> None:
        if self.batch % self.microbatches:
            raise MeshDSLError(f"batch={self.batch} does not divide into microbatches={self.microbatches}")
        if self.model.vocab < VOCABULARY:
            raise MeshDSLError(f"model.vocab={self.model.vocab}: must be at least {VOCABULARY}, as tokens are bytes")


# -- settings ----------------------------------------------------------------------------------------------------

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
        _check_bounds(key, value, _field(config, key)[1])
    return _applied(config, values)


def _field(config: Any, key: str) -> tuple[Any, Any]:
    """Type and metadata of the field at a dotted `key`."""
    known = dict(leaves(config))
    if key not in known:
        group = [f"`{name}`" for name in known if name.startswith(key + ".")]
        if group:
            raise MeshDSLError(f"`{key}` is a group of settings; set one of {', '.join(group)}")
        raise MeshDSLError(f"no setting `{key}`{nearest(key, known)}")
    *groups, leaf = key.split(".")
    for name in groups:
        config = getattr(config, name)
    metadata = next(field.metadata for field in dataclasses.fields(config) if field.name == leaf)
    return typing.get_type_hints(type(config))[leaf], metadata


def _applied(config: Any, values: dict[str, Any]) -> Any:
    changes: dict[str, Any] = {}
    for group in {key.partition(".")[0] for key in values if "." in key}:
        inside = {key.partition(".")[2]: value for key, value in values.items() if key.startswith(group + ".")}
        changes[group] = _applied(getattr(config, group), inside)
    return dataclasses.replace(config, **changes, **{key: value for key, value in values.items() if "." not in key})


def _parse(key: str, text: str, kind: Any) -> Any:
    """The value that `text` spells for a field of type `kind`."""
    if typing.get_origin(kind) is tuple:
        return tuple(part for part in text.split(",") if part)
    try:
        return _BOOLEANS[text.lower()] if kind is bool else kind(text)
    except (KeyError, ValueError):
        raise _mistyped(key, text, kind) from None


def _typed(key: str, value: Any, kind: Any) -> Any:
    """`value`, as a TOML file or a flag gave it, as a field of type `kind` holds it."""
    if typing.get_origin(kind) is tuple:
        if not (isinstance(value, list) and all(isinstance(part, str) for part in value)):
            raise _mistyped(key, value, kind)
        return tuple(value)
    if kind is float and type(value) is int:
        return float(value)
    if type(value) is not kind:
        raise _mistyped(key, value, kind)
    return value


def _mistyped(key: str, value: Any, kind: Any) -> MeshDSLError:
    return MeshDSLError(f"{key}={value}: expected {_WORDS.get(kind, 'a list of texts')}")


def _check_bounds(key: str, value: Any, bounds: Any) -> None:
    least, below = bounds.get("least"), bounds.get("below")
    if least is not None and not value >= least:
        raise MeshDSLError(f"{key}={value}: must be at least {least}")
    if below is not None and not value < below:
        raise MeshDSLError(f"{key}={value}: must be less than {below}")


# -- the file ----------------------------------------------------------------------------------------------------


def to_dict(config: Any) -> dict[str, Any]:
    """`config` as nested dicts of what TOML holds: tuples as lists."""
    return {
        key: to_dict(value) if dataclasses.is_dataclass(value) else list(value) if isinstance(value, tuple) else value
        for key, value in ((f.name, getattr(config, f.name)) for f in dataclasses.fields(config))
    }


def write(config: Config, path: Path) -> None:
    path.write_text(tomli_w.dumps(to_dict(config)))


def read(path: Path) -> Config:
    """The configuration in a file that `write` wrote.

    Raises:
      MeshDSLError: the file cannot be read, or holds what is no setting.
    """
    try:
        values = tomllib.loads(path.read_text())
    except OSError as error:
        raise MeshDSLError(f"{path}: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise MeshDSLError(f"{path}: not TOML: {error}") from None
    try:
        return override(Config(), **dict(_walk(values)))
    except MeshDSLError as error:
        raise MeshDSLError(f"{path}: {error}") from None


def leaves(config: Any) -> Iterator[tuple[str, Any]]:
    """Every setting of `config`: (dotted key, value)."""
    return _walk(to_dict(config))


def _walk(values: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """(dotted key, value) of each leaf."""
    for key, value in values.items():
        if isinstance(value, dict):
            yield from _walk(value, f"{prefix}{key}.")
        else:
            yield prefix + key, value
