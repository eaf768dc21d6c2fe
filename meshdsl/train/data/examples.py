"""The task `examples`: dicts of arrays, of any fields, from a function of the user's.

`data.sources.NAME.dataset=my_data.py:digits` names the function. It is called with "train" and with
"validation", and gives anything of random access: a list, a grain `MapDataset` or
`RandomAccessDataSource`, or an object with `__len__` and `__getitem__`. Each example is a dict of
arrays.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Mapping
from typing import Any

import numpy as np

from meshdsl import user_code
from meshdsl.dims import Dim
from meshdsl.errors import MeshDSLError, nearest, quote
from meshdsl.extras import extra
from meshdsl.family.calls import batch_fields
from meshdsl.tensor import Tensor
from meshdsl.train.config import Config, Source
from meshdsl.train.data.batches import Numbered
from meshdsl.train.data.cache_entry import Report
from meshdsl.train.data.fields import collate_fields, fitted
from meshdsl.train.data.files import checked_sources
from meshdsl.train.data.held_out import hashes_of_numbers
from meshdsl.train.data.mixture import Data, Part, part_of
from meshdsl.train.data.task import Fields, Task

Example = Mapping[str, Any]


class ExamplesTask(Task):
    """Dicts of arrays with the fields of the model's batch, whatever these are."""

    name, unit = "examples", "example"

    def fields(self, config: Config, rows: Dim) -> dict[str, Tensor]:
        return batch_fields(config.model, rows)

    def open(self, config: Config, fields: Fields, report: Report) -> Data:
        parts = [
            _part(name, source, config, fields)
            for name, source in checked_sources(self.name, config, formats=(), functions=True)
        ]
        title = f"data, examples of {', '.join(f'`{name}`' for name in fields)}"
        return Data(config, title, parts, collate_fields(fields, {}), fills=False)


def _fitted_rows(examples: PythonRows, fields: Fields) -> Numbered:
    """The examples of a user's dataset, each with the fields of a batch and no others."""

    def read(number: int) -> dict[str, np.ndarray]:
        example, row = examples[number], {}
        for name, field in fields.items():
            if name not in example:
                has = ", ".join(f"`{each}`" for each in example) or "nothing"
                close = nearest(name, map(str, example), far="")
                raise MeshDSLError(
                    f"{examples.what}: example {number:,} has {has} and no field `{name}`, which "
                    f"is in the model's batch{close}"
                )
            what = f"{examples.what}: example {number:,}"
            row[name] = fitted(example[name], name, field, what)
        return row

    return Numbered(len(examples), read)


def _part(name: str, source: Source, config: Config, fields: Fields) -> Part:
    examples, own = open_function(source.dataset, f"data.sources.{name}.dataset")
    rows = _fitted_rows(examples, fields)
    held_out = None if own is None else _fitted_rows(own, fields)
    hashes = hashes_of_numbers(len(examples))
    part = part_of((name, source), config, rows, held_out, hashes, "examples", examples.digest())
    for some in (part.train, part.held_out):
        if some is not None and len(some):
            some[0]  # an example that does not fit comes up here
    return part


# -- datasets of a function ------------------------------------------------------------------------


class PythonRows:
    """The examples of a user's dataset, each checked to be a dict of arrays.

    Args:
      examples: what the function gave.
      what: the dataset in words, for errors: `data.sources.digits.dataset=digits.py:digits`.
    """

    def __init__(self, examples: Any, what: str):
        self._examples, self._count, self.what = examples, len(examples), what

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, number: int) -> Example:
        try:
            example = self._examples[number]
        except MeshDSLError:
            raise
        except Exception as error:
            raise MeshDSLError(f"{self.what}: example {number:,} {_failed(error)}") from error
        if not isinstance(example, Mapping):
            gap = "; a MapDataset that is filtered has gaps: filter before it is made one"
            raise MeshDSLError(
                f"{self.what}: example {number:,} is a dict of arrays, not {quote(example)}"
                f"{gap if example is None else ''}"
            )
        return example

    def digest(self) -> str:
        """A hash of how many examples there are, their fields, and the first and the last one."""
        found = hashlib.sha256(str(len(self)).encode())
        for number in sorted({0, len(self) - 1}):
            found.update(_content(self[number]))
        return found.hexdigest()[:12]


def _content(example: Example) -> bytes:
    found = hashlib.sha256()
    for name, value in example.items():
        value = np.asarray(value.array if isinstance(value, Tensor) else value)
        content = repr(value.tolist()).encode() if value.dtype == object else value.tobytes()
        found.update(f"{name} {value.dtype} {value.shape} ".encode() + content)
    return found.digest()


def open_function(name: str, setting: str) -> tuple[PythonRows, PythonRows | None]:
    """The examples to train on and those to validate on, which a function of the user's gives.

    Args:
      name: of the function, as `my_module:name` or `my_file.py:name`.
      setting: where it stands, such as `data.sources.digits.dataset`, for errors.

    Returns:
      None for the second where the function gives none.

    Raises:
      MeshDSLError: the function cannot be found, raises an error, or gives something that is not
        of random access.
    """
    function, what = user_code.load(name, setting), f"{setting}={name}"
    if not callable(function):
        raise MeshDSLError(
            f"{what}: expected a function that is called with 'train' and 'validation', not "
            f"{quote(function)}"
        )
    train = _examples(function, "train", what)
    if train is None:
        raise MeshDSLError(f"{what}: called with 'train' it gives no examples")
    if _content(train[0]) != _content(train[0]):
        raise MeshDSLError(
            f"{train.what}: example 0 is another one each time it is read, so that a run could not "
            "go on with the same data; what is random in it has to follow from its number"
        )
    return train, _examples(function, "validation", what)


def _examples(function: Any, subset: str, what: str) -> PythonRows | None:
    """What the function gives for a subset; None if that is nothing."""
    try:
        found = function(subset)
        count = len(found) if hasattr(type(found), "__len__") else None
    except Exception as error:
        raise MeshDSLError(f"{what}: called with '{subset}' it {_failed(error)}") from error
    if found is None or count == 0:
        return None
    if count is None or not hasattr(type(found), "__getitem__") or isinstance(found, Mapping):
        with extra("train"):
            import grain
        streams = isinstance(found, grain.IterDataset)
        kind = "a grain IterDataset" if streams else f"an object of type {type(found).__name__}"
        raise MeshDSLError(
            f"{what}: called with '{subset}' it gives {kind}, and needs to give examples by their "
            "numbers (a list, a grain MapDataset, an object with __len__ and __getitem__), because "
            "the order of rows, and going on from any of them, rest on that"
            f"{'; leave out `.to_iter_dataset()`' if streams else ''}"
        )
    if count >= sys.maxsize // 2:
        raise MeshDSLError(
            f"{what}: called with '{subset}' it gives a dataset without end; leave out "
            "`.repeat()`, because a run repeats its data by itself"
        )
    return PythonRows(found, f"{what} ({subset})")


def _failed(error: Exception) -> str:
    """What happened in code of the user's, and where: `raised KeyError in data.py:7: 'image'`."""
    said, line = " ".join(str(error).split()), user_code.line_of(error)
    return f"raised {type(error).__name__}{f' in {line}' if line else ''}: {said}"
